// Random-weight models of a few layers, made in memory: any architecture, no file. Weights depend on the seed
// and the tensor's name only, so two models of one seed are equal in every process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "llama.h"

namespace terrace::llamacpp {

enum class TinyArchitecture {
  kGqa,          // llama, 4 query and 2 KV heads
  kMha,          // llama, 4 and 4
  kMla,          // deepseek2
  kSmallWindow,  // gemma3, window 64: smaller than a chunk
  kLargeWindow,  // gemma3, window 384: larger than a chunk
  kHybrid,       // lfm2
  kRecurrent,    // mamba
};

const char* NameOf(TinyArchitecture architecture);

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelDeleter>;

inline constexpr int32_t kTinyVocabulary = 96;

// Ends the test program if the engine does not take the model.
ModelPtr MakeTinyModel(TinyArchitecture architecture, uint64_t seed = 1);
// The same with one more key of type u32, e.g. to make it something that cannot be served.
ModelPtr MakeTinyModelOf(const std::string& architecture, uint64_t seed);

// Writes a LoRA adapter for the kGqa model.
void WriteTinyLora(const std::string& path, uint64_t seed);

}  // namespace terrace::llamacpp
