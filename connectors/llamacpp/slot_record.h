// SlotRecord: what the connector knows of one slot: the tokens and items that Fetch and Save reported, and
// what of them is stored. The engine knows positions only; that they belong to these tokens is known from
// here.
//
// Invariant while `known`: the slot held exactly `tokens` with `items` when Fetch or Save last returned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "connectors/llamacpp/llama_cache.h"

namespace terrace::llamacpp {

struct SlotRecord {
  bool known = true;  // false: nothing can be said until the next Fetch
  std::vector<llama_token> tokens;
  std::vector<Item> items;
  uint64_t stored_tokens = 0;        // chunks up to here were stored or present when last asked
  uint64_t exact_tokens = 0;         // up to here every chunk was computed in one full step, or loaded
  uint64_t retry_at = 0;             // storing failed: not before the slot holds so many tokens
  std::vector<ChunkKey> unreported;  // injected, and no logits were reported since (option check_logits)

  // The largest m such that tokens [0, m) and all items before m are those of the prompt.
  uint64_t CommonPrefix(const Prompt& prompt) const {
    const auto end =
        std::mismatch(tokens.begin(), tokens.end(), prompt.tokens.begin(), prompt.tokens.end()).first;
    uint64_t common = static_cast<uint64_t>(end - tokens.begin());
    const auto differing =
        std::mismatch(items.begin(), items.end(), prompt.items.begin(), prompt.items.end());
    if (differing.first != items.end()) common = std::min(common, differing.first->position);
    if (differing.second != prompt.items.end()) common = std::min(common, differing.second->position);
    return common;
  }

  // The slot holds the first `count` tokens of the prompt. Items at or after `count` are dropped.
  void Assign(const Prompt& prompt, uint64_t count) {
    known = true;
    tokens.assign(prompt.tokens.begin(), prompt.tokens.begin() + static_cast<ptrdiff_t>(count));
    items.clear();
    for (const Item& item : prompt.items) {
      if (item.position < count) items.push_back(item);
    }
    retry_at = 0;
  }

  // The slot holds the whole prompt, of which `tokens` is a prefix.
  void Extend(const Prompt& prompt) {
    tokens.insert(tokens.end(), prompt.tokens.begin() + static_cast<ptrdiff_t>(tokens.size()),
                  prompt.tokens.end());
    items.insert(items.end(), prompt.items.begin() + static_cast<ptrdiff_t>(items.size()),
                 prompt.items.end());
  }

  // Keeps `unreported`: the context may be poisoned whatever becomes of the slot.
  void Reset(bool is_known) {
    known = is_known;
    tokens.clear();
    items.clear();
    stored_tokens = exact_tokens = retry_at = 0;
  }
};

}  // namespace terrace::llamacpp
