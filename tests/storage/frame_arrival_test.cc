// FrameStore: what is published of what a peer sends, and what is not.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/frame_fixture.h"

namespace terrace {
namespace {

StatusCode CodeOf(const Status& status) { return status.code(); }

TEST(FrameArrivalTest, BytesThatAreMissingAreNamed) {
  FrameFixture fixture;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  std::shared_ptr<ArrivingFrame> arriving = *fixture.store->Allocate(frame.bytes.size());
  ASSERT_EQ(arriving->bytes().size(), frame.bytes.size());
  std::memcpy(arriving->bytes().data(), frame.bytes.data(), frame.bytes.size());
  EXPECT_EQ(CodeOf(fixture.store->Publish(frame.id, frame.meta, arriving)), StatusCode::kFailedPrecondition);
  arriving->MarkPresent(0, 4096);
  arriving->MarkPresent(8192, frame.bytes.size() - 8192);
  EXPECT_EQ(CodeOf(fixture.store->Publish(frame.id, frame.meta, arriving)), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fixture.store->Has({{frame.id}}), std::vector<bool>{false});
  arriving->MarkPresent(4096, 4096);
  EXPECT_TRUE(fixture.store->Publish(frame.id, frame.meta, arriving).ok());
  EXPECT_EQ(fixture.store->Has({{frame.id}}), std::vector<bool>{true});
  EXPECT_EQ(CodeOf(fixture.store->Publish(frame.id, frame.meta, arriving)), StatusCode::kFailedPrecondition)
      << "a frame is published once";
}

TEST(FrameArrivalTest, PartsArriveFromSeveralThreadsInAnyOrder) {
  FrameFixture fixture;
  fixture.options.pool_bytes = 32 << 20;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk), 0, 5 << 20)[0];
  std::shared_ptr<ArrivingFrame> arriving = *fixture.store->Allocate(frame.bytes.size());
  constexpr size_t kThreads = 4;
  constexpr size_t kPart = 10'000;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const size_t parts = (frame.bytes.size() + kPart - 1) / kPart;
      for (size_t k = parts; k-- > 0;) {
        if (k % kThreads != t) continue;
        const size_t at = k * kPart;
        const size_t n = std::min(kPart, frame.bytes.size() - at);
        std::memcpy(arriving->bytes().data() + at, frame.bytes.data() + at, n);
        arriving->MarkPresent(at, n);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(fixture.store->Publish(frame.id, frame.meta, arriving).ok());
  EXPECT_TRUE(FrameFixture::Holds(fixture.FetchOne(frame.id), frame));
}

TEST(FrameArrivalTest, TooManyGapsAreRefusedInsteadOfRemembered) {
  FrameFixture fixture;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  std::shared_ptr<ArrivingFrame> arriving = *fixture.store->Allocate(frame.bytes.size());
  std::memcpy(arriving->bytes().data(), frame.bytes.data(), frame.bytes.size());
  for (size_t i = 0; i <= 4096; ++i) arriving->MarkPresent(1 + 2 * i, 1);
  arriving->MarkPresent(0, frame.bytes.size());
  EXPECT_EQ(CodeOf(fixture.store->Publish(frame.id, frame.meta, arriving)), StatusCode::kDataLoss);
}

TEST(FrameArrivalTest, WrongFramesAreRefusedWithTheReason) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  const TestFrame right = fixture.Frames(prompt)[0];
  const auto refused = [&](const TestFrame& frame, std::string_view why) {
    const Status status = fixture.Put(frame);
    EXPECT_EQ(CodeOf(status), StatusCode::kDataLoss) << why << ": " << status.ToString();
    EXPECT_NE(status.ToString().find(why), std::string::npos) << status.ToString();
  };
  TestFrame wrong = right;
  wrong.bytes[60'000] ^= std::byte{4};
  refused(wrong, "checksum");
  wrong = right;
  wrong.bytes[100] ^= std::byte{4};
  refused(wrong, "header");
  wrong = right;
  wrong.id.key.bytes[3] ^= std::byte{1};
  refused(wrong, "another object");
  wrong = right;
  wrong.id.part.shard = 3;
  refused(wrong, "another object");
  wrong = right;
  wrong.meta.root.bytes[0] ^= std::byte{1};
  refused(wrong, "another root");
  wrong = right;
  wrong.meta.parent.bytes[0] ^= std::byte{1};
  refused(wrong, "another parent");
  wrong = right;
  wrong.meta.first_token += kTestChunk;
  refused(wrong, "another place");
  wrong = right;
  wrong.meta.content = std::make_shared<const ChunkContent>();
  refused(wrong, "other tokens");
  wrong = right;
  wrong.meta.payload_bytes += 1;
  refused(wrong, "another length");
  wrong = right;
  wrong.meta.division = 7;
  refused(wrong, "division");
  wrong = right;
  wrong.meta.flags = 1;
  refused(wrong, "flags");
  wrong = right;
  wrong.header.cipher = 1;
  wrong.Seal();
  refused(wrong, "codec");
  wrong = right;
  wrong.header.key.bytes[0] ^= std::byte{1};  // a key that is not that of its tokens
  wrong.Seal();
  refused(wrong, "key is not");
  // What the spec says of chunks.
  refused(MakeFrame(fixture.root, fixture.root, 0, SliceContent(TokenView(prompt), {0, kTestChunk + 1})),
          "17 tokens");
  refused(MakeFrame(fixture.root, fixture.root, 5, SliceContent(TokenView(prompt), {0, kTestChunk})),
          "begins at token 5");
  refused(MakeFrame(fixture.root, right.id.key, 0, SliceContent(TokenView(prompt), {0, kTestChunk})),
          "does not hang on its root");
  EXPECT_EQ(fixture.MatchTokens(prompt), 0u);
  EXPECT_TRUE(fixture.Put(right).ok());
}

TEST(FrameArrivalTest, ACanonicalPayloadIsMeasured) {
  FrameFixture fixture;
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  PlaneSpec plane{.heads = 1, .head_dim = 32, .bytes_per_token = 64};
  spec.layers.push_back({.group = 0, .planes = {plane}});
  fixture.OpenStore(spec);
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  EXPECT_EQ(CodeOf(fixture.Put(fixture.Frames(prompt, 0, 64 * kTestChunk + 1)[0])), StatusCode::kDataLoss);
  EXPECT_TRUE(fixture.Put(fixture.Frames(prompt, 0, 64 * kTestChunk)[0]).ok());
}

TEST(FrameArrivalTest, WhatStandsElsewhereInAPromptIsRefused) {
  FrameFixture fixture;
  fixture.options.runs_stand_alone = true;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  fixture.PutAll({frames[0], frames[1]});
  // The key says nothing of the place: the same chunk, told to be elsewhere.
  TestFrame moved = frames[2];
  moved.header.first_token = 5 * kTestChunk;
  moved.Seal();
  EXPECT_EQ(CodeOf(fixture.Put(moved)), StatusCode::kDataLoss);
  TestFrame again = frames[1];
  again.header.first_token = kRunChunks * kTestChunk;
  again.Seal();
  EXPECT_EQ(CodeOf(fixture.Put(again)), StatusCode::kDataLoss);
  // Nothing hangs on a chunk that is not full.
  const std::vector<TestFrame> tail = fixture.Frames(TestTokens(kTestChunk + 3, 9));
  fixture.PutAll(tail);
  EXPECT_EQ(CodeOf(fixture.Put(MakeFrame(fixture.root, tail[1].id.key, 2 * kTestChunk,
                                         SliceContent(TokenView(prompt), {0, kTestChunk})))),
            StatusCode::kDataLoss);
  EXPECT_TRUE(fixture.Put(frames[2]).ok());
}

TEST(FrameArrivalTest, TheFirstPublishedWins) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  const TestFrame first = fixture.Frames(prompt)[0];
  TestFrame second = fixture.Frames(prompt, 0, kTestPayload + 8192)[0];
  ASSERT_EQ(first.id, second.id);
  ASSERT_TRUE(fixture.Put(first).ok());
  EXPECT_EQ(CodeOf(fixture.Put(second)), StatusCode::kAlreadyExists);
  EXPECT_EQ(CodeOf(fixture.Put(first)), StatusCode::kAlreadyExists);
  EXPECT_TRUE(FrameFixture::Holds(fixture.FetchOne(first.id), first));
  // Of another division into shards it takes the place: of no use to who stores now.
  second.header.division = 5;
  second.Seal();
  ASSERT_TRUE(fixture.store->Flush().ok());
  ASSERT_TRUE(fixture.Put(second).ok());
  EXPECT_TRUE(FrameFixture::Holds(fixture.FetchOne(first.id), second));
  PrefixQuery query = fixture.Query(prompt);
  EXPECT_EQ(fixture.store->Match(query).matched_tokens, kTestChunk) << "of any division";
  query.division = 0;
  EXPECT_EQ(fixture.store->Match(query).matched_tokens, 0u);
  query.division = 5;
  EXPECT_EQ(fixture.store->Match(query).matched_tokens, kTestChunk);
}

TEST(FrameArrivalTest, RootAndParentMustBeKnown) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  EXPECT_EQ(CodeOf(fixture.Put(frames[1])), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fixture.manager->Stats().index_entries, 0u);
  const RootRecord other = *ComputeRoot(TestSpec(), {}, "salt");
  const TestFrame unknown =
      MakeFrame(other.root, other.root, 0, SliceContent(TokenView(prompt), {0, kTestChunk}));
  EXPECT_EQ(CodeOf(fixture.Put(unknown)), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(fixture.store->PutRoot(other).ok());
  EXPECT_TRUE(fixture.Put(unknown).ok());
  fixture.PutAll(frames);
}

TEST(FrameArrivalTest, RootsAreTakenAtTheirWordOnce) {
  FrameFixture fixture;
  fixture.OpenStore();
  RootRecord record = *ComputeRoot(TestSpec(), {}, "salt");
  EXPECT_TRUE(fixture.store->PutRoot(record).ok());
  EXPECT_TRUE(fixture.store->PutRoot(record).ok()) << "an equal record is free";
  EXPECT_EQ(fixture.store->Roots()->size(), 2u);
  RootRecord other = record;
  other.adapters = std::string(36, 'a');
  EXPECT_EQ(CodeOf(fixture.store->PutRoot(other)), StatusCode::kInvalidArgument);
  other = record;
  other.root.bytes[0] ^= std::byte{1};
  other.spec = "no spec";
  EXPECT_EQ(CodeOf(fixture.store->PutRoot(other)), StatusCode::kInvalidArgument);
  ASSERT_TRUE(fixture.store->Flush().ok());
  fixture.OpenStore();
  const std::vector<RootRecord> kept = *fixture.store->Roots();
  EXPECT_NE(std::find(kept.begin(), kept.end(), record), kept.end()) << "kept in the durable tier";
}

TEST(FrameArrivalTest, RecordsOfRootsAreBoundedInBytes) {
  FrameFixture fixture;
  fixture.OpenStore();
  RootRecord record = *ComputeRoot(TestSpec(), {}, "salt");
  record.adapters = std::string(size_t{64} << 20, 'a');
  EXPECT_EQ(CodeOf(fixture.store->PutRoot(record)), StatusCode::kResourceExhausted);
  EXPECT_EQ(fixture.store->Roots()->size(), 1u);
  record.adapters.resize(size_t{1} << 20);
  EXPECT_TRUE(fixture.store->PutRoot(record).ok());
}

TEST(FrameArrivalTest, RunsStandAloneWhereTheyMay) {
  const std::vector<Token> prompt = TestTokens((kRunChunks + 2) * kTestChunk);
  for (const bool stand_alone : {false, true}) {
    SCOPED_TRACE(stand_alone);
    FrameFixture fixture;
    fixture.options.pool_bytes = 16 << 20;
    fixture.options.runs_stand_alone = stand_alone;
    fixture.OpenStore();
    const std::vector<TestFrame> run = fixture.Frames(prompt, kRunChunks * kTestChunk);
    EXPECT_EQ(CodeOf(fixture.Put(run[1])), StatusCode::kFailedPrecondition) << "inside a run";
    EXPECT_EQ(CodeOf(fixture.Put(run[0])), stand_alone ? StatusCode::kOk : StatusCode::kFailedPrecondition);
    if (!stand_alone) continue;
    EXPECT_TRUE(fixture.Put(run[1]).ok());
    EXPECT_EQ(fixture.MatchTokens(prompt, kRunChunks * kTestChunk), 2 * kTestChunk);
    EXPECT_EQ(fixture.MatchTokens(prompt), 0u);
    ASSERT_TRUE(fixture.store->Flush().ok());
    fixture.OpenStore();
    EXPECT_EQ(fixture.MatchTokens(prompt, kRunChunks * kTestChunk), 2 * kTestChunk) << "after a restart";
    EXPECT_TRUE(FrameFixture::Holds(fixture.FetchOne(run[1].id), run[1]));
  }
}

TEST(FrameArrivalTest, ARunsKeyGoesWithEachPut) {
  FrameFixture fixture;
  fixture.options.pool_bytes = 16 << 20;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens((kRunChunks + 2) * kTestChunk);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  fixture.PutAll(frames);
  ASSERT_TRUE(fixture.store->Flush().ok());
  std::lock_guard lock(fixture.platters->mutex);
  for (size_t i = 0; i < frames.size(); ++i) {
    const ChunkKey& run_key = fixture.platters->objects.at(frames[i].id).meta.run_key;
    EXPECT_EQ(run_key, frames[RunBegin(i)].id.key) << i;
  }
}

TEST(FrameArrivalTest, AFullPoolRefusesAndDoesNotWait) {
  FrameFixture fixture;
  fixture.options.pool_bytes = 1 << 20;
  fixture.OpenStore();
  EXPECT_EQ(CodeOf(fixture.store->Allocate(0).status()), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(fixture.store->Allocate(5000).status()), StatusCode::kInvalidArgument);
  const uint64_t largest = fixture.store->largest_frame_bytes();
  EXPECT_EQ(largest, (1 << 20) - kTierPageBytes);
  EXPECT_EQ(CodeOf(fixture.store->Allocate(largest + 4096).status()), StatusCode::kInvalidArgument);
  std::vector<std::shared_ptr<ArrivingFrame>> held;
  Status status;
  while (held.size() < 100) {
    Result<std::shared_ptr<ArrivingFrame>> frame = fixture.store->Allocate(128 << 10);
    status = frame.status();
    if (!frame.ok()) break;
    held.push_back(*frame);
  }
  EXPECT_EQ(CodeOf(status), StatusCode::kResourceExhausted);
  held.pop_back();
  EXPECT_TRUE(fixture.store->Allocate(128 << 10).ok());
}

TEST(FrameArrivalTest, WithoutATierNothingIsKept) {
  FrameFixture fixture;
  fixture.with_host = fixture.with_disk = false;
  fixture.OpenStore();
  EXPECT_EQ(CodeOf(fixture.Put(fixture.Frames(TestTokens(kTestChunk))[0])), StatusCode::kResourceExhausted);
  EXPECT_EQ(fixture.manager->Stats().index_entries, 0u);
}

TEST(FrameArrivalTest, AFrameOfAnotherStoreIsRefused) {
  FrameFixture one;
  FrameFixture other;
  one.OpenStore();
  other.OpenStore();
  const TestFrame frame = one.Frames(TestTokens(kTestChunk))[0];
  EXPECT_EQ(CodeOf(one.store->Publish(frame.id, frame.meta, *other.Send(frame))),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(one.store->Publish(frame.id, frame.meta, nullptr)), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
