// What a manager tells of its objects, and what other processes see of its pool.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/storage/frame_fixture.h"

namespace terrace {
namespace {

class EventList final : public KvEventSink {
 public:
  void Record(KvEvent event) noexcept override {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<KvEvent> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<KvEvent> events_;
};

TEST(KvEventTest, ComeInOrderWithNothingMissing) {
  FrameFixture fixture;
  auto list = std::make_shared<EventList>();
  fixture.options.events = list;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  fixture.PutAll(frames);
  ASSERT_TRUE(fixture.store->Flush().ok());
  std::vector<KvEvent> events = list->Take();
  ASSERT_EQ(events.size(), 3u) << "the second tier that has it is no event";
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].kind, KvEventKind::kStored);
    EXPECT_EQ(events[i].id, frames[i].id);
    EXPECT_EQ(events[i].root, fixture.root);
    EXPECT_EQ(events[i].parent, frames[i].meta.parent);
    EXPECT_EQ(events[i].first_token, frames[i].meta.first_token);
    ASSERT_TRUE(events[i].content);
    EXPECT_EQ(*events[i].content, *frames[i].meta.content);
  }
  // One is erased, and what hangs on it goes along.
  ASSERT_TRUE(fixture.store->Erase({{frames[1].id}}, EraseMode::kErase).at(0).ok());
  events = list->Take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, KvEventKind::kRemoved);
  EXPECT_EQ(events[0].id, frames[1].id);
  EXPECT_EQ(events[0].parent, frames[0].id.key);
  EXPECT_EQ(events[1].id, frames[2].id);
  EXPECT_EQ(events[1].kind, KvEventKind::kRemoved);
  ASSERT_TRUE(fixture.Put(frames[1]).ok());
  ASSERT_TRUE(fixture.store->Clear().ok());
  ASSERT_TRUE(fixture.Put(frames[0]).ok());
  events = list->Take();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, KvEventKind::kStored);
  EXPECT_EQ(events[1].kind, KvEventKind::kCleared);
  EXPECT_EQ(events[1].id, ObjectId{});
  EXPECT_EQ(events[2].kind, KvEventKind::kStored);
}

// A router that applies the events knows exactly what is stored, under evictions on both tiers and stores of
// an engine too.
TEST(KvEventTest, AddUpToWhatIsStored) {
  FrameFixture fixture;
  auto list = std::make_shared<EventList>();
  fixture.options.events = list;
  fixture.options.pool_bytes = 2 << 20;
  fixture.disk_bytes = 4 << 20;
  fixture.OpenStore();
  for (Token seed = 1; seed < 60; ++seed) {
    const std::vector<Token> prompt = TestTokens(2 * kTestChunk, seed);
    if (seed % 2 == 0) {
      fixture.Store(prompt);
    } else {
      for (const TestFrame& frame : fixture.Frames(prompt)) {
        if (!fixture.Put(frame).ok()) break;
      }
    }
    if (seed % 7 == 0) {
      EXPECT_TRUE(fixture.store->Erase({{fixture.Frames(prompt)[1].id}}, EraseMode::kEvict).at(0).code() !=
                  StatusCode::kInternal);
    }
    ASSERT_TRUE(fixture.store->Flush().ok());
  }
  std::map<ObjectId, int> known;
  size_t removed = 0;
  for (const KvEvent& event : list->Take()) {
    int& present = known[event.id];
    if (event.kind == KvEventKind::kStored) {
      EXPECT_EQ(present++, 0) << "stored twice";
    } else {
      EXPECT_EQ(present--, 1) << "removed what was not there";
      ++removed;
    }
  }
  EXPECT_GT(removed, 0u) << "the test needs evictions";
  std::map<ObjectId, int> stored;
  const Result<ScanPage> page = fixture.store->Scan("", 10'000, ScanDetail::kPlaces);
  ASSERT_TRUE(page.ok());
  for (const ScannedObject& object : page->objects) stored[object.id] = 1;
  std::erase_if(known, [](const auto& object) { return object.second == 0; });
  EXPECT_EQ(known, stored);
}

// A mapping of a descriptor, as another process has it.
class Mapped {
 public:
  Mapped(int fd, uint64_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  }
  ~Mapped() {
    if (is_mapped()) munmap(base_, bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  bool is_mapped() const { return base_ != MAP_FAILED; }
  const std::byte* data() const { return static_cast<const std::byte*>(base_); }
  void* base() const { return base_; }
  uint64_t GenerationOf(const SharedPlace& place) const {
    uint64_t generation = 0;
    const uint64_t unit = (place.frame_offset - kTierPageBytes) / kSharedPoolUnitBytes;
    std::memcpy(&generation, data() + unit * sizeof(generation), sizeof(generation));
    return generation;
  }

 private:
  void* base_;
  uint64_t bytes_;
};

TEST(SharedPoolTest, AnotherMappingSeesTheFrameAndWhenItIsGone) {
  FrameFixture fixture;
  fixture.with_disk = false;
  fixture.options.share_pool = true;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  ASSERT_TRUE(fixture.Put(frame).ok());
  const std::optional<SharedPool> pool = fixture.store->shared_pool();
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->pool_bytes, fixture.options.pool_bytes);
  EXPECT_EQ(pool->generations_bytes, fixture.options.pool_bytes / kSharedPoolUnitBytes * 8);
  const Mapped bytes(pool->pool_fd, pool->pool_bytes);
  const Mapped generations(pool->generations_fd, pool->generations_bytes);
  ASSERT_TRUE(bytes.is_mapped() && generations.is_mapped());
  FetchResult fetched = fixture.FetchOne(frame.id);
  const std::optional<SharedPlace> place = fixture.store->Locate(fetched.frame);
  ASSERT_TRUE(place);
  EXPECT_EQ(std::memcmp(bytes.data() + place->frame_offset, frame.bytes.data(), frame.bytes.size()), 0);
  EXPECT_EQ(generations.GenerationOf(*place), place->generation);
  ASSERT_TRUE(fixture.store->Erase({{frame.id}}, EraseMode::kEvict).at(0).ok());
  EXPECT_EQ(generations.GenerationOf(*place), place->generation) << "the buffer is held";
  fetched.frame.Reset();
  EXPECT_NE(generations.GenerationOf(*place), place->generation) << "given back";
  // The same memory again is another place.
  ASSERT_TRUE(fixture.Put(frame).ok());
  const FetchResult again = fixture.FetchOne(frame.id);
  const std::optional<SharedPlace> next = fixture.store->Locate(again.frame);
  ASSERT_TRUE(next);
  EXPECT_FALSE(next->frame_offset == place->frame_offset && next->generation == place->generation);
}

TEST(SharedPoolTest, NobodyElseCanWriteToIt) {
  FrameFixture fixture;
  fixture.options.share_pool = true;
  fixture.OpenStore();
  const std::optional<SharedPool> pool = fixture.store->shared_pool();
  ASSERT_TRUE(pool);
  const std::vector<std::pair<int, uint64_t>> files = {{pool->pool_fd, pool->pool_bytes},
                                                       {pool->generations_fd, pool->generations_bytes}};
  for (const auto& [fd, size] : files) {
    EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
    const Mapped mapped(fd, size);
    ASSERT_TRUE(mapped.is_mapped());
    EXPECT_NE(mprotect(mapped.base(), size, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(errno, EACCES);
    EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_EQ(errno, EPERM);
    EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0) << "the seals are final";
  }
  // The manager itself goes on writing.
  EXPECT_TRUE(fixture.Put(fixture.Frames(TestTokens(kTestChunk))[0]).ok());
}

TEST(SharedPoolTest, IsThereOnlyWhenAskedFor) {
  FrameFixture fixture;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  ASSERT_TRUE(fixture.Put(frame).ok());
  EXPECT_FALSE(fixture.store->shared_pool());
  EXPECT_FALSE(fixture.store->Locate(fixture.FetchOne(frame.id).frame));
  FrameFixture shared;
  shared.options.share_pool = true;
  shared.OpenStore();
  EXPECT_FALSE(shared.store->Locate(fixture.FetchOne(frame.id).frame)) << "a buffer of another pool";
  EXPECT_FALSE(shared.store->Locate({}));
  shared.options.pool_bytes = 0;
  shared.OpenStore();
  EXPECT_FALSE(shared.store->shared_pool()) << "of nothing nothing is shared";
}

}  // namespace
}  // namespace terrace
