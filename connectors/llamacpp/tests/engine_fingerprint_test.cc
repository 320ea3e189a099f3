#include "connectors/llamacpp/engine_fingerprint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

using ChangeContext = std::function<void(llama_context_params&)>;

class EngineFingerprintTest : public testing::Test {
 protected:
  std::string Extras(const ChangeContext& change = {}, const llama_model_params* model_params = nullptr,
                     bool exact_only = false) {
    llama_context_params params = TinyContextParams();
    if (change) change(params);
    const Result<std::string> extras = EngineExtras(model_.get(), model_params, params, exact_only);
    EXPECT_TRUE(extras.ok()) << extras.status().ToString();
    return extras.ok() ? *extras : "";
  }

  Status CreateStatus(const ChangeContext& change, LlamaCacheOptions options = {},
                      llama_model* model = nullptr) {
    llama_context_params params = TinyContextParams();
    if (change) change(params);
    ModelIdentity identity;
    identity.id = "tiny";
    return LlamaCache::Create(model != nullptr ? model : model_.get(), identity, params, options).status();
  }

  void ExpectRefused(const ChangeContext& change, const std::string& named) {
    const Status status = CreateStatus(change);
    EXPECT_TRUE(status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kInvalidArgument);
    EXPECT_NE(status.ToString().find(named), std::string::npos) << status.ToString();
  }

  ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
};

TEST_F(EngineFingerprintTest, EverythingThatChangesBytesIsInTheText) {
  const std::string base = Extras();
  EXPECT_EQ(base, Extras());
  const std::vector<ChangeContext> changes = {
      [](auto& p) { p.type_k = GGML_TYPE_BF16; },
      [](auto& p) { p.type_v = GGML_TYPE_BF16; },
      [](auto& p) { p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED; },
      [](auto& p) { p.rope_freq_base = 20000.0f; },
      [](auto& p) { p.rope_freq_scale = 0.5f; },
      [](auto& p) { p.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_LINEAR; },
      [](auto& p) { p.yarn_ext_factor = 0.5f; },
      [](auto& p) { p.yarn_attn_factor = 2.0f; },
      [](auto& p) { p.yarn_beta_fast = 16.0f; },
      [](auto& p) { p.yarn_beta_slow = 2.0f; },
      [](auto& p) { p.yarn_orig_ctx = 1024; },
      [](auto& p) { p.attention_type = LLAMA_ATTENTION_TYPE_CAUSAL; },
      [](auto& p) { p.offload_kqv = !p.offload_kqv; },
      [](auto& p) { p.op_offload = !p.op_offload; },
      [](auto& p) { p.swa_full = !p.swa_full; },
      [](auto& p) { p.n_ctx = 8192; },  // above the model's context other rope factors may be taken
  };
  for (size_t i = 0; i < changes.size(); ++i) EXPECT_NE(Extras(changes[i]), base) << "change " << i;
  EXPECT_NE(Extras({}, nullptr, true), base);
}

TEST_F(EngineFingerprintTest, WhatChangesNoByteIsNot) {
  const std::string base = Extras();
  const std::vector<ChangeContext> changes = {
      [](auto& p) { p.n_ctx = 1024; },        [](auto& p) { p.n_batch = 512; },
      [](auto& p) { p.n_ubatch = 128; },      [](auto& p) { p.n_threads = 7; },
      [](auto& p) { p.n_threads_batch = 7; }, [](auto& p) { p.no_perf = !p.no_perf; },
      [](auto& p) { p.n_seq_max = 9; },
  };
  for (size_t i = 0; i < changes.size(); ++i) EXPECT_EQ(Extras(changes[i]), base) << "change " << i;
}

TEST_F(EngineFingerprintTest, ModelParametersCount) {
  const llama_model_params defaults = llama_model_default_params();
  const std::string base = Extras();
  EXPECT_EQ(Extras({}, &defaults), base);
  llama_model_kv_override overrides[2] = {};
  overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
  std::strcpy(overrides[0].key, "llama.rope.freq_base");
  overrides[0].val_f64 = 5000.0;
  llama_model_params changed = defaults;
  changed.kv_overrides = overrides;
  const std::string overridden = Extras({}, &changed);
  EXPECT_NE(overridden, base);
  overrides[0].val_f64 = 6000.0;
  EXPECT_NE(Extras({}, &changed), overridden);
  changed = defaults;
  changed.use_extra_bufts = !changed.use_extra_bufts;
  EXPECT_NE(Extras({}, &changed), base);
  changed = defaults;
  changed.vocab_only = true;
  EXPECT_FALSE(EngineExtras(model_.get(), &changed, TinyContextParams(), false).ok());
}

TEST_F(EngineFingerprintTest, EnvironmentIsRead) {
  const std::string base = Extras();
  ASSERT_EQ(setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1), 0);
  EXPECT_NE(Extras(), base);
  ASSERT_EQ(unsetenv("LLAMA_ATTN_ROT_DISABLE"), 0);
  EXPECT_EQ(Extras(), base);
}

TEST_F(EngineFingerprintTest, RefusesWhatItCannotServe) {
  EXPECT_TRUE(CreateStatus({}).ok());
  ExpectRefused([](auto& p) { p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO; }, "flash_attn_type");
  ExpectRefused([](auto& p) { p.embeddings = true; }, "embeddings");
  ExpectRefused([](auto& p) { p.pooling_type = LLAMA_POOLING_TYPE_MEAN; }, "pooling_type");
  ExpectRefused([](auto& p) { p.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL; }, "attention_type");
  ExpectRefused([](auto& p) { p.ctx_type = LLAMA_CONTEXT_TYPE_MTP; }, "ctx_type");
  ExpectRefused([](auto& p) { p.n_rs_seq = 2; }, "n_rs_seq");
  ExpectRefused([](auto& p) { p.n_samplers = 1; }, "samplers");
  ExpectRefused([](auto& p) { p.cb_eval = [](ggml_tensor*, bool, void*) { return false; }; }, "cb_eval");
  ExpectRefused([](auto& p) { p.abort_callback = [](void*) { return false; }; }, "abort_callback");
  ExpectRefused([](auto& p) { p.type_v = GGML_TYPE_Q8_0; }, "quantised V");
  BareEngine other(model_.get(), TinyContextParams());
  ExpectRefused([&](auto& p) { p.ctx_other = other.context(); }, "ctx_other");
  LlamaCacheOptions exact;
  exact.exact_only = true;
  EXPECT_TRUE(CreateStatus({}, exact).ok());
  EXPECT_EQ(CreateStatus([](auto& p) { p.n_ubatch = 128; }, exact).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateStatus([](auto& p) { p.n_batch = 128; }, exact).code(), StatusCode::kInvalidArgument);
  LlamaCacheOptions slots;
  slots.slots = 0;
  EXPECT_EQ(CreateStatus({}, slots).code(), StatusCode::kInvalidArgument);
  slots.slots = 100000;
  EXPECT_EQ(CreateStatus({}, slots).code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineFingerprintTest, RefusesModelsWithSeveralPositionsPerToken) {
  const ModelPtr mrope = MakeTinyModelOf("qwen2vl", 1);
  ASSERT_EQ(llama_model_rope_type(mrope.get()), LLAMA_ROPE_TYPE_MROPE);
  const Status status = CreateStatus({}, {}, mrope.get());
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.ToString().find("M-RoPE"), std::string::npos) << status.ToString();
}

TEST_F(EngineFingerprintTest, IdentityIsOneOfTwo) {
  ModelIdentity none, both;
  both.id = "x";
  both.gguf_paths = {"y"};
  for (const ModelIdentity& identity : {none, both}) {
    EXPECT_EQ(LlamaCache::Create(model_.get(), identity, TinyContextParams(), {}).status().code(),
              StatusCode::kInvalidArgument);
  }
  ModelIdentity missing;
  missing.gguf_paths = {"/nowhere/model.gguf"};
  EXPECT_EQ(LlamaCache::Create(model_.get(), missing, TinyContextParams(), {}).status().code(),
            StatusCode::kNotFound);
}

TEST_F(EngineFingerprintTest, TheContextIsUnifiedWithOneSequenceToSpare) {
  LlamaCacheOptions options;
  options.slots = 3;
  llama_context_params params = TinyContextParams();
  params.kv_unified = false;
  params.n_seq_max = 1;
  const auto cache = MakeCache(model_.get(), params, nullptr, options);
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(llama_n_seq_max(cache->context()), 4u);
  EXPECT_EQ(llama_n_ctx_seq(cache->context()), llama_n_ctx(cache->context()));
  EXPECT_EQ(cache->scratch_sequence(), 3);
}

TEST_F(EngineFingerprintTest, SpecFollowsTheModel) {
  const auto spec_of = [&](TinyArchitecture architecture, bool exact_only) {
    const ModelPtr model = MakeTinyModel(architecture);
    LlamaCacheOptions options;
    options.exact_only = exact_only;
    return MakeCache(model.get(), TinyContextParams(), nullptr, options)->spec();
  };
  const KvSpec dense = spec_of(TinyArchitecture::kMla, false);
  EXPECT_EQ(dense.cut, Cut::kWhole);
  EXPECT_EQ(dense.groups, std::vector<GroupSpec>{{Retention::kFull}});
  EXPECT_EQ(dense.payload_form, PayloadForm::kOpaque);
  EXPECT_EQ(spec_of(TinyArchitecture::kGqa, true).cut, Cut::kNone);
  EXPECT_EQ(spec_of(TinyArchitecture::kSmallWindow, false).cut, Cut::kNone);
  EXPECT_EQ(spec_of(TinyArchitecture::kHybrid, false).groups, std::vector<GroupSpec>{{Retention::kFull}});
  const KvSpec recurrent = spec_of(TinyArchitecture::kRecurrent, false);
  EXPECT_EQ(recurrent.cut, Cut::kNone);
  EXPECT_EQ(recurrent.groups, std::vector<GroupSpec>{{Retention::kState}});
}

}  // namespace
}  // namespace terrace::llamacpp
