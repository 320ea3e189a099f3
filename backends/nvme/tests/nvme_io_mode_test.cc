// How the bytes move: with and without io_uring, O_DIRECT and registered memory, and what is said of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/nvme/nvme_core.h"
#include "backends/nvme/tests/forwarding_disk.h"
#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class KeptLog : public LogSink {
 public:
  void Log(LogLevel level, std::string_view, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back((level == LogLevel::kWarning ? "warning: " : "") + std::string(message));
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class NvmeIoModeTest : public ::testing::Test {
 protected:
  NvmeIoModeTest() { store_.set_log(log_); }
  NvmeOptions Options(IoEngineKind kind) const {
    NvmeOptions options = store_.options();
    options.io_engine = kind;
    return options;
  }
  // Stores, reads back, reads a part, and erases.
  void ExpectWorks() {
    const TestObject object = MakeNvmeObject(1, 9 * kMiB + 4096);
    ASSERT_TRUE(store_.Put(object).ok());
    store_.ExpectHas(object);
    BufferRef part = MakeTestBuffer(8 * kMiB);
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    ops.push_back(GetOpOf(object, part));
    ops[0].ranges = {{.frame_offset = 4 * kMiB, .length = 4096, .dst_offset = 0},
                     {.frame_offset = kMiB, .length = 3 * kMiB, .dst_offset = kMiB}};
    store_.backend().Get(std::move(ops), answers.Callback());
    ASSERT_TRUE(answers.Wait()[0].status.ok());
    const std::byte* const frame = object.frame.frame().data();
    EXPECT_EQ(std::memcmp(part.frame().data(), frame + 4 * kMiB, 4096), 0);
    EXPECT_EQ(std::memcmp(part.frame().data() + kMiB, frame + kMiB, 3 * kMiB), 0);
    EXPECT_TRUE(store_.Flush().ok());
    EXPECT_TRUE(store_.Erase(object.id, EraseMode::kErase).ok());
    EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  }
  size_t NumLinesOfMode() const {
    size_t n = 0;
    for (const std::string& line : log_->lines()) n += line.find("I/O by ") != std::string::npos;
    return n;
  }

  std::shared_ptr<KeptLog> log_ = std::make_shared<KeptLog>();
  NvmeTestStore store_;
};

// This thread and those that it makes get `error` from the system call, as under a container's filter.
bool Forbid(unsigned system_call, unsigned error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

TEST_F(NvmeIoModeTest, WhereIoUringIsForbiddenThreadsDoTheWork) {
  bool forbidden = false;
  std::thread bound([&] {
    forbidden = Forbid(__NR_io_uring_setup, EPERM);
    if (!forbidden) return;
    EXPECT_EQ(MakeUringEngine(8).status().code(), StatusCode::kUnavailable);
    const Status demanded = store_.TryOpen(Options(IoEngineKind::kIoUring));
    EXPECT_EQ(demanded.code(), StatusCode::kUnavailable) << demanded.ToString();
    EXPECT_THAT(std::string(demanded.message()), HasSubstr("io_uring"));
    store_.Close();
    const Status opened = store_.TryOpen(Options(IoEngineKind::kAuto));
    ASSERT_TRUE(opened.ok()) << opened.ToString();
    ExpectWorks();
  });
  bound.join();
  if (!forbidden) GTEST_SKIP() << "the system allows no seccomp filter";
  EXPECT_EQ(store_.IoMode("threads", "yes", "no") + store_.IoMode("threads", "no", "no"), 1);
  EXPECT_THAT(log_->lines(),
              Contains(AllOf(HasSubstr("warning: I/O by threads"), HasSubstr("io_uring is not available"))));
  EXPECT_EQ(NumLinesOfMode(), 1u);
}

TEST_F(NvmeIoModeTest, WithoutRingAndThreadsThereIsNoEngine) {
  bool forbidden = false;
  std::thread bound([&] {
    forbidden = Forbid(__NR_eventfd2, EMFILE) && Forbid(__NR_clone3, EAGAIN) && Forbid(__NR_clone, EAGAIN);
    if (!forbidden) return;
    EXPECT_EQ(MakeUringEngine(8).status().code(), StatusCode::kUnavailable);
    const Status threads = MakeThreadsEngine(8, "").status();
    EXPECT_EQ(threads.code(), StatusCode::kUnavailable);
    EXPECT_THAT(std::string(threads.message()), HasSubstr("no threads for I/O"));
  });
  bound.join();
  if (!forbidden) GTEST_SKIP() << "the system allows no seccomp filter";
}

TEST_F(NvmeIoModeTest, OnlyAnUnavailableEngineIsReplaced) {
  Status refusal = UnavailableError("no ring today");
  const IoEngineFactory refused = [&](uint32_t) -> Result<std::unique_ptr<IoEngine>> { return refusal; };
  EXPECT_EQ(store_.TryOpen(Options(IoEngineKind::kIoUring), refused).code(), StatusCode::kUnavailable);
  store_.Close();
  EXPECT_TRUE(store_.TryOpen(Options(IoEngineKind::kAuto), refused).ok());
  EXPECT_THAT(log_->lines(), Contains(HasSubstr("(no ring today)")));
  ExpectWorks();
  store_.Close();
  refusal = InternalError("a defect");
  EXPECT_EQ(store_.TryOpen(Options(IoEngineKind::kAuto), refused).code(), StatusCode::kInternal);
}

TEST_F(NvmeIoModeTest, ThreadsWhereTheyAreAskedFor) {
  ASSERT_TRUE(store_.TryOpen(Options(IoEngineKind::kThreads)).ok());
  EXPECT_EQ(store_.IoMode("threads", "yes", "no") + store_.IoMode("threads", "no", "no"), 1);
  ExpectWorks();
}

class BufferedDisk : public ForwardingDisk {
 public:
  using ForwardingDisk::ForwardingDisk;
  Result<std::unique_ptr<DiskFile>> OpenFile(const std::string& name, FileOpen how, bool) override {
    return base_->OpenFile(name, how, false);
  }
};

TEST_F(NvmeIoModeTest, WithoutODirectThePageCacheDoesAndItIsSaid) {
  for (const IoEngineKind kind : {IoEngineKind::kIoUring, IoEngineKind::kThreads}) {
    const std::string name = kind == IoEngineKind::kIoUring ? "io_uring" : "threads";
    const NvmeOptions options = Options(kind);
    auto disk = std::make_unique<BufferedDisk>(MakeSystemDisk(options.directory, kind));
    ASSERT_TRUE(store_.TryAttach(MakeNvmeBackendOnDisk(options, std::move(disk))).ok());
    EXPECT_EQ(store_.IoMode(name, "no", "no"), 1);
    EXPECT_EQ(store_.IoMode(name, "yes", "no"), 0);
    EXPECT_THAT(log_->lines(), Contains(AllOf(HasSubstr("warning: I/O by " + name),
                                              HasSubstr("the file system has no O_DIRECT"))));
    ExpectWorks();
    store_.Close();
  }
  EXPECT_EQ(NumLinesOfMode(), 2u) << "once each";
}

TEST_F(NvmeIoModeTest, RegisteredMemoryIsReadAndWrittenInPlace) {
  const TestObject object = MakeNvmeObject(1, 9 * kMiB + 4096);
  BufferRef whole = MakeTestBuffer(object.meta.frame_bytes);
  const std::vector<MemoryRegion> regions = {{0, whole.mutable_run()}, {1, object.frame.mutable_run()}};
  const NvmeOptions options = Options(IoEngineKind::kIoUring);
  ASSERT_TRUE(store_.TryAttach(MakeNvmeBackend(options), regions).ok());
  if (store_.IoMode("io_uring", "yes", "yes") + store_.IoMode("io_uring", "no", "yes") == 0) {
    EXPECT_THAT(log_->lines(), Contains(HasSubstr("RLIMIT_MEMLOCK")));
    GTEST_SKIP() << "the system allows no 20 MiB of locked memory";
  }
  ASSERT_TRUE(store_.Put(object).ok());
  for (int round = 0; round < 3; ++round) {
    std::memset(whole.mutable_run().data(), 0xaa, whole.mutable_run().size());
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    ops.push_back(GetOpOf(object, whole));
    if (round == 2) ops[0].ranges = {{.frame_offset = 8192, .length = 5 * kMiB, .dst_offset = kMiB}};
    store_.backend().Get(std::move(ops), answers.Callback());
    ASSERT_TRUE(answers.Wait()[0].status.ok());
    if (round < 2) {
      EXPECT_TRUE(object.Holds(whole));
    } else {
      const std::byte* const frame = object.frame.frame().data();
      EXPECT_EQ(std::memcmp(whole.frame().data() + kMiB, frame + 8192, 5 * kMiB), 0);
      EXPECT_EQ(whole.frame()[kMiB - 1], std::byte{0xaa}) << "and nothing beside it";
    }
  }
  store_.ExpectHas(object);  // into memory that is not registered
  store_.Close();
}

}  // namespace
}  // namespace terrace
