// What the engine does with Terrace: opens it, keeps a prompt's KV, and begins a prompt with what is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine.h"
#include "terrace/storage_manager.h"
#include "terrace/store.h"

namespace paged_engine {

struct CacheOptions {
  std::string directory;  // of the NVMe tier
  std::string remote;     // a cache server's address; empty = none
};

terrace::Result<std::unique_ptr<terrace::StorageManager>> OpenCache(const CacheOptions& options,
                                                                    const Compute& compute);

// Enqueues and returns. The sequence's blocks must stay until the handle says that they are free.
terrace::Result<terrace::StoreHandle> Keep(terrace::StorageManager& cache, const terrace::ChunkKey& root,
                                           const Sequence& sequence, Engine& engine);

struct Begun {
  Logits logits;
  uint64_t loaded_tokens = 0;  // the others were computed
};

// Fills the sequence's blocks with the longest prefix that is kept, computes the rest.
terrace::Result<Begun> Begin(terrace::StorageManager& cache, const terrace::ChunkKey& root,
                             const Sequence& sequence, Engine& engine);

}  // namespace paged_engine
