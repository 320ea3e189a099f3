#include "connectors/llamacpp/tests/engine_host.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "connectors/llamacpp/engine_fingerprint.h"
#include "connectors/llamacpp/scratch_sequence.h"

namespace terrace::llamacpp {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TokenView ViewOfTokens(const std::vector<llama_token>& tokens) {
  return TokenView({reinterpret_cast<const Token*>(tokens.data()), tokens.size()});
}

class QuietEngine : public testing::Environment {
 public:
  void SetUp() override {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
  }
};
const testing::Environment* const kQuietEngine = testing::AddGlobalTestEnvironment(new QuietEngine);

}  // namespace

std::vector<llama_token> RandomTokens(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<llama_token> tokens(count);
  for (llama_token& token : tokens) token = static_cast<llama_token>(random() % kTinyVocabulary);
  return tokens;
}

std::vector<llama_token> Joined(const std::vector<llama_token>& a, size_t count,
                                const std::vector<llama_token>& b) {
  std::vector<llama_token> joined(a.begin(), a.begin() + static_cast<ptrdiff_t>(count));
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

llama_context_params TinyContextParams() {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  params.n_batch = 2048;
  params.n_ubatch = 256;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return params;
}

std::vector<float> DecodeStep(llama_context* context, llama_seq_id slot,
                              const std::vector<llama_token>& tokens, size_t begin, size_t count) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(count), 0, 1);
  for (size_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[begin + i];
    batch.pos[i] = static_cast<llama_pos>(begin + i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = slot;
    batch.logits[i] = i + 1 == count;
  }
  batch.n_tokens = static_cast<int32_t>(count);
  const int32_t code = llama_decode(context, batch);
  llama_batch_free(batch);
  if (code != 0) return {};
  const float* logits = llama_get_logits_ith(context, -1);
  const llama_vocab* const vocabulary = llama_model_get_vocab(llama_get_model(context));
  return std::vector<float>(logits, logits + llama_vocab_n_tokens(vocabulary));
}

bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool AllFinite(const std::vector<float>& logits) {
  for (const float value : logits) {
    if (!std::isfinite(value)) return false;
  }
  return !logits.empty();
}

BareEngine::BareEngine(llama_model* model, llama_context_params params, int slots) {
  params.kv_unified = true;
  params.n_seq_max = static_cast<uint32_t>(slots) + 1;
  context_.reset(llama_init_from_model(model, params));
  EXPECT_NE(context_, nullptr);
}

std::vector<float> BareEngine::Decode(const std::vector<llama_token>& tokens, size_t begin,
                                      const std::vector<size_t>& ends) {
  std::vector<float> logits;
  for (const size_t end : ends) {
    logits = DecodeStep(context_.get(), 0, tokens, begin, end - begin);
    EXPECT_FALSE(logits.empty());
    begin = end;
  }
  return logits;
}

std::vector<float> BareEngine::OneShot(const std::vector<llama_token>& tokens) {
  Clear();
  return Decode(tokens, 0, {tokens.size()});
}

void BareEngine::Cut(size_t tokens) {
  EXPECT_TRUE(llama_memory_seq_rm(llama_get_memory(context_.get()), 0, static_cast<llama_pos>(tokens), -1));
}

void BareEngine::Clear() { llama_memory_clear(llama_get_memory(context_.get()), true); }

std::shared_ptr<StorageManager> OpenStore(const std::optional<std::filesystem::path>& directory,
                                          uint64_t host_bytes) {
  StorageOptions options;
  options.pool_bytes = 64 * kMiB;
  options.huge_pages = false;
  std::vector<Tier> tiers;
  Result<std::unique_ptr<Backend>> host = MakeHostBackend({.capacity_bytes = host_bytes});
  EXPECT_TRUE(host.ok()) << host.status().ToString();
  if (!host.ok()) return nullptr;
  tiers.push_back({.backend = std::move(*host), .policy = nullptr});
  if (directory) {
    NvmeOptions nvme;
    nvme.directory = directory->string();
    nvme.capacity_bytes = 96 * kMiB;
    nvme.segment_bytes = 16 * kMiB;
    nvme.prepare_ahead_bytes = 0;  // frames lie in the order of their writes
    Result<std::unique_ptr<Backend>> disk = MakeNvmeBackend(nvme);
    EXPECT_TRUE(disk.ok()) << disk.status().ToString();
    if (!disk.ok()) return nullptr;
    tiers.push_back({.backend = std::move(*disk), .policy = nullptr});
  }
  Result<std::unique_ptr<StorageManager>> store = StorageManager::Open(std::move(options), std::move(tiers));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? std::shared_ptr<StorageManager>(std::move(*store)) : nullptr;
}

void CloseStore(StorageManager& store) {
  const Status flushed = store.Flush();
  EXPECT_TRUE(flushed.ok()) << flushed.ToString();
  const Status closed = store.Close();
  EXPECT_TRUE(closed.ok()) << closed.ToString();
}

std::unique_ptr<LlamaCache> MakeCache(llama_model* model, const llama_context_params& params,
                                      const std::shared_ptr<StorageManager>& store, LlamaCacheOptions options,
                                      const std::string& model_id) {
  options.manager = store;
  ModelIdentity identity;
  identity.id = model_id;
  Result<std::unique_ptr<LlamaCache>> cache = LlamaCache::Create(model, identity, params, options);
  EXPECT_TRUE(cache.ok()) << cache.status().ToString();
  return cache.ok() ? std::move(*cache) : nullptr;
}

HostRun RunPrompt(LlamaCache& cache, llama_seq_id slot, const Prompt& prompt, bool tail) {
  HostRun run;
  run.fetch = cache.Fetch(slot, prompt);
  const std::vector<llama_token> tokens(prompt.tokens.begin(), prompt.tokens.end());
  size_t position = run.fetch.ready_tokens;
  while (position < tokens.size()) {
    const uint32_t step = cache.NextStep(position, tokens.size() - position);
    run.logits = DecodeStep(cache.context(), slot, tokens, position, step);
    if (run.logits.empty()) return run;
    position += step;
    run.decoded += step;
    run.ends.push_back(position);
    std::vector<Item> items;
    for (const Item& item : prompt.items) {
      if (item.position < position) items.push_back(item);
    }
    const Prompt held(prompt.tokens.first(position), items);
    const bool last = position == tokens.size();
    const SaveResult saved = last && tail ? cache.SaveTail(slot, held) : cache.Save(slot, held);
    run.stored_objects += saved.stored_objects;
    if (!saved.reason.ok()) run.save_reason = saved.reason;
  }
  return run;
}

void EmptySlot(LlamaCache& cache, llama_seq_id slot) {
  EXPECT_TRUE(llama_memory_seq_rm(llama_get_memory(cache.context()), slot, -1, -1));
  cache.Forget(slot);
}

void PlantWrongChunks(StorageManager& store, const ChunkKey& root, llama_model* model,
                      const llama_context_params& params, const std::vector<llama_token>& tokens,
                      const std::vector<llama_token>& other, const std::vector<size_t>& ends) {
  ASSERT_EQ(tokens.size(), other.size());
  const Result<ModelTraits> traits = CheckModel(model);
  ASSERT_TRUE(traits.ok());
  BareEngine engine(model, params);
  ScratchSequence scratch(engine.context(), 1, *traits);
  size_t begin = 0;
  for (const size_t end : ends) {
    engine.Decode(other, begin, {end});
    const PayloadSizes sizes = [&](TokenRange range, ObjectPart) { return scratch.Stage(0, range); };
    Result<PrepareResult> prepared = store.Prepare(root, ViewOfTokens(tokens), {begin, end}, sizes);
    ASSERT_TRUE(prepared.ok()) << prepared.status().ToString();
    ASSERT_EQ(prepared->chunks.size(), 1u) << prepared->status.ToString();
    ASSERT_TRUE(prepared->chunks[0].writable.has_value());
    WritableChunk chunk = std::move(*prepared->chunks[0].writable);
    ASSERT_TRUE(scratch.Read(chunk.payload()).ok());
    std::vector<WritableChunk> chunks;
    chunks.push_back(std::move(chunk));
    store.Commit(std::move(chunks));
    begin = end;
  }
  ASSERT_TRUE(store.Flush().ok());
}

}  // namespace terrace::llamacpp
