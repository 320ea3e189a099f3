// FrameStore: objects by id, erased and listed; and after Close.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/frame_fixture.h"
#include "tests/support/fault_backend.h"

namespace terrace {
namespace {

StatusCode CodeOf(const Status& status) { return status.code(); }

TEST(FrameEraseTest, EraseTakesOneObjectAndWhatHangsOnIt) {
  for (const EraseMode mode : {EraseMode::kErase, EraseMode::kEvict}) {
    FrameFixture fixture;
    fixture.OpenStore();
    const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
    const std::vector<TestFrame> frames = fixture.Frames(prompt);
    fixture.PutAll(frames);
    ASSERT_TRUE(fixture.store->Flush().ok());
    const std::vector<ObjectId> ids = {frames[1].id, {}, frames[1].id};
    const std::vector<Status> erased = fixture.store->Erase(ids, mode);
    ASSERT_EQ(erased.size(), 3u);
    EXPECT_TRUE(erased[0].ok()) << erased[0].ToString();
    EXPECT_EQ(CodeOf(erased[1]), StatusCode::kNotFound);
    EXPECT_EQ(CodeOf(erased[2]), StatusCode::kNotFound) << "of equal ids one is erased";
    EXPECT_EQ(fixture.store->Has({{frames[0].id, frames[1].id, frames[2].id}}),
              (std::vector<bool>{true, false, false}));
    EXPECT_EQ(fixture.MatchTokens(prompt), kTestChunk);
    ASSERT_TRUE(fixture.store->Flush().ok());
    fixture.OpenStore();
    EXPECT_EQ(fixture.MatchTokens(prompt), kTestChunk);
    EXPECT_TRUE(fixture.Put(frames[1]).ok()) << "and it can come again";
    EXPECT_EQ(fixture.MatchTokens(prompt), 2 * kTestChunk);
  }
}

// Evicted, but a crash may bring it back: an erase names it to the disk all the same.
TEST(FrameEraseTest, AnUnknownObjectIsErasedOnDisk) {
  FrameFixture fixture;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  {
    std::lock_guard lock(fixture.platters->mutex);
    fixture.platters->objects[frame.id] = {frame.meta, frame.bytes};
  }
  EXPECT_TRUE(fixture.store->Erase({{frame.id}}, EraseMode::kErase).at(0).ok());
  std::lock_guard lock(fixture.platters->mutex);
  EXPECT_TRUE(fixture.platters->objects.empty());
}

TEST(FrameEraseTest, AnEraseThatFailsIsTold) {
  FrameFixture fixture;
  FaultBackend* faults = nullptr;
  fixture.wrap_disk = [&](std::unique_ptr<Backend> disk) {
    auto wrapped = std::make_unique<FaultBackend>(std::move(disk), FaultOptions{});
    faults = wrapped.get();
    return wrapped;
  };
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  ASSERT_TRUE(fixture.Put(frame).ok());
  ASSERT_TRUE(fixture.store->Flush().ok());
  FaultOptions failing;
  failing.erase.error = 1;
  faults->SetOptions(failing);
  EXPECT_EQ(CodeOf(fixture.store->Erase({{frame.id}}, EraseMode::kErase).at(0)), StatusCode::kUnavailable);
  faults->SetOptions({});
}

TEST(FrameEraseTest, AnEraseOvertakesAWrite) {
  FrameFixture fixture;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  {
    std::lock_guard lock(fixture.platters->mutex);
    fixture.platters->holding_puts = true;
  }
  ASSERT_TRUE(fixture.Put(frame).ok());
  ASSERT_EQ(fixture.platters->num_held(), 1u);
  std::thread release([&] {
    // The erase waits for the write in flight, and only then is sent.
    while (fixture.store->Has({{frame.id}})[0]) std::this_thread::yield();
    fixture.platters->ReleaseHeld();
  });
  EXPECT_TRUE(fixture.store->Erase({{frame.id}}, EraseMode::kErase).at(0).ok());
  release.join();
  std::lock_guard lock(fixture.platters->mutex);
  EXPECT_TRUE(fixture.platters->objects.empty());
}

TEST(FrameEraseTest, ClearDropsEverythingButRoots) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  fixture.PutAll(fixture.Frames(prompt));
  ASSERT_TRUE(fixture.store->Clear().ok());
  EXPECT_EQ(fixture.MatchTokens(prompt), 0u);
  EXPECT_TRUE(fixture.store->Scan("", 10, ScanDetail::kPlaces)->objects.empty());
  fixture.PutAll(fixture.Frames(prompt));
  EXPECT_EQ(fixture.MatchTokens(prompt), prompt.size());
}

TEST(FrameEraseTest, AScanSeesEachObjectOnceOnWhateverTiersItLies) {
  for (const size_t limit : {size_t{1}, size_t{3}, size_t{1000}}) {
    FrameFixture fixture;
    fixture.OpenStore(TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}}));
    const std::vector<Token> prompt = TestTokens(7 * kTestChunk + 3);
    std::map<ObjectId, TestFrame> put;
    for (const ObjectPart part : {ObjectPart{0, 0}, ObjectPart{1, 0}}) {
      for (TestFrame& frame : fixture.Frames(prompt, 0, kTestPayload, part)) {
        if (part.group == 1) {
          frame.meta.priority = -3;
          frame.meta.expiry = WallTime(std::chrono::seconds(5));
        }
        ASSERT_TRUE(fixture.Put(frame).ok());
        put.emplace(frame.id, std::move(frame));
      }
    }
    ASSERT_TRUE(fixture.store->Flush().ok());
    for (const ScanDetail detail : {ScanDetail::kContents, ScanDetail::kPlaces}) {
      std::map<ObjectId, int> seen;
      std::string cursor;
      do {
        const Result<ScanPage> page = fixture.store->Scan(cursor, limit, detail);
        ASSERT_TRUE(page.ok());
        EXPECT_LE(page->objects.size(), limit);
        for (const ScannedObject& object : page->objects) {
          ++seen[object.id];
          ASSERT_TRUE(put.contains(object.id));
          const ObjectMeta& meta = put.at(object.id).meta;
          EXPECT_EQ(object.meta.root, meta.root);
          EXPECT_EQ(object.meta.parent, meta.parent);
          EXPECT_EQ(object.meta.first_token, meta.first_token);
          EXPECT_EQ(object.meta.frame_bytes, meta.frame_bytes);
          EXPECT_EQ(object.meta.payload_bytes, meta.payload_bytes);
          EXPECT_EQ(object.meta.priority, meta.priority);
          EXPECT_EQ(object.meta.expiry, meta.expiry);
          if (detail == ScanDetail::kContents) {
            ASSERT_TRUE(object.meta.content);
            EXPECT_EQ(*object.meta.content, *meta.content);
          }
        }
        cursor = page->next_cursor;
      } while (!cursor.empty());
      EXPECT_EQ(seen.size(), put.size());
      for (const auto& [id, times] : seen) EXPECT_EQ(times, 1);
    }
    EXPECT_EQ(CodeOf(fixture.store->Scan("", 0, ScanDetail::kPlaces).status()), StatusCode::kInvalidArgument);
    EXPECT_EQ(CodeOf(fixture.store->Scan("what", 1, ScanDetail::kPlaces).status()),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(CodeOf(fixture.store->Scan(std::string(12, '\xff'), 1, ScanDetail::kPlaces).status()),
              StatusCode::kInvalidArgument);
  }
}

// Where the index has dropped tokens and items, the host tier's frame has them.
TEST(FrameEraseTest, AScanReadsContentsThatTheIndexDropped) {
  FrameFixture fixture;
  fixture.options.index_bytes = 0;
  fixture.OpenStore();
  const std::vector<TestFrame> frames = fixture.Frames(TestTokens(3 * kTestChunk));
  fixture.PutAll(frames);
  ASSERT_LT(fixture.manager->Stats().index_content_bytes, 3 * kTestChunk * sizeof(Token));
  const Result<ScanPage> page = fixture.store->Scan("", 10, ScanDetail::kContents);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->objects.size(), 3u);
  for (const ScannedObject& object : page->objects) EXPECT_TRUE(object.meta.content);
}

TEST(FrameEraseTest, UsageIsThatOfTheTiers) {
  FrameFixture fixture;
  fixture.OpenStore();
  fixture.PutAll(fixture.Frames(TestTokens(3 * kTestChunk)));
  ASSERT_TRUE(fixture.store->Flush().ok());
  const std::vector<TierUsage> usage = fixture.store->Usage();
  ASSERT_EQ(usage.size(), 2u);
  for (const TierUsage& tier : usage) {
    EXPECT_EQ(tier.objects, 3u) << tier.name;
    EXPECT_GE(tier.used_bytes, 3 * fixture.Frame()) << tier.name;
    EXPECT_GE(tier.capacity_bytes, tier.used_bytes) << tier.name;
  }
}

TEST(FrameEraseTest, AfterCloseEveryCallSaysSo) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  const TestFrame frame = fixture.Frames(prompt)[0];
  ASSERT_TRUE(fixture.Put(frame).ok());
  PrefixQuery query = fixture.Query(prompt);
  query.lease = std::chrono::seconds(10);
  const std::string token = fixture.store->Match(query).lease_token;
  ASSERT_FALSE(token.empty());
  std::shared_ptr<ArrivingFrame> arriving = *fixture.Send(fixture.Frames(TestTokens(kTestChunk, 7))[0]);
  const FetchResult held = fixture.FetchOne(frame.id);
  fixture.manager.reset();
  constexpr StatusCode kClosed = StatusCode::kFailedPrecondition;
  FrameStore& store = *fixture.store;
  EXPECT_EQ(CodeOf(store.PutRoot(*ComputeRoot(TestSpec(), {}, "x"))), kClosed);
  EXPECT_EQ(CodeOf(store.Roots().status()), kClosed);
  EXPECT_EQ(CodeOf(store.Match(query).status), kClosed);
  EXPECT_FALSE(store.Release(token));
  EXPECT_EQ(store.Has({{frame.id}}), std::vector<bool>{false});
  EXPECT_EQ(CodeOf(fixture.FetchOne(frame.id).status), kClosed);
  EXPECT_EQ(CodeOf(store.Allocate(4096).status()), kClosed);
  EXPECT_EQ(CodeOf(store.Publish(frame.id, frame.meta, arriving)), kClosed);
  EXPECT_EQ(CodeOf(store.Erase({{frame.id}}, EraseMode::kErase).at(0)), kClosed);
  EXPECT_EQ(CodeOf(store.Clear()), kClosed);
  EXPECT_EQ(CodeOf(store.Flush()), kClosed);
  EXPECT_EQ(CodeOf(store.Scan("", 1, ScanDetail::kPlaces).status()), kClosed);
  EXPECT_EQ(CodeOf(store.Pin("name", query).status()), kClosed);
  EXPECT_FALSE(store.Unpin("name"));
  EXPECT_TRUE(store.Usage().empty());
  EXPECT_TRUE(FrameFixture::Holds(held, frame)) << "what was handed out stays";
}

}  // namespace
}  // namespace terrace
