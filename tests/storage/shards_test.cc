// Eight tensor-parallel ranks over one index: hashed and looked up once, loaded part by part.
#include <gtest/gtest.h>

#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

constexpr uint16_t kRanks = 8;
constexpr uint64_t kChunks = 4;

KvSpec EightRanks() {
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  const PlaneSpec k{PlaneKind::kK, DType::kF16, 8, 128, 2048};
  const PlaneSpec v{PlaneKind::kV, DType::kF16, 8, 128, 2048};
  spec.layers.assign(4, LayerSpec{.group = 0, .planes = {k, v}});
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    spec.shards.push_back({.tensor_rank = rank, .tensor_size = kRanks, .layer_begin = 0, .layer_end = 4});
  return spec;
}

std::vector<ObjectPart> AllRanks() {
  std::vector<ObjectPart> parts;
  for (uint16_t rank = 0; rank < kRanks; ++rank) parts.push_back({0, rank});
  return parts;
}

struct ShardsFixture : ManagerFixture {
  KvSpec spec = EightRanks();

  ShardsFixture() { Open(spec); }

  // Tokens [begin, end) of one rank's part.
  size_t StoreRank(uint16_t rank, const std::vector<Token>& prompt, TokenRange range) {
    const ObjectPart part{0, rank};
    const auto sizes = [&](TokenRange tokens, ObjectPart p) -> Result<uint64_t> {
      return spec.PayloadBytes(p, static_cast<uint32_t>(tokens.end - tokens.begin));
    };
    return StorePrompt(*manager, root, prompt, range, sizes, {&part, 1});
  }

  void StoreAll(const std::vector<Token>& prompt) {
    for (uint16_t rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(StoreRank(rank, prompt, {0, prompt.size()}), kChunks) << rank;
    EXPECT_TRUE(manager->Flush().ok());
  }
};

TEST(ShardsTest, OneEntryPerChunkAndOneLookupForEightRanks) {
  ShardsFixture f;
  const std::vector<Token> prompt = TestTokens(kChunks * kTestChunk);
  f.StoreAll(prompt);
  EXPECT_EQ(f.manager->Stats().index_entries, kChunks);
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, kChunks * kRanks);
  Result<Lease> lease = f.manager->Lookup(f.root, prompt, {.parts = AllRanks()});
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->matched_tokens(), prompt.size());
  EXPECT_EQ(lease->num_objects(), kChunks * kRanks);
  EXPECT_EQ(f.LoadAll(prompt, AllRanks()), prompt.size());
}

TEST(ShardsTest, TheCommonPrefixEndsWhereOneRankEnds) {
  ShardsFixture f;
  const std::vector<Token> prompt = TestTokens(kChunks * kTestChunk);
  for (uint16_t rank = 0; rank < kRanks; ++rank)
    f.StoreRank(rank, prompt, {0, rank == 5 ? 2 * kTestChunk : prompt.size()});
  ASSERT_TRUE(f.manager->Flush().ok());
  Result<Lease> all = f.manager->Lookup(f.root, prompt, {.parts = AllRanks()});
  EXPECT_EQ(all->matched_tokens(), 2 * kTestChunk);
  EXPECT_EQ(all->num_objects(), 2 * kRanks);
  Result<Lease> one = f.manager->Lookup(f.root, prompt, {.parts = {{0, 4}}});
  EXPECT_EQ(one->matched_tokens(), prompt.size()) << "a rank by itself is not kept by the others";
}

TEST(ShardsTest, LayersOfEightRanksComeInOrder) {
  ShardsFixture f;
  const std::vector<Token> prompt = TestTokens(kChunks * kTestChunk);
  f.StoreAll(prompt);
  f.Open(f.spec);  // everything lies on the disk
  Result<Lease> lease = f.manager->Lookup(f.root, prompt, {.parts = AllRanks()});
  ASSERT_TRUE(lease.ok());
  ASSERT_EQ(lease->num_objects(), kChunks * kRanks);
  const uint64_t payload_bytes = f.spec.PayloadBytes({0, 0}, kTestChunk);
  std::vector<std::vector<std::byte>> payloads(kChunks * kRanks, std::vector<std::byte>(payload_bytes));
  const std::vector<MutableBytes> memory(payloads.begin(), payloads.end());
  LoadHandle load =
      f.manager->Load(*lease, {0, prompt.size()}, {.memory = memory, .views = {}}, LoadOrder::kLayerMajor);
  for (uint32_t layer = 0; layer < f.spec.layers.size(); ++layer)
    ASSERT_TRUE(load.WaitLayer(layer).ok()) << layer;
  const LoadReport report = load.Wait();
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_layers, f.spec.layers.size());
  EXPECT_EQ(report.loaded_tokens, prompt.size());
  TokenHasher hasher(f.root, kTestChunk);
  ASSERT_TRUE(hasher.Append(prompt).ok());
  for (uint64_t i = 0; i < kChunks * kRanks; ++i) {
    const ObjectId id{hasher.full_keys()[i / kRanks], {0, static_cast<uint16_t>(i % kRanks)}};
    EXPECT_TRUE(ExpectedPayload(id).Equals(payloads[i])) << i;
  }
}

}  // namespace
}  // namespace terrace
