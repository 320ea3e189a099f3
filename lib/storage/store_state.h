// StoreHandle::State: one Store of views between the call and the moment at which the views' memory is free.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/storage/manager_core.h"
#include "terrace/paged_kv_view.h"
#include "terrace/store.h"

namespace terrace {

// A view with storage of its own; the memory that it points to stays the caller's.
struct KeptView {
  explicit KeptView(const PagedKvView& from);
  KeptView(KeptView&&) noexcept = default;  // moving a vector leaves its elements where they are
  KeptView& operator=(KeptView&&) noexcept = default;

  PagedKvView view;

 private:
  std::vector<PlaneView> planes_;
  std::vector<std::vector<std::byte*>> layer_bases_;  // of each plane that has them
  std::vector<int64_t> block_table_;
};

struct ManagerCore::ViewChunk {
  ChunkKey key;
  ChunkKey parent;
  TokenRange tokens;  // of the prompt
};

struct StoreHandle::State {
  std::shared_ptr<ManagerCore> core;
  RootStateRef root;
  uint64_t request_id = 0;
  uint64_t ticket = 0;
  std::vector<KeptView> views;  // by part
  std::vector<ManagerCore::ViewChunk> chunks;
  // Tokens and items of the range; positions count from its begin.
  TokenRange range;
  std::vector<Token> tokens;
  std::vector<Item> items;
  std::function<void(const StoreReport&)> on_source_free;
  uint64_t copied_bytes = 0;  // the executor's, while it copies

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  bool is_cancelled = false;
  bool is_free = false;
  StoreReport report;

  // Once: the views' memory is the caller's again.
  void Free();
  bool IsCancelled() {
    std::lock_guard lock(mutex);
    return is_cancelled;
  }
};

}  // namespace terrace
