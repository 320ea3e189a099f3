// Real weights: SmolLM2, prefixes of up to 768 tokens, from NVMe after a reopen. Boundary hits equal the cold
// one-shot run, all others the engine alone in the splits in which the stored rows were computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

constexpr size_t kGenerated = 4;
constexpr char kModelId[] = "smollm2";

std::vector<llama_token> WordTokens(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<llama_token> tokens(count);
  for (llama_token& token : tokens) token = static_cast<llama_token>(1000 + random() % 40000);
  return tokens;
}

llama_context_params SmolParams() {
  llama_context_params params = TinyContextParams();
  params.n_ctx = 1024;
  params.n_batch = 1024;
  params.n_threads = params.n_threads_batch = 2;
  return params;
}

std::vector<size_t> DocumentEnds() {
  std::vector<size_t> ends = {256, 512, 768, 800};
  for (size_t i = 1; i <= kGenerated; ++i) ends.push_back(800 + i);
  return ends;
}

class SmolLm2Test : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(TERRACE_MODEL_PATH)) {
      GTEST_SKIP() << "the weights are not there: " << TERRACE_MODEL_PATH
                   << " (scripts/setup.sh fetches them)";
    }
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    model_.reset(llama_model_load_from_file(TERRACE_MODEL_PATH, params));
    ASSERT_NE(model_, nullptr);
    ASSERT_LE(41000, llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
  }

  std::unique_ptr<LlamaCache> Cache(const std::shared_ptr<StorageManager>& store,
                                    LlamaCacheOptions options = {}) {
    return MakeCache(model_.get(), params_, store, options, kModelId);
  }

  // 800 tokens of prompt, then tokens that the model chooses; what the slot holds at the end.
  std::vector<llama_token> WriteTurn(LlamaCache& cache) {
    std::vector<llama_token> tokens = WordTokens(800, 1);
    HostRun run = RunPrompt(cache, 0, tokens);
    EXPECT_EQ(run.decoded, 800u);
    EXPECT_EQ(run.stored_objects, 3u) << run.save_reason.ToString();
    for (size_t i = 0; i < kGenerated; ++i) {
      const auto best = std::max_element(run.logits.begin(), run.logits.end());
      tokens.push_back(static_cast<llama_token>(best - run.logits.begin()));
      run.logits = DecodeStep(cache.context(), 0, tokens, tokens.size() - 1, 1);
      EXPECT_EQ(cache.Save(0, tokens).stored_objects, 0u);
    }
    const SaveResult saved = cache.SaveTail(0, tokens);
    EXPECT_EQ(saved.stored_objects, 1u) << saved.reason.ToString();
    return tokens;
  }

  ModelPtr model_;
  const llama_context_params params_ = SmolParams();
};

TEST_F(SmolLm2Test, HitsAfterAReopenEqualTheEngineAndPlantedChunksDoNot) {
  const TemporaryDirectory directory;
  std::shared_ptr<StorageManager> store = OpenStore(directory.path());
  ASSERT_NE(store, nullptr);
  const std::vector<llama_token> document = WriteTurn(*Cache(store));
  CloseStore(*store);
  store = OpenStore(directory.path());
  ASSERT_NE(store, nullptr);
  const auto cache = Cache(store);
  const std::shared_ptr<StorageManager> planted_store = OpenStore();
  const auto planted = Cache(planted_store);
  PlantWrongChunks(*planted_store, planted->root(), model_.get(), params_, document,
                   WordTokens(document.size(), 2), {256, 512, 768, document.size()});
  ASSERT_FALSE(testing::Test::HasFailure());

  struct Row {
    const char* name;
    size_t match;
    std::vector<llama_token> prompt;
  };
  // The longest first: the reference is cut back from row to row.
  const Row rows[] = {
      {"the tail with generated tokens", 800 + kGenerated,
       Joined(document, 800 + kGenerated, WordTokens(30, 11))},
      {"all but the last generated token", 800 + kGenerated - 1, document},
      {"inside the tail", 790, Joined(document, 790, WordTokens(20, 12))},
      {"on a boundary", 768, Joined(document, 768, WordTokens(64, 13))},
      {"inside a chunk", 600, Joined(document, 600, WordTokens(40, 14))},
  };
  BareEngine reference(model_.get(), params_);
  reference.Decode(document, 0, DocumentEnds());
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EmptySlot(*cache, 0);
    const HostRun run = RunPrompt(*cache, 0, row.prompt);
    EXPECT_EQ(run.fetch.loaded_tokens, row.match) << run.fetch.reason.ToString();
    EXPECT_EQ(run.decoded, row.prompt.size() - row.match);
    reference.Cut(row.match);
    const std::vector<float> logits = reference.Decode(row.prompt, row.match, run.ends);
    EXPECT_TRUE(SameBytes(run.logits, logits));

    EmptySlot(*planted, 0);
    const HostRun wrong = RunPrompt(*planted, 0, row.prompt);
    EXPECT_EQ(wrong.fetch.loaded_tokens, row.match) << wrong.fetch.reason.ToString();
    EXPECT_EQ(wrong.decoded, row.prompt.size() - row.match);
    EXPECT_TRUE(AllFinite(wrong.logits));
    EXPECT_FALSE(SameBytes(wrong.logits, logits));
    if (row.match == 768) {
      BareEngine cold(model_.get(), params_);
      EXPECT_TRUE(SameBytes(run.logits, cold.OneShot(row.prompt)));
    }
  }
  EXPECT_EQ(cache->counters().injection_failures, 0u);
  CloseStore(*store);
}

TEST_F(SmolLm2Test, ExactOnlyEqualsTheColdOneShotRunWhereverThePromptsPart) {
  const TemporaryDirectory directory;
  LlamaCacheOptions options;
  options.exact_only = true;
  const std::vector<llama_token> document = WordTokens(530, 3);
  std::shared_ptr<StorageManager> store = OpenStore(directory.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(RunPrompt(*Cache(store, options), 0, document, true).stored_objects, 2u);
  CloseStore(*store);
  store = OpenStore(directory.path());
  ASSERT_NE(store, nullptr);
  const auto cache = Cache(store, options);
  const std::vector<llama_token> prompt = Joined(document, 400, WordTokens(60, 15));
  const HostRun run = RunPrompt(*cache, 0, prompt);
  EXPECT_EQ(run.fetch.loaded_tokens, 256u) << run.fetch.reason.ToString();
  EXPECT_EQ(run.decoded, 204u);
  BareEngine cold(model_.get(), params_);
  EXPECT_TRUE(SameBytes(run.logits, cold.OneShot(prompt)));
  CloseStore(*store);
}

}  // namespace
}  // namespace terrace::llamacpp
