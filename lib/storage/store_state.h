// StoreHandle::State: one Store of views between the call and the moment at which the views' memory is free.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/codec/payload_layout.h"
#include "lib/device/device_set.h"
#include "lib/storage/manager_core.h"
#include "terrace/paged_kv_view.h"
#include "terrace/paged_layouts.h"
#include "terrace/store.h"

namespace terrace {

class DeviceCopier;

// A view with storage of its own; the memory that it points to stays the caller's.
struct KeptView {
  explicit KeptView(const PagedKvView& from);
  KeptView(KeptView&&) noexcept = default;  // moving a vector leaves its elements where they are
  KeptView& operator=(KeptView&&) noexcept = default;

  PagedKvView view;

 private:
  PagedPlanes planes_;
  std::vector<int64_t> block_table_;
};

// What a store copies one part's payloads out of.
struct SourceView {
  SourceView(const PagedKvView& from, const KvSpec& spec) : kept(from), layout(spec, from.part) {}

  KeptView kept;
  PayloadLayout layout;
  ViewPlaces::Place place;  // of a device's memory: behind what computes it
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
  std::vector<SourceView> views;
  std::vector<ManagerCore::ViewChunk> chunks;
  // Tokens and items of the range; positions count from its begin.
  TokenRange range;
  std::vector<Token> tokens;
  std::vector<Item> items;
  std::function<void(const StoreReport&)> on_source_free;

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  bool is_cancelled = false;
  bool is_enqueued = false;  // nothing more will be read by a copy that is not in last_copies
  // Of each device the end of what it was given last; not all that it was given, where that is to be waited
  // for by the source's freedom alone.
  std::map<const DeviceCopier*, std::shared_ptr<Event>> last_copies;
  bool has_unmarked_copies = false;
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
