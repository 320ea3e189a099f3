// ManagerCore::Asked: what a request asks for, checked and hashed.
#pragma once

#include <memory>
#include <vector>

#include "lib/storage/manager_core.h"

namespace terrace {

struct ManagerCore::Asked {
  RootStateRef root;
  std::vector<ObjectPart> parts;          // never empty
  std::unique_ptr<RequestState> request;  // hashed up to the prompt's end
  std::unique_ptr<RequestState> other;    // what the request id stood for, where these are other tokens

  // The key of what chunk i hangs on.
  const ChunkKey& ParentOf(uint64_t i) const { return i == 0 ? root->root : request->keys[i - 1]; }
};

}  // namespace terrace
