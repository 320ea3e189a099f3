// A real process on a real directory that is killed (SIGKILL) at random moments, two processes on one
// directory, and a directory that is copied while it is written. This program is its own child: --child
// DIRECTORY SEED ROUND PIPE DURABILITY.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "backends/nvme/disk.h"
#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "backends/nvme/tests/simulation_audit.h"
#include "backends/nvme/tests/simulation_model.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kThreads = 4;
constexpr size_t kSlotsPerThread = 6;
constexpr size_t kSlots = kThreads * kSlotsPerThread;
constexpr uint64_t kMaxFrame = 256 * kKiB;

NvmeOptions KillOptions(const std::string& directory, Durability durability) {
  NvmeOptions options;
  options.directory = directory;
  options.capacity_bytes = 5 * kMiB;  // full now and then
  options.segment_bytes = 16 * kMiB;
  options.min_free_bytes = 0;
  options.prepare_ahead_bytes = kMiB;
  options.durability = durability;
  return options;
}

// What an attached backend needs, and the backend.
struct OpenTier {
  MetricRegistry metrics;
  std::shared_ptr<LogSink> log = MakeNullLogSink();
  std::unique_ptr<Backend> backend;

  Status Open(const std::string& directory, Durability durability) {
    Result<std::unique_ptr<Backend>> made = MakeNvmeBackend(KillOptions(directory, durability));
    if (!made.ok()) return made.status();
    backend = std::move(*made);
    return backend->Attach({Clock::Real(), &metrics, log.get(), {}});
  }
};

// What the child tells: before a call, and when it was answered.
struct Report {
  enum Kind : uint32_t { kOpening, kOpened, kPut, kEvict, kErase, kClear, kFlush };
  Kind kind = kOpening;
  uint32_t is_answer = 0;
  uint32_t slot = 0;
  int32_t code = 0;
  uint64_t frame_bytes = 0;
  uint64_t number = 0;  // of the call; a Put's content
};

class Child {
 public:
  Child(int pipe, uint64_t seed, uint64_t round, Backend* backend)
      : pipe_(pipe), seed_(seed), round_(round), backend_(backend) {}

  // Until it is killed.
  [[noreturn]] void Work(size_t thread) {
    std::mt19937_64 random(seed_ * 1000003 + round_ * 131 + thread);
    for (uint64_t number = round_ << 32 | thread << 24;; ++number) {
      Report report{.number = number};
      report.slot = static_cast<uint32_t>(thread * kSlotsPerThread + random() % kSlotsPerThread);
      const uint64_t draw = random() % 100;
      if (draw < 60) {
        report.kind = Report::kPut;
        report.frame_bytes = (2 + random() % 15) * kFrameAlignment;
        if (random() % 20 == 0) report.frame_bytes = kMaxFrame;
      } else if (draw < 75) {
        report.kind = Report::kEvict;
      } else if (draw < 92) {
        report.kind = Report::kErase;
      } else {
        report.kind = draw < 94 ? Report::kClear : Report::kFlush;
      }
      report.code = static_cast<int32_t>(Call(report).code());
      report.is_answer = 1;
      Tell(pipe_, report);
    }
  }

  static void Tell(int pipe, const Report& report) {
    if (write(pipe, &report, sizeof(report)) != sizeof(report)) std::_Exit(3);
  }

 private:
  // What concerns all objects is told and called with nobody else between the two, so that the order of the
  // reports is the order of the calls.
  Status Call(const Report& report) {
    Answers<Status> answers;
    const auto alone = [callback = answers.Callback()](const Status& status) { callback({&status, 1}); };
    if (report.kind == Report::kClear || report.kind == Report::kFlush) {
      const std::unique_lock lock(mutex_);
      Tell(pipe_, report);
      report.kind == Report::kClear ? backend_->Clear(alone) : backend_->Flush(alone);
    } else {
      const TestObject object = MakeSlotObject(
          seed_, report.slot, std::max(report.frame_bytes, 2 * kFrameAlignment), report.number);
      const std::shared_lock lock(mutex_);
      Tell(pipe_, report);
      if (report.kind == Report::kPut) {
        std::vector<PutOp> ops;
        ops.push_back(PutOpOf(object));
        backend_->Put(std::move(ops), answers.Callback());
      } else {
        const EraseMode mode = report.kind == Report::kErase ? EraseMode::kErase : EraseMode::kEvict;
        backend_->Erase({object.id}, mode, answers.Callback());
      }
    }
    return answers.Wait().at(0);
  }

  const int pipe_;
  const uint64_t seed_;
  const uint64_t round_;
  Backend* const backend_;
  std::shared_mutex mutex_;
};

int RunChild(char** arguments) {
  const std::string directory = arguments[2];
  const uint64_t seed = std::stoull(arguments[3]);
  const uint64_t round = std::stoull(arguments[4]);
  const int pipe = std::stoi(arguments[5]);
  const auto durability = static_cast<Durability>(std::stoi(arguments[6]));
  Child::Tell(pipe, {.kind = Report::kOpening});
  OpenTier tier;
  if (!tier.Open(directory, durability).ok()) return 2;
  Child::Tell(pipe, {.kind = Report::kOpened});
  Child child(pipe, seed, round, tier.backend.get());
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&child, thread] { child.Work(thread); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

class NvmeKillTest : public ::testing::Test {
 protected:
  ~NvmeKillTest() override { Kill(); }

  std::string directory() const { return (root_ / "tier").string(); }
  pid_t child() const { return child_; }

  void Use(Durability durability) {
    durability_ = durability;
    model_.emplace(kSeed, kSlots, durability);
  }
  void StartChild() {
    std::array<int, 2> ends;
    ASSERT_EQ(pipe(ends.data()), 0);
    pipe_ = FileDescriptor(ends[0]);
    const FileDescriptor write_end(ends[1]);
    ASSERT_GE(fcntl(pipe_.get(), F_SETFD, FD_CLOEXEC), 0);
    ++round_;
    const std::vector<std::string> words = {"nvme_kill_test",
                                            "--child",
                                            directory(),
                                            std::to_string(kSeed),
                                            std::to_string(round_),
                                            std::to_string(write_end.get()),
                                            std::to_string(static_cast<int>(durability_))};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      execv("/proc/self/exe", arguments.data());
      std::_Exit(4);
    }
  }
  // The next report, into the model. False at the end.
  bool Read(bool* is_answer) {
    Report report;
    size_t got = 0;
    while (got < sizeof(report)) {
      const ssize_t n = read(pipe_.get(), reinterpret_cast<char*>(&report) + got, sizeof(report) - got);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      got += static_cast<size_t>(n);
    }
    *is_answer = report.is_answer != 0;
    *is_answer ? Answered(report) : Called(report);
    return true;
  }
  // Until that many calls have been answered.
  void ReadAnswers(size_t n) {
    for (bool is_answer = false; n > 0 && Read(&is_answer);) n -= is_answer;
  }
  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    int state = 0;
    ASSERT_EQ(waitpid(child_, &state, 0), child_);
    child_ = -1;
    EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << "it ended by itself: " << state;
    bool ignored;
    while (Read(&ignored)) {
    }
    calls_.clear();
    model_->EndLife(LifeEnd::kCrashed);
  }

  GetResult Get(Backend& backend, size_t slot, BufferRef* dst) {
    *dst = MakeTestBuffer(kMaxFrame);
    std::vector<GetOp> ops(1);
    ops[0].id = model_->id(slot);
    ops[0].dst = *dst;
    Answers<GetResult> answers;
    backend.Get(std::move(ops), answers.Callback());
    return answers.Wait().at(0);
  }
  // Opens what the child left, verifies every answer, closes, and lets the audit read it.
  void Verify() {
    OpenTier tier;
    Status status = tier.Open(directory(), durability_);
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (size_t slot = 0; slot < kSlots; ++slot) {
      BufferRef dst;
      const GetResult result = Get(*tier.backend, slot, &dst);
      found_ += result.status.ok();
      EXPECT_EQ(model_->CheckRecovered(slot, result, dst), "");
    }
    // What a Get found broken is dropped behind its answer: a Flush is answered after that.
    Answers<Status> flushed;
    tier.backend->Flush([callback = flushed.Callback()](const Status& answer) { callback({&answer, 1}); });
    ASSERT_TRUE(flushed.Wait().at(0).ok());
    const uint64_t used = tier.backend->used_bytes();
    status = tier.backend->Close();
    ASSERT_TRUE(status.ok()) << status.ToString();
    model_->EndLife(LifeEnd::kClosed);
    const std::unique_ptr<Disk> disk = MakeSystemDisk(directory(), IoEngineKind::kThreads);
    ASSERT_TRUE(disk->OpenDirectory().ok());
    const TierAudit audit = AuditTier(*disk);
    EXPECT_EQ(audit.wrong, "");
    EXPECT_EQ(audit.live_bytes, used);
    EXPECT_LE(audit.segment_bytes, KillOptions("", durability_).capacity_bytes);
  }
  void KillAndVerify(size_t rounds) {
    std::mt19937_64 random(kSeed);
    for (size_t round = 0; round < rounds && !HasFailure(); ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      StartChild();
      const size_t reports = random() % 10 == 0 ? 1 + random() % 2 : 3 + random() % 120;
      bool ignored;
      for (size_t i = 0; i < reports && Read(&ignored); ++i) {
      }
      Kill();
      Verify();
    }
    EXPECT_GT(found_, rounds) << "something survives";
  }

  static constexpr uint64_t kSeed = 20261130;
  const TemporaryDirectory directory_;
  const fs::path& root_ = directory_.path();
  std::optional<SimulationModel> model_;
  uint64_t found_ = 0;

 private:
  struct Call {
    uint64_t called = 0;
    size_t version = 0;
  };
  void Called(const Report& report) {
    Call call;
    switch (report.kind) {
      case Report::kPut:
        model_->BeginPut(report.slot, report.frame_bytes, &call.version, report.number);
        break;
      case Report::kEvict:
      case Report::kErase:
        call.called = model_->BeginErase(report.slot);
        break;
      case Report::kClear:
        call.called = model_->BeginClear();
        break;
      case Report::kFlush:
        call.called = model_->BeginFlush();
        break;
      default:
        return;
    }
    calls_[report.number] = call;
  }
  void Answered(const Report& report) {
    const Call call = calls_.at(report.number);
    const Status status = report.code == 0 ? OkStatus() : Status(static_cast<StatusCode>(report.code), "");
    switch (report.kind) {
      case Report::kPut:
        // Each thread tells its own answers: that of a Clear may be told in front of that of a Put, which was
        // given first.
        if (const std::string wrong = model_->EndPut(report.slot, call.version, status);
            !wrong.ends_with("put and removed at once")) {
          EXPECT_EQ(wrong, "");
        }
        break;
      case Report::kEvict:
      case Report::kErase:
        model_->EndErase(report.slot, call.called,
                         report.kind == Report::kErase ? EraseMode::kErase : EraseMode::kEvict, status);
        break;
      case Report::kClear:
        model_->EndClear(call.called, status);
        break;
      default:
        model_->EndFlush(call.called, status);
    }
  }

  Durability durability_ = Durability::kFlush;
  uint64_t round_ = 0;
  pid_t child_ = -1;
  FileDescriptor pipe_;
  std::map<uint64_t, Call> calls_;
};

TEST_F(NvmeKillTest, WhatIsAcknowledgedSurvivesKills) {
  Use(Durability::kFlush);
  KillAndVerify(120);
}

TEST_F(NvmeKillTest, WhatIsAcknowledgedSurvivesKillsWhileEverythingIsSynced) {
  Use(Durability::kSync);
  KillAndVerify(60);
}

TEST_F(NvmeKillTest, NothingThatIsFoundAfterAKillIsWrongWithoutALog) {
  Use(Durability::kNone);
  KillAndVerify(20);
}

TEST_F(NvmeKillTest, ASecondProcessIsToldWhoHasTheDirectory) {
  Use(Durability::kFlush);
  StartChild();
  ReadAnswers(1);
  OpenTier second;
  const Status status = second.Open(directory(), Durability::kFlush);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("(" + std::to_string(child()) + ")"));
  ReadAnswers(10);  // the first goes on
  Kill();
  Verify();
}

// File by file, while both sides of a file change.
void CopyTree(const fs::path& from, const fs::path& to) {
  std::error_code ignored;  // files of RocksDB vanish meanwhile
  fs::create_directories(to / "manifest", ignored);
  for (const fs::path& part : {fs::path("."), fs::path("manifest")}) {
    for (const auto& entry : fs::directory_iterator(from / part, ignored)) {
      if (entry.is_regular_file(ignored)) {
        fs::copy_file(entry.path(), to / part / entry.path().filename(), ignored);
      }
    }
  }
}

TEST_F(NvmeKillTest, ADirectoryCopiedWhileItIsWrittenHasNoWrongByte) {
  Use(Durability::kFlush);
  int opened = 0;
  for (int copy = 0; copy < 12 && !HasFailure(); ++copy) {
    StartChild();
    ReadAnswers(40);
    const fs::path path = root_ / ("copy" + std::to_string(copy));
    CopyTree(directory(), path);
    Kill();
    OpenTier copied;
    const Status status = copied.Open(path.string(), Durability::kFlush);
    if (!status.ok()) {
      EXPECT_NE(status.code(), StatusCode::kInternal) << status.ToString();
      continue;
    }
    ++opened;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      BufferRef dst;
      const GetResult result = Get(*copied.backend, slot, &dst);
      EXPECT_EQ(model_->CheckAnyMoment(slot, result, dst), "");
    }
    EXPECT_TRUE(copied.backend->Close().ok());
    Verify();
  }
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc == 7 && std::strcmp(argv[1], "--child") == 0) return terrace::RunChild(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
