#include "backends/remote/shm_path.h"

#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <random>

#include "backends/remote/tests/shm_stub_server.h"

namespace terrace::remote {
namespace {

constexpr uint64_t kFrame = 300 * 1024;  // more than one step
constexpr uint64_t kFrameOffset = 2 * kSharedPoolUnitBytes + kTierPageBytes;
constexpr auto kLimit = std::chrono::seconds(20);

size_t CountDescriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

Status ConnectStatus(StubServer& server, Duration limit = kLimit) {
  server.Listen();
  return ShmMapping::Connect(server.path, {}, limit).status();
}

struct OwnFrame : BufferControl {
  std::vector<std::byte> memory;
};

BufferRef MakeFrame(uint64_t bytes) {
  auto* control = new OwnFrame();
  control->memory.resize(kTierPageBytes + bytes);
  std::mt19937 random(static_cast<uint32_t>(bytes));
  for (std::byte& byte : control->memory) byte = static_cast<std::byte>(random());
  control->data = control->memory.data();
  control->size_bytes = control->memory.size();
  control->release = [](BufferControl* given) { delete static_cast<OwnFrame*>(given); };
  return BufferRef(control);
}

// A path to a stub, and what it gave back.
struct PathFixture {
  StubServer server;
  std::shared_ptr<LandingTable> landings = std::make_shared<LandingTable>();
  std::shared_ptr<ShmPath> path;
  std::mutex mutex;
  std::vector<uint64_t> released;
  std::promise<void> five_released;

  explicit PathFixture(uint32_t threads = 2, std::shared_ptr<DataPath> unstaged = nullptr) {
    server.Listen();
    Result<std::shared_ptr<ShmMapping>> mapping = ShmMapping::Connect(server.path, {}, kLimit);
    EXPECT_TRUE(mapping.ok()) << mapping.status().ToString();
    ShmPathOptions options;
    options.mapping = *mapping;
    options.landings = landings;
    options.threads = threads;
    options.unstaged = std::move(unstaged);
    options.release_places = [this](std::vector<uint64_t> places) {
      const std::lock_guard lock(mutex);
      for (const uint64_t place : places) {
        released.push_back(place);
        if (released.size() == 5) five_released.set_value();
      }
    };
    path = ShmPath::Start(std::move(options));
    std::mt19937 random(7);
    for (std::byte& byte : server.pool->bytes()) byte = static_cast<std::byte>(random());
    server.Generation(2).store(41);
  }
  ~PathFixture() { path->Close(); }

  static v1::GetResult Answer(uint64_t place = 1) {
    v1::GetResult result;
    result.mutable_result()->set_code(v1::RESULT_CODE_OK);
    result.set_frame_bytes(kFrame);
    result.mutable_place()->set_offset(kFrameOffset);
    result.mutable_place()->set_generation(41);
    result.mutable_place()->set_place(place);
    return result;
  }

  using OnBytes = std::function<void(uint64_t, uint64_t)>;
  // How the get of these ranges ends.
  Status Get(const v1::GetResult& answer, MutableBytes into, std::vector<FrameRange> ranges,
             OnBytes on_bytes = {}) {
    auto ended = std::make_shared<std::promise<Status>>();
    Landing landing;
    landing.memory = into;
    landing.ranges = std::move(ranges);
    landing.on_bytes = std::move(on_bytes);
    landing.on_end = [ended](const Status& status) { ended->set_value(status); };
    EXPECT_TRUE(landings->Add(9, std::move(landing)).ok());
    path->OnGetResult(9, answer);
    std::future<Status> end = ended->get_future();
    if (end.wait_for(kLimit) != std::future_status::ready) return InternalError("the get does not end");
    return end.get();
  }
  Bytes Frame() const { return Bytes(server.pool->bytes()).subspan(kFrameOffset, kFrame); }
};

TEST(ShmMappingTest, SaysHelloAndMapsWhatItIsHanded) {
  StubServer server;
  server.Listen();
  ShmHello hello;
  hello.session.fill(std::byte{3});
  hello.token.fill(std::byte{4});
  server.pool->bytes()[kFrameOffset] = std::byte{77};
  Result<std::shared_ptr<ShmMapping>> mapping = ShmMapping::Connect(server.path, hello, kLimit);
  ASSERT_TRUE(mapping.ok()) << mapping.status().ToString();
  EXPECT_EQ(server.hello, EncodeShmHello(hello));
  EXPECT_TRUE((*mapping)->connected());
  const Result<Bytes> frame = (*mapping)->FrameAt(kFrameOffset, kFrame);
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ((*frame)[0], std::byte{77});
  (*mapping)->StagingAt(4096, 4096)->data()[0] = std::byte{78};
  EXPECT_EQ(server.staging->bytes()[4096], std::byte{78});
  server.HangUp();
  EXPECT_FALSE((*mapping)->connected());
}

TEST(ShmMappingTest, RefusesFilesThatAreNotSealed) {
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE}) {
    StubServer pool;
    pool.pool = std::make_unique<StubMemory>(StubServer::kPoolBytes, kPoolSeals & ~missing);
    EXPECT_EQ(ConnectStatus(pool).code(), StatusCode::kDataLoss) << missing;
    StubServer generations;
    generations.generations = std::make_unique<StubMemory>(128, kPoolSeals & ~missing);
    EXPECT_EQ(ConnectStatus(generations).code(), StatusCode::kDataLoss) << missing;
  }
  StubServer staging;
  staging.staging = std::make_unique<StubMemory>(StubServer::kStagingBytes, F_SEAL_GROW);
  EXPECT_EQ(ConnectStatus(staging).code(), StatusCode::kDataLoss);
}

TEST(ShmMappingTest, RefusesOtherLengthsThanWereSaid) {
  const size_t before = CountDescriptors();
  for (uint64_t ShmWelcome::*field :
       {&ShmWelcome::pool_bytes, &ShmWelcome::generations_bytes, &ShmWelcome::staging_bytes}) {
    for (const uint64_t bytes :
         {uint64_t{0}, uint64_t{kSharedPoolUnitBytes}, uint64_t{1} << 30, UINT64_MAX}) {
      StubServer server;
      server.welcome.*field = bytes;
      EXPECT_EQ(ConnectStatus(server).code(), StatusCode::kDataLoss) << bytes;
    }
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(ShmMappingTest, RefusesMoreOrFewerDescriptors) {
  const size_t before = CountDescriptors();
  for (const size_t count : {0, 1, 2, 4}) {
    StubServer server;
    server.num_descriptors = count;
    EXPECT_EQ(ConnectStatus(server).code(), StatusCode::kDataLoss) << count;
  }
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(ShmMappingTest, EveryAnswerThatIsNoWelcomeIsAnError) {
  StubServer refused;
  refused.welcome.code = BulkCode::kRefused;
  EXPECT_EQ(ConnectStatus(refused).code(), StatusCode::kPermissionDenied);
  StubServer draining;
  draining.welcome.code = BulkCode::kDraining;
  EXPECT_EQ(ConnectStatus(draining).code(), StatusCode::kUnavailable);
  StubServer version;
  version.welcome.version = 2;
  EXPECT_EQ(ConnectStatus(version).code(), StatusCode::kDataLoss);
  StubServer gone;
  gone.hang_up = true;
  EXPECT_EQ(ConnectStatus(gone).code(), StatusCode::kUnavailable);
  StubServer silent;
  silent.welcome_bytes = 0;
  EXPECT_EQ(ConnectStatus(silent, std::chrono::milliseconds(5)).code(), StatusCode::kUnavailable);
  StubServer half;
  half.welcome_bytes = 20;
  EXPECT_EQ(ConnectStatus(half, std::chrono::milliseconds(5)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(ShmMapping::Connect("/nobody/here", {}, kLimit).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(ShmMapping::Connect(std::string(200, 'x'), {}, kLimit).status().code(), StatusCode::kDataLoss);
}

TEST(ShmMappingTest, NothingIsReadOrWrittenOutside) {
  StubServer server;
  server.Listen();
  const std::shared_ptr<ShmMapping> mapping = *ShmMapping::Connect(server.path, {}, kLimit);
  const uint64_t last_unit = StubServer::kPoolBytes - kSharedPoolUnitBytes + kTierPageBytes;
  EXPECT_TRUE(mapping->FrameAt(last_unit, kSharedPoolUnitBytes - kTierPageBytes).ok());
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {last_unit, kSharedPoolUnitBytes},
           {0, 4096},
           {8192, 4096},
           {kFrameOffset + 1, 4096},
           {kFrameOffset, 0},
           {kFrameOffset, 4097},
           {kFrameOffset, UINT64_MAX - 4095},
           {StubServer::kPoolBytes + kTierPageBytes, 4096},
           {UINT64_MAX - kSharedPoolUnitBytes + 1 + kTierPageBytes, 4096}}) {
    EXPECT_EQ(mapping->FrameAt(offset, bytes).status().code(), StatusCode::kDataLoss)
        << offset << " " << bytes;
  }
  EXPECT_TRUE(mapping->StagingAt(0, StubServer::kStagingBytes).ok());
  EXPECT_FALSE(mapping->StagingAt(4096, StubServer::kStagingBytes).ok());
  EXPECT_FALSE(mapping->StagingAt(UINT64_MAX, 4096).ok());
  EXPECT_FALSE(mapping->StagingAt(0, 0).ok());
}

TEST(ShmPathTest, CopiesRangesBitForBit) {
  PathFixture test;
  for (const bool watched : {true, false}) {
    std::vector<std::byte> into(kFrame);
    const std::vector<FrameRange> ranges = {{8192, 12288, 4096}, {kFrame - 4096, 4096, 32768}, {0, 4096, 0}};
    std::vector<bool> reported(kFrame / 4096);
    PathFixture::OnBytes on_bytes = [&](uint64_t offset, uint64_t n) {
      for (uint64_t at = offset; at < offset + n; at += 4096) reported[at / 4096] = true;
    };
    ASSERT_TRUE(test.Get(PathFixture::Answer(), into, ranges, watched ? on_bytes : nullptr).ok());
    const Bytes frame = test.Frame();
    for (const FrameRange& range : ranges) {
      EXPECT_TRUE(std::equal(frame.begin() + range.frame_offset,
                             frame.begin() + range.frame_offset + range.length,
                             into.begin() + range.dst_offset));
    }
    EXPECT_EQ(std::count(reported.begin(), reported.end(), true), watched ? 5 : 0);
    ASSERT_TRUE(test.Get(PathFixture::Answer(), into, {{0, kFrame, 0}}, watched ? on_bytes : nullptr).ok());
    EXPECT_TRUE(std::equal(frame.begin(), frame.end(), into.begin()));
  }
}

TEST(ShmPathTest, APlaceWithAnotherGenerationIsAMiss) {
  PathFixture test;
  std::vector<std::byte> into(kFrame);
  test.server.Generation(2).store(42);
  bool reported = false;
  const Status status =
      test.Get(PathFixture::Answer(), into, {{0, kFrame, 0}}, [&](uint64_t, uint64_t) { reported = true; });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_FALSE(reported);
}

TEST(ShmPathTest, AFrameThatChangesUnderTheCopyIsAMiss) {
  PathFixture test;
  std::vector<std::byte> into(kFrame);
  uint64_t reported = 0;
  const Status status = test.Get(PathFixture::Answer(), into, {{0, kFrame, 0}}, [&](uint64_t, uint64_t n) {
    reported += n;
    test.server.Generation(2).store(42);
    std::memset(test.server.pool->bytes().data() + kFrameOffset, 0, kFrame);
  });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  // The first step was right; nothing after it is called so.
  EXPECT_LT(reported, kFrame);
  EXPECT_GT(reported, 0U);
}

TEST(ShmPathTest, WrongAnswersEndTheGetAlone) {
  PathFixture test;
  std::vector<std::byte> into(kFrame + 4096);
  v1::GetResult outside = PathFixture::Answer();
  outside.mutable_place()->set_offset(StubServer::kPoolBytes + kTierPageBytes);
  EXPECT_EQ(test.Get(outside, into, {{0, kFrame, 0}}).code(), StatusCode::kDataLoss);
  v1::GetResult without = PathFixture::Answer();
  without.clear_place();
  EXPECT_EQ(test.Get(without, into, {{0, kFrame, 0}}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(test.Get(PathFixture::Answer(), into, {{kFrame, 4096, 0}}).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(test.Get(PathFixture::Answer(), into, {{0, kFrame, 0}}).ok());
}

TEST(ShmPathTest, ADestinationMayBeLongerThanItsFrame) {
  PathFixture test;
  std::vector<std::byte> into(kFrame + 8192);
  std::promise<void> landed;
  Landing landing;
  landing.memory = into;
  landing.ranges = {{0, into.size(), 0}};
  landing.is_watched = false;
  landing.on_bytes = [&](uint64_t offset, uint64_t n) {
    EXPECT_EQ(offset, 0U);  // one step, since nobody reads
    if (n == kFrame) landed.set_value();
  };
  ASSERT_TRUE(test.landings->Add(3, std::move(landing)).ok());
  test.path->OnGetResult(3, PathFixture::Answer());
  ASSERT_EQ(landed.get_future().wait_for(kLimit), std::future_status::ready);
  const Bytes frame = test.Frame();
  EXPECT_TRUE(std::equal(frame.begin(), frame.end(), into.begin()));
  EXPECT_EQ(test.landings->missing_bytes(), 8192U);
}

TEST(ShmPathTest, EveryPlaceIsGivenBackOnce) {
  PathFixture test;
  std::vector<std::byte> into(kFrame);
  EXPECT_TRUE(test.Get(PathFixture::Answer(11), into, {{0, kFrame, 0}}).ok());
  test.path->OnGetResult(77, PathFixture::Answer(12));  // of a get that has ended
  v1::GetResult outside = PathFixture::Answer(13);
  outside.set_frame_bytes(uint64_t{1} << 40);
  EXPECT_FALSE(test.Get(outside, into, {{0, kFrame, 0}}).ok());
  { EXPECT_TRUE(test.path->View(PathFixture::Answer(14)).ok()); }
  test.server.Generation(2).store(42);
  EXPECT_EQ(test.path->View(PathFixture::Answer(15)).status().code(), StatusCode::kNotFound);
  ASSERT_EQ(test.five_released.get_future().wait_for(kLimit), std::future_status::ready);
  const std::lock_guard lock(test.mutex);
  std::sort(test.released.begin(), test.released.end());
  EXPECT_EQ(test.released, (std::vector<uint64_t>{11, 12, 13, 14, 15}));
}

TEST(ShmPathTest, AViewTellsWhenItsFrameIsGone) {
  PathFixture test;
  const Result<ShmView> view = test.path->View(PathFixture::Answer());
  ASSERT_TRUE(view.ok());
  const Bytes frame = test.Frame();
  EXPECT_TRUE(std::equal(frame.begin(), frame.end(), view->bytes().begin(), view->bytes().end()));
  EXPECT_TRUE(view->IsStillValid());
  test.server.Generation(2).store(42);
  EXPECT_FALSE(view->IsStillValid());
  EXPECT_FALSE(ShmView().IsStillValid());
}

TEST(ShmPathTest, PutsAreCopiedIntoTheStagingArea) {
  PathFixture test;
  const BufferRef frame = MakeFrame(kFrame);
  v1::PutNeed need;
  need.set_transfer(5);
  need.set_staged(true);
  need.set_staging_offset(64 * 1024);
  std::promise<Status> sent;
  test.path->SendPut(need, frame, kFrame, [&](const Status& status) { sent.set_value(status); });
  EXPECT_TRUE(sent.get_future().get().ok());
  const Bytes staged = Bytes(test.server.staging->bytes()).subspan(64 * 1024, kFrame);
  EXPECT_TRUE(std::equal(staged.begin(), staged.end(), frame.frame().begin()));
  EXPECT_EQ(frame.use_count(), 1U);

  std::promise<Status> outside;
  need.set_staging_offset(StubServer::kStagingBytes - kFrame + 4096);
  test.path->SendPut(need, frame, kFrame, [&](const Status& status) { outside.set_value(status); });
  EXPECT_EQ(outside.get_future().get().code(), StatusCode::kDataLoss);
  std::promise<Status> unstaged;
  need.set_staged(false);
  test.path->SendPut(need, frame, kFrame, [&](const Status& status) { unstaged.set_value(status); });
  EXPECT_EQ(unstaged.get_future().get().code(), StatusCode::kResourceExhausted);
}

// Remembers what it was asked for.
struct OtherPath final : DataPath {
  std::string_view name() const override { return "other"; }
  Status status() const override { return OkStatus(); }
  bool uses_streams() const override { return true; }
  void OnGetResult(uint64_t, const v1::GetResult&) override {}
  void SendPut(const v1::PutNeed& need, BufferRef, uint64_t,
               std::function<void(const Status&)> sent) override {
    put = need.transfer();
    sent(OkStatus());
  }
  void CancelPut(uint64_t transfer) override { cancelled = transfer; }
  void Close() override { is_closed = true; }
  uint64_t put = 0;
  uint64_t cancelled = 0;
  bool is_closed = false;
};

TEST(ShmPathTest, PutsWithoutStagingTakeTheOtherPath) {
  const auto other = std::make_shared<OtherPath>();
  PathFixture test(2, other);
  v1::PutNeed need;
  need.set_transfer(8);
  Status sent = UnavailableError("not yet");
  test.path->SendPut(need, MakeFrame(4096), 4096, [&](const Status& status) { sent = status; });
  EXPECT_TRUE(sent.ok());
  EXPECT_EQ(other->put, 8U);
  test.path->CancelPut(8);
  EXPECT_EQ(other->cancelled, 8U);
  test.path->Close();
  EXPECT_TRUE(other->is_closed);
}

TEST(ShmPathTest, WhatWaitsIsCancelled) {
  PathFixture test(1);
  std::promise<void> entered;
  std::promise<void> leave;
  std::vector<std::byte> into(4096);
  Landing busy;
  busy.memory = into;
  busy.ranges = {{0, 4096, 0}};
  busy.on_bytes = [&](uint64_t, uint64_t) {
    entered.set_value();
    leave.get_future().wait();
  };
  ASSERT_TRUE(test.landings->Add(1, std::move(busy)).ok());
  test.path->OnGetResult(1, PathFixture::Answer());
  entered.get_future().wait();

  std::vector<std::byte> other(4096);
  Status waiting;
  Landing second;
  second.memory = other;
  second.ranges = {{0, 4096, 0}};
  second.on_end = [&](const Status& status) { waiting = status; };
  ASSERT_TRUE(test.landings->Add(2, std::move(second)).ok());
  test.path->OnGetResult(2, PathFixture::Answer());
  std::vector<StatusCode> sent(3, StatusCode::kUnknown);
  for (const uint64_t transfer : {0, 1, 2}) {
    if (transfer == 2) {
      test.path->CancelPut(1);
      EXPECT_EQ(sent, (std::vector{StatusCode::kUnknown, StatusCode::kCancelled, StatusCode::kUnknown}));
      test.path->Close();
    }
    v1::PutNeed need;
    need.set_transfer(transfer);
    need.set_staged(true);
    test.path->SendPut(need, MakeFrame(4096), 4096, [&, transfer](const Status& status) {
      sent[transfer] = status.code();
      if (transfer == 0) leave.set_value();  // Close waits for the copy that runs
    });
  }
  EXPECT_EQ(sent,
            (std::vector{StatusCode::kCancelled, StatusCode::kCancelled, StatusCode::kResourceExhausted}));
  EXPECT_EQ(waiting.code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace terrace::remote
