#include "connectors/llamacpp/scratch_sequence.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

using Blob = std::vector<std::byte>;

Blob TakeChunk(ScratchSequence& scratch, TokenRange range) {
  const Result<uint64_t> size = scratch.Stage(0, range);
  EXPECT_TRUE(size.ok()) << size.status().ToString();
  if (!size.ok()) return {};
  Blob blob(*size);
  EXPECT_TRUE(scratch.Read(blob).ok());
  EXPECT_EQ(scratch.TokensIn(scratch.sequence()), 0u);
  return blob;
}

class ScratchSequenceTest : public testing::TestWithParam<TinyArchitecture> {
 protected:
  ModelPtr model_ = MakeTinyModel(GetParam());
  ModelTraits traits_ = *CheckModel(model_.get());
  llama_context_params params_ = TinyContextParams();
};

TEST_P(ScratchSequenceTest, TraitsAreTheArchitectures) {
  EXPECT_EQ(traits_.recurrent, GetParam() == TinyArchitecture::kRecurrent);
  EXPECT_EQ(traits_.hybrid, GetParam() == TinyArchitecture::kHybrid);
  EXPECT_EQ(traits_.window, GetParam() == TinyArchitecture::kSmallWindow   ? 64u
                            : GetParam() == TinyArchitecture::kLargeWindow ? 384u
                                                                           : 0u);
}

TEST_P(ScratchSequenceTest, ChunksMoveToAnotherContextByteForByte) {
  const std::vector<llama_token> tokens = RandomTokens(812, 9);
  BareEngine source(model_.get(), params_);
  ScratchSequence save(source.context(), 1, traits_);
  std::vector<Blob> blobs;
  for (size_t begin = 0; begin < 768; begin += 256) {
    source.Decode(tokens, begin, {begin + 256});
    blobs.push_back(TakeChunk(save, {begin, begin + 256}));
    ASSERT_FALSE(blobs.back().empty());
  }
  const std::vector<float> expected = source.Decode(tokens, 768, {812});

  BareEngine target(model_.get(), params_);
  ScratchSequence load(target.context(), 1, traits_);
  for (size_t i = traits_.recurrent ? 2 : 0; i < blobs.size(); ++i) {
    const ScratchSequence::Injection injection =
        load.Inject(0, blobs[i], {i * 256, i * 256 + 256}, i * 256 + 256);
    ASSERT_TRUE(injection.status.ok()) << injection.status.ToString();
    EXPECT_EQ(load.TokensIn(1), 0u);
  }
  EXPECT_TRUE(load.IsWhole(0, 768));
  EXPECT_TRUE(SameBytes(target.Decode(tokens, 768, {812}), expected));
}

TEST_P(ScratchSequenceTest, CutIsRefusedWhereRowsAreGone) {
  const std::vector<llama_token> tokens = RandomTokens(300, 10);
  BareEngine engine(model_.get(), params_);
  ScratchSequence scratch(engine.context(), 1, traits_);
  engine.Decode(tokens, 0, {256});
  const Blob blob = TakeChunk(scratch, {0, 256});
  engine.Decode(tokens, 256, {300});
  EXPECT_EQ(scratch.Stage(0, {0, 256}).ok(), traits_.CanCut());
  EXPECT_EQ(scratch.Cut(0, 200), traits_.CanCut() ? 200u : 0u);
  EXPECT_EQ(scratch.TokensIn(0), traits_.CanCut() ? 200u : 0u);
  scratch.Cut(0, 0);
  const ScratchSequence::Injection injection = scratch.Inject(0, blob, {0, 256}, 100);
  EXPECT_EQ(injection.status.ok(), traits_.CanCut());
  EXPECT_TRUE(injection.slot_intact);
  EXPECT_EQ(scratch.TokensIn(0), traits_.CanCut() ? 100u : 0u);
}

TEST_P(ScratchSequenceTest, WhatTheEngineDoesNotTakeLeavesTheSlot) {
  const std::vector<llama_token> tokens = RandomTokens(512, 11);
  BareEngine engine(model_.get(), params_);
  ScratchSequence scratch(engine.context(), 1, traits_);
  engine.Decode(tokens, 0, {256});
  const Blob first = TakeChunk(scratch, {0, 256});
  engine.Decode(tokens, 256, {512});
  const Blob second = TakeChunk(scratch, {256, 512});
  scratch.Cut(0, 0);
  ASSERT_TRUE(scratch.Inject(0, first, {0, 256}, 256).status.ok());
  // Cut off, empty, and of another range than said.
  for (const Bytes bad : {Bytes(second).first(second.size() / 2), Bytes(second).first(0)}) {
    const ScratchSequence::Injection injection = scratch.Inject(0, bad, {256, 512}, 512);
    EXPECT_FALSE(injection.status.ok());
    EXPECT_TRUE(injection.slot_intact);
    EXPECT_TRUE(scratch.IsWhole(0, 256));
    EXPECT_EQ(scratch.TokensIn(1), 0u);
  }
  const ScratchSequence::Injection other = scratch.Inject(0, first, {256, 512}, 512);
  EXPECT_FALSE(other.status.ok());
  EXPECT_TRUE(other.slot_intact);
  EXPECT_TRUE(scratch.IsWhole(0, 256));
}

INSTANTIATE_TEST_SUITE_P(All, ScratchSequenceTest,
                         testing::Values(TinyArchitecture::kGqa, TinyArchitecture::kMha,
                                         TinyArchitecture::kMla, TinyArchitecture::kSmallWindow,
                                         TinyArchitecture::kLargeWindow, TinyArchitecture::kHybrid,
                                         TinyArchitecture::kRecurrent),
                         [](const auto& tested) { return std::string(NameOf(tested.param)); });

}  // namespace
}  // namespace terrace::llamacpp
