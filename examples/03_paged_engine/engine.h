// Engine: prefill and decode of one sequence at a time over paged KV. Knows nothing of the cache but one
// callback: before a layer touches its pages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "compute.h"
#include "model.h"
#include "pages.h"
#include "terrace/status.h"

namespace paged_engine {

using Logits = std::vector<float>;  // behind the last token

class Engine {
 public:
  // `num_blocks`: of the paged memory.
  Engine(const ModelShape& shape, PageLayout layout, uint32_t num_blocks, Compute& compute);

  // Called in the first step, in the order of the layers, before work that touches the layer's pages is
  // enqueued. An error ends the computing with it.
  using BeforeLayer = std::function<terrace::Status(uint32_t layer)>;

  // Computes tokens [first, end) of the sequence, whose blocks are reserved and hold the KV of [0, first).
  // first < end.
  terrace::Result<Logits> Forward(const Sequence& sequence, uint64_t first,
                                  const BeforeLayer& before_layer = nullptr);

  KvPages& pages() { return pages_; }
  const ModelShape& shape() const { return model_.shape(); }

 private:
  static constexpr uint32_t kTokensPerStep = 128;

  Compute& compute_;
  const Model model_;
  KvPages pages_;
  std::shared_ptr<std::byte> block_table_;  // of the sequence that is computed
  std::shared_ptr<std::byte> memory_;       // of the activations
  Activations rows_;
};

}  // namespace paged_engine
