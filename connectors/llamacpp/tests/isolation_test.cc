// Two real contexts that differ in one setting share nothing; two that do not, do.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "connectors/llamacpp/model_digest.h"
#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

struct Setting {
  llama_context_params params = TinyContextParams();
  LlamaCacheOptions options;
  std::string model_id = "tiny";
};

class IsolationTest : public testing::Test {
 protected:
  std::unique_ptr<LlamaCache> Make(const Setting& setting) {
    return MakeCache(model_.get(), setting.params, store_, setting.options, setting.model_id);
  }

  uint64_t Hit(LlamaCache& cache, const Prompt& prompt) {
    EmptySlot(cache, 0);
    return cache.Fetch(0, prompt).ready_tokens;
  }

  // Stores from the plain setting: the changed one finds nothing, another plain one everything; and the other
  // way round.
  void ExpectIsolated(const std::function<void(Setting&)>& change) {
    Setting changed;
    change(changed);
    const auto plain = Make({}), other = Make(changed), again = Make({}), other_again = Make(changed);
    ASSERT_TRUE(plain && other && again && other_again);
    RunPrompt(*plain, 0, tokens_);
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_NE(plain->root(), other->root());
    EXPECT_EQ(Hit(*other, tokens_), 0u);
    EXPECT_EQ(Hit(*again, tokens_), 512u);
    EXPECT_EQ(RunPrompt(*other, 0, tokens_).stored_objects, 2u);
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_EQ(Hit(*other_again, tokens_), 512u);
  }

  ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  std::shared_ptr<StorageManager> store_ = OpenStore();
  const std::vector<llama_token> tokens_ = RandomTokens(540, 21);
};

TEST_F(IsolationTest, ModelId) {
  ExpectIsolated([](Setting& s) { s.model_id = "another"; });
}
TEST_F(IsolationTest, KvTypes) {
  ExpectIsolated([](Setting& s) { s.params.type_k = GGML_TYPE_BF16; });
}
TEST_F(IsolationTest, FlashAttention) {
  ExpectIsolated([](Setting& s) { s.params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED; });
}
TEST_F(IsolationTest, RopeBase) {
  ExpectIsolated([](Setting& s) { s.params.rope_freq_base = 5000.0f; });
}
TEST_F(IsolationTest, RopeScale) {
  ExpectIsolated([](Setting& s) { s.params.rope_freq_scale = 0.5f; });
}
TEST_F(IsolationTest, Salt) {
  ExpectIsolated([](Setting& s) { s.options.salt = "tenant"; });
}
TEST_F(IsolationTest, ExactOnly) {
  ExpectIsolated([](Setting& s) { s.options.exact_only = true; });
}

TEST_F(IsolationTest, FilesOfWeights) {
  const TemporaryDirectory directory;
  const auto save = [&](uint64_t seed, const char* name) {
    const std::string path = directory.path() / name;
    const ModelPtr model = MakeTinyModel(TinyArchitecture::kGqa, seed);
    llama_model_save_to_file(model.get(), path.c_str());
    return path;
  };
  const std::string one = save(1, "one.gguf"), two = save(2, "two.gguf"), copy = save(1, "copy.gguf");
  const auto digests = std::make_shared<ModelDigests>();
  const auto make = [&](const std::string& path) {
    ModelIdentity identity;
    identity.gguf_paths = {path};
    LlamaCacheOptions options;
    options.manager = store_;
    options.digests = digests;
    auto cache = LlamaCache::Create(model_.get(), identity, TinyContextParams(), options);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return std::move(*cache);
  };
  const auto first = make(one), second = make(two), same = make(copy), once_more = make(one);
  EXPECT_EQ(digests->files_read(), 3u);
  RunPrompt(*first, 0, tokens_);
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_EQ(Hit(*second, tokens_), 0u);
  EXPECT_EQ(Hit(*same, tokens_), 512u);
  EXPECT_EQ(Hit(*once_more, tokens_), 512u);
}

TEST_F(IsolationTest, Adapters) {
  const TemporaryDirectory directory;
  const std::string path_a = directory.path() / "a.gguf", path_b = directory.path() / "b.gguf";
  WriteTinyLora(path_a, 1);
  WriteTinyLora(path_b, 2);
  llama_adapter_lora* a = llama_adapter_lora_init(model_.get(), path_a.c_str());
  llama_adapter_lora* b = llama_adapter_lora_init(model_.get(), path_b.c_str());
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  const auto cache = Make({});
  using Active = LlamaCache::ActiveAdapter;
  const std::vector<std::vector<Active>> settings = {
      {},
      {{.adapter = a, .path = path_a, .id = "", .scale = 1.0f}},
      {{.adapter = a, .path = path_a, .id = "", .scale = 0.5f}},
      {{.adapter = b, .path = path_b, .id = "", .scale = 1.0f}},
      {{.adapter = a, .path = "", .id = "a", .scale = 1.0f}},
  };
  std::vector<std::vector<float>> logits;
  for (const auto& setting : settings) {
    ASSERT_TRUE(cache->SetAdapters(setting).ok());
    const HostRun run = RunPrompt(*cache, 0, tokens_);  // the slot's own prefix must be gone too
    EXPECT_EQ(run.fetch.ready_tokens, 0u);
    EXPECT_EQ(run.stored_objects, 2u);
    logits.push_back(run.logits);
    ASSERT_TRUE(store_->Flush().ok());
  }
  EXPECT_FALSE(SameBytes(logits[0], logits[1]));
  EXPECT_FALSE(SameBytes(logits[1], logits[2]));
  EXPECT_FALSE(SameBytes(logits[1], logits[3]));
  EXPECT_TRUE(SameBytes(logits[1], logits[4]));  // the same adapter under another name: right, and not shared
  for (size_t i = 0; i < settings.size(); ++i) {
    ASSERT_TRUE(cache->SetAdapters(settings[i]).ok());
    const HostRun run = RunPrompt(*cache, 0, tokens_);
    EXPECT_EQ(run.fetch.loaded_tokens, 512u) << i;
    EXPECT_TRUE(SameBytes(run.logits, logits[i])) << i;
  }
  // Scale 0 is no adapter.
  ASSERT_TRUE(cache->SetAdapters({{.adapter = a, .path = path_a, .id = "", .scale = 0.0f}}).ok());
  EXPECT_EQ(cache->Fetch(0, tokens_).loaded_tokens, 512u);
}

TEST_F(IsolationTest, AdaptersThatCannotBeNamedAreRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "a.gguf";
  WriteTinyLora(path, 1);
  llama_adapter_lora* adapter = llama_adapter_lora_init(model_.get(), path.c_str());
  const auto cache = Make({});
  const ChunkKey root = cache->root();
  using Active = LlamaCache::ActiveAdapter;
  for (const Active& bad :
       {Active{nullptr, path, "", 1.0f}, Active{adapter, "", "", 1.0f}, Active{adapter, path, "id", 1.0f},
        Active{adapter, path, "", INFINITY}, Active{adapter, path + ".gone", "", 1.0f}}) {
    EXPECT_FALSE(cache->SetAdapters({bad}).ok());
    EXPECT_EQ(cache->root(), root);
  }
}

TEST_F(IsolationTest, ItemsAtEqualPlaceholders) {
  const auto cache = Make({});
  const auto item = [](uint64_t position, std::byte value) {
    return Item{position, std::vector<std::byte>(32, value)};
  };
  const std::vector<Item> cats = {item(100, std::byte{1}), item(300, std::byte{2})};
  const std::vector<Item> dogs = {item(100, std::byte{1}), item(300, std::byte{3})};
  EXPECT_EQ(RunPrompt(*cache, 0, Prompt(tokens_, cats)).stored_objects, 2u);
  ASSERT_TRUE(store_->Flush().ok());
  // In the slot: the prefix before the first item that differs.
  FetchResult fetched = cache->Fetch(0, Prompt(tokens_, dogs));
  EXPECT_EQ(fetched.ready_tokens, 300u);
  EXPECT_EQ(fetched.loaded_tokens, 0u);
  // From the store the same, and everything where the items are equal.
  EXPECT_EQ(Hit(*cache, Prompt(tokens_, dogs)), 300u);
  EXPECT_EQ(Hit(*cache, Prompt(tokens_, cats)), 512u);
  EXPECT_EQ(Hit(*cache, Prompt(tokens_)), 100u);
  EXPECT_EQ(Hit(*cache, Prompt(tokens_, std::span(dogs).first(1))), 300u);
}

}  // namespace
}  // namespace terrace::llamacpp
