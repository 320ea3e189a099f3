#include "connectors/llamacpp/tests/tiny_models.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"

namespace terrace::llamacpp {
namespace {

constexpr uint32_t kEmbedding = 128;
constexpr uint32_t kLayers = 2;

struct GgufDeleter {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufDeleter>;

class Metadata {
 public:
  explicit Metadata(const std::string& architecture) : gguf_(gguf_init_empty()), prefix_(architecture + ".") {
    gguf_set_val_str(gguf_.get(), "general.architecture", architecture.c_str());
    gguf_set_val_str(gguf_.get(), "tokenizer.ggml.model", "no_vocab");
    U32("vocab_size", kTinyVocabulary);
    U32("context_length", 4096);
    U32("block_count", kLayers);
    F32("attention.layer_norm_rms_epsilon", 1e-5f);
  }
  void U32(const char* key, uint32_t value) { gguf_set_val_u32(gguf_.get(), (prefix_ + key).c_str(), value); }
  void F32(const char* key, float value) { gguf_set_val_f32(gguf_.get(), (prefix_ + key).c_str(), value); }
  void U32s(const char* key, const std::vector<uint32_t>& values) {
    gguf_set_arr_data(gguf_.get(), (prefix_ + key).c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
  }
  void Attention(uint32_t heads, uint32_t kv_heads) {
    U32("embedding_length", kEmbedding);
    U32("feed_forward_length", kEmbedding);
    U32("attention.head_count", heads);
    U32("attention.head_count_kv", kv_heads);
  }
  gguf_context* get() { return gguf_.get(); }

 private:
  GgufPtr gguf_;
  const std::string prefix_;
};

uint64_t HashName(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325ull ^ (seed * 0x9e3779b97f4a7c15ull);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// Uniform in [-1, 1): the same in every standard library.
float Uniform(std::mt19937_64& random) {
  return static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-52 - 1.0);
}

void FillTensor(ggml_tensor* tensor, void* user) {
  const std::string_view name = tensor->name;
  std::mt19937_64 random(HashName(name, *static_cast<const uint64_t*>(user)));
  std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
  const bool norm = name.find("norm") != std::string_view::npos;
  const bool decay = name.find("ssm_a") != std::string_view::npos;  // must be negative
  for (float& value : values) {
    value = norm ? 1.0f + 0.1f * Uniform(random) : 0.2f * Uniform(random);
    if (decay) value = -std::fabs(value) - 0.01f;
  }
  if (tensor->type == GGML_TYPE_F16) {
    std::vector<ggml_fp16_t> halves(values.size());
    ggml_fp32_to_fp16_row(values.data(), halves.data(), static_cast<int64_t>(values.size()));
    ggml_backend_tensor_set(tensor, halves.data(), 0, ggml_nbytes(tensor));
    return;
  }
  ASSERT_EQ(tensor->type, GGML_TYPE_F32);
  ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

Metadata Describe(TinyArchitecture architecture) {
  switch (architecture) {
    case TinyArchitecture::kGqa:
    case TinyArchitecture::kMha: {
      Metadata llama("llama");
      llama.Attention(4, architecture == TinyArchitecture::kGqa ? 2 : 4);
      return llama;
    }
    case TinyArchitecture::kMla: {
      Metadata mla("deepseek2");
      mla.Attention(2, 1);
      mla.U32("leading_dense_block_count", kLayers);
      mla.U32("expert_feed_forward_length", kEmbedding);
      mla.U32("expert_shared_count", 0);
      mla.U32("attention.q_lora_rank", 32);
      mla.U32("attention.kv_lora_rank", 64);
      mla.U32("attention.key_length", 96);
      mla.U32("attention.value_length", 64);
      mla.U32("attention.key_length_mla", 64);
      mla.U32("attention.value_length_mla", 32);
      mla.U32("rope.dimension_count", 32);
      return mla;
    }
    case TinyArchitecture::kSmallWindow:
    case TinyArchitecture::kLargeWindow: {
      Metadata gemma("gemma3");
      gemma.Attention(4, 2);
      gemma.U32("attention.key_length", 32);
      gemma.U32("attention.value_length", 32);
      gemma.U32("attention.sliding_window", architecture == TinyArchitecture::kSmallWindow ? 64 : 384);
      gemma.U32("attention.sliding_window_pattern", 2);
      return gemma;
    }
    case TinyArchitecture::kHybrid: {
      Metadata lfm2("lfm2");
      lfm2.U32("embedding_length", kEmbedding);
      lfm2.U32("feed_forward_length", kEmbedding);
      lfm2.U32s("attention.head_count", {4, 4});
      lfm2.U32s("attention.head_count_kv", {2, 0});  // 0: short convolution instead of attention
      lfm2.U32("shortconv.l_cache", 3);
      return lfm2;
    }
    case TinyArchitecture::kRecurrent: {
      Metadata mamba("mamba");
      mamba.U32("embedding_length", 64);
      mamba.U32("ssm.conv_kernel", 4);
      mamba.U32("ssm.inner_size", 128);
      mamba.U32("ssm.state_size", 16);
      mamba.U32("ssm.time_step_rank", 8);
      return mamba;
    }
  }
  std::abort();
}

ModelPtr Build(Metadata metadata, uint64_t seed) {
  ModelPtr model(llama_model_init_from_user(metadata.get(), FillTensor, &seed, llama_model_default_params()));
  if (!model) {
    ADD_FAILURE() << "the engine does not take the tiny model";
    std::abort();
  }
  return model;
}

}  // namespace

const char* NameOf(TinyArchitecture architecture) {
  switch (architecture) {
    case TinyArchitecture::kGqa:
      return "Gqa";
    case TinyArchitecture::kMha:
      return "Mha";
    case TinyArchitecture::kMla:
      return "Mla";
    case TinyArchitecture::kSmallWindow:
      return "SmallWindow";
    case TinyArchitecture::kLargeWindow:
      return "LargeWindow";
    case TinyArchitecture::kHybrid:
      return "Hybrid";
    case TinyArchitecture::kRecurrent:
      return "Recurrent";
  }
  return "";
}

ModelPtr MakeTinyModel(TinyArchitecture architecture, uint64_t seed) {
  return Build(Describe(architecture), seed);
}

ModelPtr MakeTinyModelOf(const std::string& architecture, uint64_t seed) {
  Metadata metadata(architecture);
  metadata.Attention(4, 2);
  metadata.U32s("rope.dimension_sections", {4, 4, 4, 4});
  return Build(std::move(metadata), seed);
}

void WriteTinyLora(const std::string& path, uint64_t seed) {
  constexpr int64_t kRank = 4;
  ggml_context* context = ggml_init({.mem_size = size_t{1} << 20, .mem_buffer = nullptr, .no_alloc = false});
  ASSERT_NE(context, nullptr);
  GgufPtr gguf(gguf_init_empty());
  gguf_set_val_str(gguf.get(), "general.type", "adapter");
  gguf_set_val_str(gguf.get(), "general.architecture", "llama");
  gguf_set_val_str(gguf.get(), "adapter.type", "lora");
  gguf_set_val_f32(gguf.get(), "adapter.lora.alpha", 8.0f);
  const auto add = [&](const char* name, int64_t columns, int64_t rows) {
    ggml_tensor* tensor = ggml_new_tensor_2d(context, GGML_TYPE_F32, columns, rows);
    ggml_set_name(tensor, name);
    std::mt19937_64 random(HashName(name, seed));
    for (int64_t i = 0; i < columns * rows; ++i)
      static_cast<float*>(tensor->data)[i] = 0.2f * Uniform(random);
    gguf_add_tensor(gguf.get(), tensor);
  };
  add("blk.0.attn_k.weight.lora_a", kEmbedding, kRank);
  add("blk.0.attn_k.weight.lora_b", kRank, 64);
  ASSERT_TRUE(gguf_write_to_file(gguf.get(), path.c_str(), false));
  ggml_free(context);
}

}  // namespace terrace::llamacpp
