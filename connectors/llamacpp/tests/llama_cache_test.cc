#include "connectors/llamacpp/llama_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "connectors/llamacpp/engine_fingerprint.h"
#include "connectors/llamacpp/scratch_sequence.h"
#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

std::vector<llama_token> First(const std::vector<llama_token>& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)};
}

class LlamaCacheTest : public testing::Test {
 protected:
  llama_memory_t MemoryOf(const LlamaCache& cache) { return llama_get_memory(cache.context()); }
  // Decodes [begin, end) in one step, without telling the cache.
  void Decode(LlamaCache& cache, llama_seq_id slot, size_t begin, size_t end) {
    ASSERT_FALSE(DecodeStep(cache.context(), slot, tokens_, begin, end - begin).empty());
  }

  ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  llama_context_params params_ = TinyContextParams();
  std::shared_ptr<StorageManager> store_ = OpenStore();
  const std::vector<llama_token> tokens_ = RandomTokens(1100, 31);
};

TEST_F(LlamaCacheTest, StepsEndOnChunkBoundaries) {
  params_.n_batch = 200;
  const auto cache = MakeCache(model_.get(), params_, nullptr);
  EXPECT_EQ(cache->NextStep(0, 1000), 200u);
  EXPECT_EQ(cache->NextStep(200, 1000), 56u);
  EXPECT_EQ(cache->NextStep(256, 3), 3u);
  EXPECT_EQ(cache->NextStep(500, 0), 0u);
}

TEST_F(LlamaCacheTest, TheSlotsOwnPrefixIsKeptAndExtendedFromTheStore) {
  const auto writer = MakeCache(model_.get(), params_, store_);
  RunPrompt(*writer, 0, First(tokens_, 800));
  ASSERT_TRUE(store_->Flush().ok());
  const auto cache = MakeCache(model_.get(), params_, store_);
  // 280 tokens of the document in the slot, loaded; then the whole document: two more chunks come after the
  // first.
  HostRun run = RunPrompt(*cache, 0, Joined(tokens_, 280, RandomTokens(10, 32)));
  EXPECT_EQ(run.fetch.loaded_tokens, 280u);
  run = RunPrompt(*cache, 0, First(tokens_, 800));
  EXPECT_EQ(run.fetch.ready_tokens, 768u);
  EXPECT_EQ(run.fetch.loaded_tokens, 512u);
  EXPECT_EQ(run.fetch.loaded_objects, 2u);
  EXPECT_EQ(run.decoded, 32u);
  BareEngine bare(model_.get(), params_);
  EXPECT_TRUE(SameBytes(run.logits, bare.OneShot(First(tokens_, 800))));
  // Now the slot has as much as the store: nothing is loaded. 810 tokens: 800 of them are in the slot.
  run = RunPrompt(*cache, 0, First(tokens_, 810));
  EXPECT_EQ(run.fetch.ready_tokens, 800u);
  EXPECT_EQ(run.fetch.loaded_tokens, 0u);
  // Never all: one token is computed again.
  run = RunPrompt(*cache, 0, First(tokens_, 810));
  EXPECT_EQ(run.fetch.ready_tokens, 809u);
  EXPECT_EQ(run.decoded, 1u);
}

TEST_F(LlamaCacheTest, WithoutCutTheSlotIsKeptWholeOrNotAtAll) {
  const ModelPtr model = MakeTinyModel(TinyArchitecture::kHybrid);
  const auto cache = MakeCache(model.get(), params_, nullptr);
  RunPrompt(*cache, 0, First(tokens_, 300));
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 320)).decoded, 20u);
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 310)).decoded, 310u);
}

TEST_F(LlamaCacheTest, GeneratedTokensAreStoredForTheNextTurn) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  RunPrompt(*cache, 0, First(tokens_, 250));
  // One by one, as a host samples.
  for (size_t size = 251; size <= 270; ++size) {
    Decode(*cache, 0, size - 1, size);
    const std::vector<llama_token> held = First(tokens_, size);
    EXPECT_EQ(cache->Save(0, held).stored_objects, size == 256 ? 1u : 0u) << size;
  }
  EXPECT_EQ(cache->SaveTail(0, First(tokens_, 270)).stored_objects, 1u);
  ASSERT_TRUE(store_->Flush().ok());
  const auto other = MakeCache(model_.get(), params_, store_);
  const HostRun run = RunPrompt(*other, 0, First(tokens_, 300));
  EXPECT_EQ(run.fetch.loaded_tokens, 270u);
  EXPECT_EQ(run.decoded, 30u);
  BareEngine bare(model_.get(), params_);
  std::vector<size_t> ends = {250};
  for (size_t end = 251; end <= 270; ++end) ends.push_back(end);
  ends.push_back(300);
  EXPECT_TRUE(SameBytes(run.logits, bare.Decode(tokens_, 0, ends)));
}

TEST_F(LlamaCacheTest, SlotsShareThroughTheStore) {
  LlamaCacheOptions options;
  options.slots = 3;
  params_.n_ctx = 4096;
  const auto cache = MakeCache(model_.get(), params_, store_, options);
  const HostRun first = RunPrompt(*cache, 0, First(tokens_, 600));
  ASSERT_TRUE(store_->Flush().ok());
  const HostRun second = RunPrompt(*cache, 1, First(tokens_, 600));
  const HostRun third = RunPrompt(*cache, 2, Joined(tokens_, 256, RandomTokens(256, 33)));
  EXPECT_EQ(second.fetch.loaded_tokens, 512u);
  EXPECT_EQ(third.fetch.loaded_tokens, 256u);
  EXPECT_EQ(second.decoded, 88u);
  EXPECT_TRUE(AllFinite(third.logits));
  // The others are as they were: each goes on from its own end.
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 610)).decoded, 10u);
  EXPECT_EQ(RunPrompt(*cache, 1, First(tokens_, 610)).decoded, 10u);
  EXPECT_EQ(cache->Fetch(3, tokens_).reason.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Save(-1, tokens_).reason.code(), StatusCode::kInvalidArgument);
}

TEST_F(LlamaCacheTest, SaveRefusesASlotThatStandsElsewhere) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  ASSERT_EQ(cache->Fetch(0, First(tokens_, 600)).ready_tokens, 0u);
  Decode(*cache, 0, 0, 256);
  const auto expect_refused = [&](const std::vector<llama_token>& tokens) {
    const uint64_t refused = cache->counters().refused_saves;
    const SaveResult saved = cache->Save(0, tokens);
    EXPECT_EQ(saved.reason.code(), StatusCode::kFailedPrecondition) << saved.reason.ToString();
    EXPECT_EQ(saved.stored_objects, 0u);
    EXPECT_EQ(cache->counters().refused_saves, refused + 1);
  };
  expect_refused(First(tokens_, 255));  // the slot is ahead
  expect_refused(First(tokens_, 257));  // the last sampled token is not in the KV yet
  EXPECT_EQ(cache->Save(0, First(tokens_, 256)).stored_objects, 1u);
  std::vector<llama_token> edited = First(tokens_, 256);
  edited[7] ^= 1;
  expect_refused(edited);
  // A context shift that the host did not report: positions look right again after as many new tokens.
  llama_memory_t memory = MemoryOf(*cache);
  ASSERT_TRUE(llama_memory_seq_rm(memory, 0, 0, 100));
  llama_memory_seq_add(memory, 0, 100, -1, -100);
  Decode(*cache, 0, 156, 255);
  expect_refused(First(tokens_, 255));
  Decode(*cache, 0, 255, 256);
  expect_refused(First(tokens_, 256));
  // Fetch starts it anew.
  ASSERT_TRUE(store_->Flush().ok());  // what was saved is published in the background
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 600)).fetch.loaded_tokens, 256u);
}

TEST_F(LlamaCacheTest, SaveRefusesASlotWithoutItsFirstRows) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  ASSERT_EQ(cache->Fetch(0, First(tokens_, 600)).ready_tokens, 0u);
  Decode(*cache, 0, 0, 256);
  ASSERT_TRUE(llama_memory_seq_rm(MemoryOf(*cache), 0, 0, 10));
  EXPECT_EQ(cache->Save(0, First(tokens_, 256)).reason.code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_EQ(store_->Stats().stored_objects, 0u);
}

TEST_F(LlamaCacheTest, ForgetEndsTrustUntilTheNextFetch) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  RunPrompt(*cache, 0, First(tokens_, 200));
  cache->Forget(0);
  Decode(*cache, 0, 200, 256);
  EXPECT_EQ(cache->Save(0, First(tokens_, 256)).reason.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 256)).decoded, 256u);
  // An empty slot needs no Fetch.
  EmptySlot(*cache, 0);
  Decode(*cache, 0, 0, 256);
  const SaveResult saved = cache->Save(0, First(tokens_, 256));
  EXPECT_TRUE(saved.reason.ok()) << saved.reason.ToString();
  EXPECT_EQ(saved.present_objects, 1u);
}

TEST_F(LlamaCacheTest, ASlotThatHoldsLessThanWasReportedIsNotKept) {
  const auto cache = MakeCache(model_.get(), params_, nullptr);
  RunPrompt(*cache, 0, First(tokens_, 300));
  llama_memory_t memory = MemoryOf(*cache);
  ASSERT_TRUE(llama_memory_seq_rm(memory, 0, 0, 100));
  llama_memory_seq_add(memory, 0, 100, -1, -100);
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 150)).decoded, 150u);
}

TEST_F(LlamaCacheTest, ChunksThatTheStoreLostMeanwhileAreStoredAgain) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 520)).stored_objects, 2u);
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(store_->Clear().ok());
  Decode(*cache, 0, 520, 768);
  const SaveResult saved = cache->Save(0, First(tokens_, 768));
  EXPECT_EQ(saved.stored_objects, 3u) << saved.reason.ToString();
  EXPECT_TRUE(saved.reason.ok());
}

TEST_F(LlamaCacheTest, OfAWindowOnlyTheChunkThatEndsHereIsSaved) {
  const ModelPtr model = MakeTinyModel(TinyArchitecture::kSmallWindow);
  const auto cache = MakeCache(model.get(), params_, store_);
  Decode(*cache, 0, 0, 300);
  EXPECT_EQ(cache->Save(0, First(tokens_, 300)).stored_objects, 0u);
  Decode(*cache, 0, 300, 512);
  // Its parent is not there, and cannot be made any more.
  const SaveResult saved = cache->Save(0, First(tokens_, 512));
  EXPECT_EQ(saved.stored_objects, 0u);
  EXPECT_EQ(saved.reason.code(), StatusCode::kResourceExhausted) << saved.reason.ToString();
  EmptySlot(*cache, 0);
  EXPECT_EQ(RunPrompt(*cache, 0, First(tokens_, 512)).stored_objects, 2u);
}

TEST_F(LlamaCacheTest, WhenCellsRunOutTheChunksBeforeStay) {
  const auto writer = MakeCache(model_.get(), params_, store_);
  RunPrompt(*writer, 0, First(tokens_, 1030));
  ASSERT_TRUE(store_->Flush().ok());
  LlamaCacheOptions options;
  options.slots = 2;
  params_.n_ctx = 1024;
  const auto cache = MakeCache(model_.get(), params_, store_, options);
  const std::vector<llama_token> other = RandomTokens(300, 34);
  RunPrompt(*cache, 1, other);
  const FetchResult fetched = cache->Fetch(0, First(tokens_, 1030));
  EXPECT_EQ(fetched.ready_tokens, 512u);  // 724 cells are free
  EXPECT_EQ(fetched.loaded_objects, 2u);
  EXPECT_EQ(fetched.reason.code(), StatusCode::kResourceExhausted) << fetched.reason.ToString();
  EXPECT_EQ(cache->counters().injection_failures, 1u);
  EXPECT_EQ(llama_memory_seq_pos_max(MemoryOf(*cache), cache->scratch_sequence()), -1);
  const std::vector<float> logits = DecodeStep(cache->context(), 0, tokens_, 512, 100);
  EXPECT_TRUE(AllFinite(logits));
  EXPECT_EQ(RunPrompt(*cache, 1, Joined(other, 300, First(tokens_, 5))).decoded, 5u);
}

TEST_F(LlamaCacheTest, WithoutAStoreEverythingIsComputed) {
  const auto none = MakeCache(model_.get(), params_, nullptr);
  const HostRun run = RunPrompt(*none, 0, First(tokens_, 600), true);
  EXPECT_EQ(run.decoded, 600u);
  EXPECT_EQ(run.stored_objects, 0u);
  EXPECT_TRUE(run.save_reason.ok());
  BareEngine bare(model_.get(), params_);
  EXPECT_TRUE(SameBytes(run.logits, bare.OneShot(First(tokens_, 600))));
}

TEST_F(LlamaCacheTest, AClosedStoreMeansCompute) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  RunPrompt(*cache, 0, First(tokens_, 600));
  CloseStore(*store_);
  EmptySlot(*cache, 0);
  const HostRun run = RunPrompt(*cache, 0, First(tokens_, 600), true);
  EXPECT_EQ(run.fetch.ready_tokens, 0u);
  EXPECT_EQ(run.decoded, 600u);
  EXPECT_FALSE(run.save_reason.ok());
  BareEngine bare(model_.get(), params_);
  EXPECT_TRUE(SameBytes(run.logits, bare.OneShot(First(tokens_, 600))));
  const auto opened_late = MakeCache(model_.get(), params_, store_);
  EXPECT_EQ(RunPrompt(*opened_late, 0, First(tokens_, 300)).decoded, 300u);
}

TEST_F(LlamaCacheTest, AStoreOfZeroBytesMeansCompute) {
  StorageOptions options;
  options.pool_bytes = 0;
  options.huge_pages = false;
  auto store = StorageManager::Open(std::move(options), {});
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto cache = MakeCache(model_.get(), params_, std::move(*store));
  const HostRun run = RunPrompt(*cache, 0, First(tokens_, 600), true);
  EXPECT_EQ(run.decoded, 600u);
  EXPECT_EQ(run.stored_objects, 0u);
  EXPECT_EQ(cache->counters().refused_saves, 0u);
}

TEST_F(LlamaCacheTest, BadPromptsLeaveTheSlotEmpty) {
  const auto cache = MakeCache(model_.get(), params_, store_);
  RunPrompt(*cache, 0, First(tokens_, 100));
  const std::vector<Item> beyond = {Item{500, {std::byte{1}}}};
  const std::vector<llama_token> prompt = First(tokens_, 120);
  const FetchResult fetched = cache->Fetch(0, Prompt(prompt, beyond));
  EXPECT_EQ(fetched.reason.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fetched.ready_tokens, 0u);
  EXPECT_EQ(llama_memory_seq_pos_max(MemoryOf(*cache), 0), -1);
  EXPECT_EQ(cache->Fetch(0, std::vector<llama_token>{}).ready_tokens, 0u);
  EXPECT_EQ(cache->Fetch(0, std::vector<llama_token>{1}).ready_tokens, 0u);
}

class CheckLogitsTest : public LlamaCacheTest {
 protected:
  // Stores, under the keys of `tokens_`, the right state with NaN in its rows: what a poisoned context saves.
  void PlantNan(const ChunkKey& root) {
    BareEngine engine(model_.get(), params_);
    ScratchSequence scratch(engine.context(), 1, *CheckModel(model_.get()));
    engine.Decode(tokens_, 0, {256});
    const PayloadSizes sizes = [&](TokenRange range, ObjectPart) { return scratch.Stage(0, range); };
    const TokenView view({reinterpret_cast<const Token*>(tokens_.data()), tokens_.size()});
    auto prepared = store_->Prepare(root, view, {0, 256}, sizes);
    ASSERT_TRUE(prepared.ok());
    ASSERT_EQ(prepared->chunks.size(), 1u);
    WritableChunk chunk = std::move(*prepared->chunks[0].writable);
    const MutableBytes payload = chunk.payload();
    ASSERT_TRUE(scratch.Read(payload).ok());
    // The rows of the last layer's V are at the end: f16 NaN.
    for (size_t i = payload.size() - 8192; i < payload.size(); i += 2) {
      payload[i] = std::byte{0x00};
      payload[i + 1] = std::byte{0x7e};
    }
    std::vector<WritableChunk> chunks;
    chunks.push_back(std::move(chunk));
    store_->Commit(std::move(chunks));
    ASSERT_TRUE(store_->Flush().ok());
  }
};

TEST_F(CheckLogitsTest, NonFiniteLogitsEraseWhatWasInjectedAndWhatWasStoredSince) {
  LlamaCacheOptions options;
  options.check_logits = true;
  options.slots = 2;
  const auto cache = MakeCache(model_.get(), params_, store_, options);
  PlantNan(cache->root());
  const std::vector<llama_token> prompt = First(tokens_, 600);
  const HostRun run = RunPrompt(*cache, 0, prompt);
  EXPECT_EQ(run.fetch.loaded_tokens, 256u);
  EXPECT_EQ(run.stored_objects, 1u);  // [256, 512), computed from NaN
  ASSERT_FALSE(AllFinite(run.logits));
  // Another slot of the poisoned context.
  const std::vector<llama_token> other = RandomTokens(300, 35);
  EXPECT_EQ(RunPrompt(*cache, 1, other).stored_objects, 1u);
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_FALSE(cache->ReportLogits(0, run.logits));
  EXPECT_EQ(cache->counters().poisoned, 1u);
  EXPECT_EQ(cache->Save(0, prompt).reason.code(), StatusCode::kFailedPrecondition);

  llama_memory_clear(MemoryOf(*cache), true);
  BareEngine bare(model_.get(), params_);
  const HostRun again = RunPrompt(*cache, 0, prompt);
  EXPECT_EQ(again.decoded, 600u);
  EXPECT_EQ(again.stored_objects, 2u);
  EXPECT_TRUE(cache->ReportLogits(0, again.logits));
  EXPECT_TRUE(SameBytes(again.logits, bare.OneShot(prompt)));
  EXPECT_EQ(cache->Fetch(1, other).ready_tokens, 0u);
  EXPECT_EQ(cache->counters().poisoned, 1u);
  // What was stored since is right.
  ASSERT_TRUE(store_->Flush().ok());
  EmptySlot(*cache, 0);
  const HostRun hit = RunPrompt(*cache, 0, prompt);
  EXPECT_EQ(hit.fetch.loaded_tokens, 512u);
  EXPECT_TRUE(cache->ReportLogits(0, hit.logits));
  EXPECT_TRUE(SameBytes(hit.logits, again.logits));
}

TEST_F(CheckLogitsTest, OnlyAnInjectionIsBlamed) {
  LlamaCacheOptions options;
  options.check_logits = true;
  const auto cache = MakeCache(model_.get(), params_, store_, options);
  RunPrompt(*cache, 0, First(tokens_, 300));
  EXPECT_TRUE(cache->ReportLogits(0, std::vector<float>{NAN}));
  EXPECT_EQ(cache->counters().poisoned, 0u);
}

class ExactOnlyTest : public LlamaCacheTest {
 protected:
  ExactOnlyTest() { options_.exact_only = true; }
  LlamaCacheOptions options_;
};

TEST_F(ExactOnlyTest, HitsEqualTheColdOneShotRun) {
  const auto cache = MakeCache(model_.get(), params_, store_, options_);
  const std::vector<llama_token> document = First(tokens_, 800);
  EXPECT_EQ(RunPrompt(*cache, 0, document, true).stored_objects, 3u);  // no tail
  ASSERT_TRUE(store_->Flush().ok());
  BareEngine bare(model_.get(), params_);
  for (const auto& [prompt, expected] : std::vector<std::pair<std::vector<llama_token>, uint64_t>>{
           {document, 768},
           {Joined(document, 700, RandomTokens(200, 41)), 512},
           {Joined(document, 768, RandomTokens(200, 42)), 768},
           {Joined(document, 200, RandomTokens(200, 43)), 0}}) {
    const HostRun kept = RunPrompt(*cache, 0, prompt);  // what the slot holds counts on boundaries too
    EXPECT_EQ(kept.fetch.ready_tokens, expected);
    EXPECT_TRUE(SameBytes(kept.logits, bare.OneShot(prompt)));
    EmptySlot(*cache, 0);
    const HostRun loaded = RunPrompt(*cache, 0, prompt);
    EXPECT_GE(loaded.fetch.ready_tokens, expected);
    EXPECT_EQ(loaded.fetch.ready_tokens % 256, 0u);
    EXPECT_TRUE(SameBytes(loaded.logits, bare.OneShot(prompt)));
  }
}

TEST_F(ExactOnlyTest, ChunksOfOtherStepsAreNotStored) {
  const auto cache = MakeCache(model_.get(), params_, store_, options_);
  cache->Fetch(0, First(tokens_, 1100));
  const auto save = [&](size_t begin, size_t end) {
    Decode(*cache, 0, begin, end);
    return cache->Save(0, First(tokens_, end)).stored_objects;
  };
  EXPECT_EQ(save(0, 256), 1u);
  EXPECT_EQ(save(256, 300), 0u);
  EXPECT_EQ(save(300, 512), 0u);  // [256, 512) came in two steps
  EXPECT_EQ(save(512, 768), 0u);  // a full step, but not of an exact prefix
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_EQ(store_->Stats().stored_objects, 1u);
  // The slot's own prefix is exact up to 256.
  EXPECT_EQ(cache->Fetch(0, First(tokens_, 800)).ready_tokens, 256u);
  EXPECT_EQ(save(256, 512), 1u);
}

}  // namespace
}  // namespace terrace::llamacpp
