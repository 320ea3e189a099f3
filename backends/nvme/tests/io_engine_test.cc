// Both engines: what one does, the other does.
#include "backends/nvme/io_engine.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "backends/nvme/transfer_queue.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kDepth = 128;

struct FreeBlock {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<std::byte, FreeBlock>;

Block MakeBlock(size_t size_bytes) {
  return Block(static_cast<std::byte*>(std::aligned_alloc(4096, size_bytes)));
}

IoEngineFactory FactoryOf(IoEngineKind kind) {
  if (kind == IoEngineKind::kIoUring) return MakeUringEngine;
  return [](uint32_t depth) { return MakeThreadsEngine(depth, "a test"); };
}

class IoEngineTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  void SetUp() override {
    engine_ = FactoryOf(GetParam())(kDepth).value();
    std::string name = (std::filesystem::temp_directory_path() / "terrace-engine-XXXXXX").string();
    file_ = FileDescriptor(mkstemp(name.data()));
    ASSERT_TRUE(file_);
    readonly_ = FileDescriptor(open(name.c_str(), O_RDONLY | O_CLOEXEC));
    unlink(name.c_str());
  }
  IoRequest Make(IoDirection direction, uint64_t offset, std::vector<iovec> memory) const {
    IoRequest request{.direction = direction, .fd = file_.get(), .offset = offset};
    for (const iovec& run : memory) request.memory[request.num_memory++] = run;
    return request;
  }
  // The requests' results in their own order.
  std::vector<int64_t> Run(std::vector<IoRequest>& requests) {
    for (IoRequest& request : requests) engine_->Start(&request);
    std::vector<IoCompletion> completions;
    while (completions.size() < requests.size()) engine_->Wait(std::nullopt, &completions);
    std::vector<int64_t> results(requests.size(), INT64_MIN);
    for (const IoCompletion& completion : completions) {
      int64_t& result = results[static_cast<size_t>(completion.request - requests.data())];
      EXPECT_EQ(result, INT64_MIN) << "completed twice";
      result = completion.result;
    }
    return results;
  }
  int64_t RunOne(IoRequest request) {
    std::vector<IoRequest> requests = {request};
    return Run(requests)[0];
  }
  void FillFile(uint64_t size_bytes) {
    const std::string text(size_bytes, 'f');
    ASSERT_EQ(pwrite(file_.get(), text.data(), text.size(), 0), static_cast<ssize_t>(size_bytes));
  }

  FileDescriptor file_;
  FileDescriptor readonly_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(IoEngineTest, SaysWhatItIs) {
  const bool is_uring = GetParam() == IoEngineKind::kIoUring;
  const IoEngineMode mode = engine_->mode();
  EXPECT_EQ(mode.engine, is_uring ? "io_uring" : "threads");
  EXPECT_EQ(mode.fallback, is_uring ? "" : "a test");
  EXPECT_FALSE(mode.registered_buffers);
  EXPECT_FALSE(mode.registered_files);
}

TEST_P(IoEngineTest, AReadAtTheEndOfTheFileIsShort) {
  FillFile(10'000);
  const Block memory = MakeBlock(16'384);
  const std::vector<iovec> both = {{memory.get(), 4096}, {memory.get() + 8192, 4096}};
  EXPECT_EQ(RunOne(Make(IoDirection::kRead, 0, both)), 8192);
  EXPECT_EQ(RunOne(Make(IoDirection::kRead, 4096, both)), 10'000 - 4096);
  EXPECT_EQ(RunOne(Make(IoDirection::kRead, 8192, {{memory.get(), 4096}})), 10'000 - 8192);
  EXPECT_EQ(RunOne(Make(IoDirection::kRead, 12'288, {{memory.get(), 4096}})), 0);
}

TEST_P(IoEngineTest, AnErrorIsTheRequestsOwnCompletion) {
  const Block memory = MakeBlock(4096);
  std::vector<IoRequest> requests(3, Make(IoDirection::kWrite, 0, {{memory.get(), 4096}}));
  requests[0].fd = readonly_.get();
  requests[1].fd = 1'000'000;  // nothing is open there
  EXPECT_THAT(Run(requests), ::testing::ElementsAre(-EBADF, -EBADF, 4096));
  EXPECT_EQ(RunOne(Make(IoDirection::kRead, 0, {{nullptr, 4096}})), -EFAULT);
}

TEST_P(IoEngineTest, ManyRequestsAreInFlightAtOnce) {
  constexpr size_t kPart = 8192;
  const Block written = MakeBlock(kDepth * 2 * kPart);
  const Block read = MakeBlock(kDepth * 2 * kPart);
  for (size_t i = 0; i < kDepth * 2 * kPart; ++i) written.get()[i] = std::byte(i % 251 + i / 65'536);
  for (int round = 0; round < 3; ++round) {
    std::vector<IoRequest> writes;
    std::vector<IoRequest> reads;
    std::memset(read.get(), 0, kDepth * 2 * kPart);
    for (size_t i = 0; i < kDepth; ++i) {
      const uint64_t offset = i * 2 * kPart;
      std::byte* const from = written.get() + offset;
      writes.push_back(Make(IoDirection::kWrite, offset, {{from, kPart}, {from + kPart, kPart}}));
      reads.push_back(Make(IoDirection::kRead, offset, {{read.get() + offset, 2 * kPart}}));
    }
    for (const int64_t result : Run(writes)) EXPECT_EQ(result, static_cast<int64_t>(2 * kPart));
    for (const int64_t result : Run(reads)) EXPECT_EQ(result, static_cast<int64_t>(2 * kPart));
    EXPECT_EQ(std::memcmp(read.get(), written.get(), kDepth * 2 * kPart), 0);
  }
}

TEST_P(IoEngineTest, WakeEndsTheCurrentOrTheNextWait) {
  std::vector<IoCompletion> completions;
  engine_->Wake();
  engine_->Wait(std::nullopt, &completions);
  for (int round = 0; round < 100; ++round) {
    std::thread other([this] { engine_->Wake(); });
    engine_->Wait(std::nullopt, &completions);
    other.join();
  }
  EXPECT_THAT(completions, IsEmpty());
  // Requests go on after it.
  const Block memory = MakeBlock(4096);
  EXPECT_EQ(RunOne(Make(IoDirection::kWrite, 0, {{memory.get(), 4096}})), 4096);
}

TEST_P(IoEngineTest, AWaitEndsByTime) {
  std::vector<IoCompletion> completions;
  engine_->Wait(Duration(0), &completions);
  const TimePoint begin = Clock::Real()->Now();
  engine_->Wait(std::chrono::milliseconds(3), &completions);
  EXPECT_GE(Clock::Real()->Now() - begin, std::chrono::milliseconds(3));
  EXPECT_THAT(completions, IsEmpty());
}

TEST_P(IoEngineTest, WhatIsRegisteredAndWhatIsNotHaveTheSameBytes) {
  const Block first = MakeBlock(kMiB);
  const Block second = MakeBlock(kMiB);
  const Block outside = MakeBlock(kMiB);
  const std::vector<MemoryRegion> regions = {{0, {second.get(), kMiB}}, {1, {first.get(), kMiB / 2}}};
  engine_->RegisterMemory(regions);
  engine_->AddFile(file_.get());
  const bool is_uring = GetParam() == IoEngineKind::kIoUring;
  EXPECT_EQ(engine_->mode().registered_buffers, is_uring) << engine_->mode().fallback;
  EXPECT_EQ(engine_->mode().registered_files, is_uring) << engine_->mode().fallback;
  // Wholly in a region, at its end, across its end, outside, in two runs.
  const std::vector<std::vector<iovec>> places = {
      {{second.get() + 4096, 8192}},
      {{first.get() + kMiB / 2 - 8192, 8192}},
      {{first.get() + kMiB / 2 - 4096, 8192}},
      {{outside.get(), 8192}},
      {{second.get(), 4096}, {first.get(), 4096}},
  };
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < places.size(); ++i) {
      for (const iovec& run : places[i])
        std::memset(run.iov_base, static_cast<int>(16 * round + i), run.iov_len);
      EXPECT_EQ(RunOne(Make(IoDirection::kWrite, i * 8192, places[i])), 8192) << i;
      for (const iovec& run : places[i]) std::memset(run.iov_base, 0xee, run.iov_len);
      EXPECT_EQ(RunOne(Make(IoDirection::kRead, i * 8192, places[i])), 8192) << i;
      for (const iovec& run : places[i]) {
        const std::string got(static_cast<const char*>(run.iov_base), run.iov_len);
        EXPECT_EQ(got, std::string(run.iov_len, static_cast<char>(16 * round + i))) << i;
      }
    }
    engine_->RemoveFile(file_.get());  // the second round goes without
  }
}

TEST_P(IoEngineTest, AFileThatWasTakenOutIsNotReached) {
  const Block memory = MakeBlock(4096);
  engine_->AddFile(file_.get());
  EXPECT_EQ(RunOne(Make(IoDirection::kWrite, 0, {{memory.get(), 4096}})), 4096);
  const int fd = file_.get();
  engine_->RemoveFile(fd);
  engine_->RemoveFile(fd);  // not there: nothing
  // Another file under the same number.
  const FileDescriptor other(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_EQ(dup2(other.get(), fd), fd);
  EXPECT_EQ(RunOne(Make(IoDirection::kRead, 0, {{memory.get(), 4096}})), 0) << "read the file that is gone";
}

TEST_P(IoEngineTest, MoreFilesThanTheTableHolds) {
  const Block memory = MakeBlock(4096);
  std::vector<FileDescriptor> files;
  for (int i = 0; i < 300; ++i) {
    files.emplace_back(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    ASSERT_TRUE(files.back());
    engine_->AddFile(files.back().get());
  }
  for (const FileDescriptor& file : files) {
    IoRequest request = Make(IoDirection::kWrite, 0, {{memory.get(), 4096}});
    request.fd = file.get();
    EXPECT_EQ(RunOne(request), 4096);
  }
  for (const FileDescriptor& file : files) engine_->RemoveFile(file.get());
}

// Runs one transfer to its end and gives its status.
Status RunTransfer(IoEngine& engine, TransferQueue& queue, IoDirection direction,
                   std::vector<TransferSpan> spans) {
  auto transfer = std::make_shared<Transfer>();
  std::optional<Status> end;
  transfer->direction = direction;
  transfer->spans = std::move(spans);
  transfer->on_end = [&end](const Status& status) { end = status; };
  queue.Add(transfer);
  queue.Pump();
  while (!end) {
    std::vector<IoCompletion> completions;
    engine.Wait(std::nullopt, &completions);
    for (const IoCompletion& completion : completions) queue.OnCompletion(completion);
    queue.Pump();
    queue.Report();
  }
  return *end;
}

TEST_P(IoEngineTest, TransfersOfManyRequestsAreWhole) {
  constexpr uint64_t kBytes = 21 * kMiB;
  const Block written = MakeBlock(kBytes);
  const Block read = MakeBlock(kBytes);
  for (uint64_t i = 0; i < kBytes; i += 8) std::memcpy(written.get() + i, &i, 8);
  std::memset(read.get(), 0, kBytes);
  const std::vector<MemoryRegion> regions = {{0, {read.get(), kBytes}}};
  engine_->RegisterMemory(regions);
  engine_->AddFile(file_.get());
  const auto spans = [this](std::byte* memory) {
    const int fd = file_.get();
    return std::vector<TransferSpan>{{fd, 8 * kMiB, 4096, memory},
                                     {fd, 8 * kMiB + 4096, 13 * kMiB, memory + 4096},
                                     {fd, 0, 8 * kMiB - 4096, memory + 13 * kMiB + 4096}};
  };
  TransferQueue queue(engine_.get(), {2 * kMiB, 8 * kMiB});
  EXPECT_TRUE(RunTransfer(*engine_, queue, IoDirection::kWrite, spans(written.get())).ok());
  EXPECT_TRUE(RunTransfer(*engine_, queue, IoDirection::kRead, spans(read.get())).ok());
  EXPECT_EQ(std::memcmp(read.get(), written.get(), kBytes), 0);
  EXPECT_EQ(RunTransfer(*engine_, queue, IoDirection::kRead, {{file_.get(), 20 * kMiB, 4 * kMiB, read.get()}})
                .code(),
            StatusCode::kDataLoss)
      << "the file ends before";
  EXPECT_EQ(
      RunTransfer(*engine_, queue, IoDirection::kWrite, {{readonly_.get(), 0, 4096, written.get()}}).code(),
      StatusCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineTest,
                         ::testing::Values(IoEngineKind::kIoUring, IoEngineKind::kThreads),
                         [](const auto& kind) {
                           return kind.param == IoEngineKind::kIoUring ? "IoUring" : "Threads";
                         });

TEST(UringEngineTest, MemoryThatCannotBeRegisteredGoesWithout) {
  std::unique_ptr<IoEngine> engine = MakeUringEngine(8).value();
  void* const gone = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  munmap(gone, 8192);
  const std::vector<MemoryRegion> regions = {{0, {static_cast<std::byte*>(gone), 8192}}};
  engine->RegisterMemory(regions);
  EXPECT_FALSE(engine->mode().registered_buffers);
  EXPECT_THAT(engine->mode().fallback, HasSubstr("buffers are not registered: Bad address"));
}

// A user of its own for this thread, without rights: what may be locked is counted for each user.
bool BecomeNobody() {
  const uid_t user = 60'000 + static_cast<uid_t>(getpid()) % 5000;
  if (geteuid() == 0) return syscall(SYS_setresuid, user, user, user) == 0;
  return true;
}

TEST(UringEngineTest, MemoryBeyondTheLimitGoesUnregisteredAndSaysSo) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit tight{.rlim_cur = std::min<rlim_t>(before.rlim_cur, kMiB), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &tight), 0);
  bool ring = false;
  std::thread bound([&ring] {
    ASSERT_TRUE(BecomeNobody());
    Result<std::unique_ptr<IoEngine>> engine = MakeUringEngine(8);
    ring = engine.ok();
    if (!ring) return;
    const Block memory = MakeBlock(8 * kMiB);
    const std::vector<MemoryRegion> regions = {{0, {memory.get(), 8 * kMiB}}};
    (*engine)->RegisterMemory(regions);
    EXPECT_FALSE((*engine)->mode().registered_buffers);
    EXPECT_THAT((*engine)->mode().fallback, HasSubstr("RLIMIT_MEMLOCK"));
    const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
    IoRequest request{.direction = IoDirection::kWrite, .fd = null.get(), .num_memory = 1};
    request.memory[0] = {memory.get(), 4096};
    (*engine)->Start(&request);
    std::vector<IoCompletion> completions;
    while (completions.empty()) (*engine)->Wait(std::nullopt, &completions);
    EXPECT_EQ(completions[0].result, 4096);
  });
  bound.join();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (!ring) GTEST_SKIP() << "other processes of this user have locked what the limit allows";
}

// What is registered stays what it was when its number, or its address, has come to mean something else: so
// it shows that requests go by the registration.
TEST(UringEngineTest, RequestsGoByWhatIsRegistered) {
  std::unique_ptr<IoEngine> engine = MakeUringEngine(8).value();
  const auto run = [&engine](IoRequest request) {
    engine->Start(&request);
    std::vector<IoCompletion> completions;
    while (completions.empty()) engine->Wait(std::nullopt, &completions);
    return completions[0].result;
  };
  std::string name = (std::filesystem::temp_directory_path() / "terrace-engine-XXXXXX").string();
  const FileDescriptor file(mkstemp(name.data()));
  const FileDescriptor same(fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  unlink(name.c_str());
  const auto map = [](void* at, int more_flags) {
    return mmap(at, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
  };
  void* const memory = map(nullptr, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 'm', 8192);
  const std::vector<MemoryRegion> regions = {{0, {static_cast<std::byte*>(memory), 8192}}};
  engine->RegisterMemory(regions);
  engine->AddFile(file.get());
  if (!engine->mode().registered_buffers) GTEST_SKIP() << engine->mode().fallback;

  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_EQ(dup2(null.get(), file.get()), file.get());
  IoRequest request{.direction = IoDirection::kWrite, .fd = file.get(), .num_memory = 1};
  request.memory[0] = {static_cast<std::byte*>(memory) + 4096, 4096};
  EXPECT_EQ(run(request), 4096);
  std::string got(4096, '\0');
  EXPECT_EQ(pread(same.get(), got.data(), got.size(), 0), 4096) << "went by the number";
  EXPECT_EQ(got, std::string(4096, 'm'));

  ASSERT_EQ(map(memory, MAP_FIXED), memory);
  request.direction = IoDirection::kRead;
  EXPECT_EQ(run(request), 4096);
  EXPECT_EQ(static_cast<const char*>(memory)[4096], '\0') << "went by the address";
  engine.reset();
  munmap(memory, 8192);
}

}  // namespace
}  // namespace terrace
