// Every architecture, KV type and flash attention setting: what a hit computes is, byte for byte, what the
// engine computes without Terrace; the same hit over a planted chunk of another prefix is not.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

struct HitCase {
  const char* name;
  std::vector<llama_token> prompt;
  size_t match_cut;    // tokens ready where the model can be cut inside a chunk
  size_t match_whole;  // and where it cannot
};

const std::vector<size_t> kDocumentEnds = {256, 512, 768, 808};

std::vector<HitCase> HitCases(const std::vector<llama_token>& document) {
  return {
      {"none", RandomTokens(300, 77), 0, 0},
      {"one", Joined(document, 256, RandomTokens(40, 78)), 256, 256},
      {"several", Joined(document, 512, RandomTokens(40, 79)), 512, 512},
      {"part", Joined(document, 300, RandomTokens(20, 80)), 300, 256},
      {"part_over_boundary", Joined(document, 600, RandomTokens(300, 81)), 600, 512},
      {"all_but_last", document, 807, 768},
      {"all_with_tail", Joined(document, 808, RandomTokens(30, 82)), 808, 808},
  };
}

class ModelMatrixTest : public testing::TestWithParam<std::tuple<TinyArchitecture, ggml_type, bool>> {
 protected:
  ModelMatrixTest() {
    params_.type_k = params_.type_v = std::get<1>(GetParam());
    params_.flash_attn_type = flash() ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    document_ = RandomTokens(808, 5);
  }

  bool flash() const { return std::get<2>(GetParam()); }
  TinyArchitecture architecture() const { return std::get<0>(GetParam()); }
  bool CanCut() const {
    return architecture() == TinyArchitecture::kGqa || architecture() == TinyArchitecture::kMha ||
           architecture() == TinyArchitecture::kMla;
  }
  bool Refused() const { return ggml_is_quantized(params_.type_v) && !flash(); }

  // The engine alone, decoding in the splits in which the stored rows were computed, cut at the match, then
  // the suffix.
  std::vector<float> Reference(const HitCase& hit, size_t match, const std::vector<size_t>& suffix_ends) {
    bare_->Clear();
    std::vector<size_t> ends;
    for (const size_t end : kDocumentEnds) {
      ends.push_back(end);
      if (end >= match) break;
    }
    if (match > 0) {
      bare_->Decode(document_, 0, ends);
      if (ends.back() > match) bare_->Cut(match);
    }
    return bare_->Decode(hit.prompt, match, suffix_ends);
  }

  llama_context_params params_ = TinyContextParams();
  std::vector<llama_token> document_;
  ModelPtr model_ = MakeTinyModel(architecture());
  std::unique_ptr<BareEngine> bare_;
};

TEST_P(ModelMatrixTest, HitsEqualTheEngineAndPlantedChunksDoNot) {
  if (Refused()) {
    ModelIdentity identity;
    identity.id = "tiny";
    const auto cache = LlamaCache::Create(model_.get(), identity, params_, {});
    ASSERT_FALSE(cache.ok());
    EXPECT_EQ(cache.status().code(), StatusCode::kInvalidArgument) << cache.status().ToString();
    return;
  }
  bare_ = std::make_unique<BareEngine>(model_.get(), params_);
  const TemporaryDirectory directory;
  {
    const std::shared_ptr<StorageManager> store = OpenStore(directory.path());
    ASSERT_NE(store, nullptr);
    const std::unique_ptr<LlamaCache> cache = MakeCache(model_.get(), params_, store);
    ASSERT_NE(cache, nullptr);
    const HostRun cold = RunPrompt(*cache, 0, document_, true);
    EXPECT_EQ(cold.fetch.ready_tokens, 0u);
    EXPECT_EQ(cold.decoded, 808u);
    EXPECT_EQ(cold.ends, kDocumentEnds);
    EXPECT_EQ(cold.stored_objects, 4u) << cold.save_reason.ToString();
    EXPECT_TRUE(AllFinite(cold.logits));
    EXPECT_TRUE(SameBytes(cold.logits, bare_->OneShot(document_)));
    CloseStore(*store);
  }
  const std::shared_ptr<StorageManager> store = OpenStore(directory.path());
  ASSERT_NE(store, nullptr);
  const std::unique_ptr<LlamaCache> cache = MakeCache(model_.get(), params_, store);
  ASSERT_NE(cache, nullptr);
  const std::shared_ptr<StorageManager> planted_store = OpenStore();
  ASSERT_NE(planted_store, nullptr);
  const std::unique_ptr<LlamaCache> planted = MakeCache(model_.get(), params_, planted_store);
  ASSERT_NE(planted, nullptr);
  PlantWrongChunks(*planted_store, planted->root(), model_.get(), params_, document_, RandomTokens(808, 6),
                   kDocumentEnds);

  for (const HitCase& hit : HitCases(document_)) {
    SCOPED_TRACE(hit.name);
    const size_t match = CanCut() ? hit.match_cut : hit.match_whole;
    EmptySlot(*cache, 0);
    const HostRun run = RunPrompt(*cache, 0, hit.prompt);
    EXPECT_EQ(run.fetch.ready_tokens, match) << run.fetch.reason.ToString();
    EXPECT_EQ(run.fetch.loaded_tokens, match);
    EXPECT_TRUE(run.fetch.reason.ok()) << run.fetch.reason.ToString();
    EXPECT_EQ(run.decoded, hit.prompt.size() - match);
    const std::vector<float> reference = Reference(hit, match, run.ends);
    EXPECT_TRUE(SameBytes(run.logits, reference));
    if (match % 256 == 0) {
      EXPECT_TRUE(SameBytes(run.logits, bare_->OneShot(hit.prompt)));
    }

    EmptySlot(*planted, 0);
    const HostRun wrong = RunPrompt(*planted, 0, hit.prompt);
    EXPECT_EQ(wrong.fetch.ready_tokens, match) << wrong.fetch.reason.ToString();
    EXPECT_EQ(wrong.decoded, hit.prompt.size() - match);
    EXPECT_EQ(SameBytes(wrong.logits, reference), match == 0);
  }
  EXPECT_EQ(cache->counters().injection_failures, 0u);
  EXPECT_EQ(cache->counters().refused_saves, 0u);
  CloseStore(*store);
  CloseStore(*planted_store);
}

INSTANTIATE_TEST_SUITE_P(
    All, ModelMatrixTest,
    testing::Combine(testing::Values(TinyArchitecture::kGqa, TinyArchitecture::kMha, TinyArchitecture::kMla,
                                     TinyArchitecture::kSmallWindow, TinyArchitecture::kLargeWindow,
                                     TinyArchitecture::kHybrid, TinyArchitecture::kRecurrent),
                     testing::Values(GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0), testing::Bool()),
    [](const auto& tested) {
      return std::string(NameOf(std::get<0>(tested.param))) + "_" +
             ggml_type_name(std::get<1>(tested.param)) + (std::get<2>(tested.param) ? "_flash" : "_plain");
    });

}  // namespace
}  // namespace terrace::llamacpp
