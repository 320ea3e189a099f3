// What is kept of a request id between lookups: its prompt so far and the hash state, so that a grown prompt
// hashes only its new tokens.
#pragma once

#include <memory>
#include <vector>

#include "lib/storage/manager_core.h"

namespace terrace {

struct ManagerCore::RequestState {
  RootStateRef root;
  TokenHasher hasher;
  std::vector<Token> tokens;
  std::vector<Item> items;
  std::weak_ptr<Lease::State> lease;
  TimePoint deadline{};

  explicit RequestState(RootStateRef r)
      : root(std::move(r)), hasher(root->root, root->spec.tokens_per_chunk) {}

  bool IsExtendedBy(const RootStateRef& other_root, const TokenView& prompt) const;
  Status Extend(const TokenView& prompt);
};

}  // namespace terrace
