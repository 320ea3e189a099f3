// MemoryDisk: what a durable backend is to the manager, with everything in a test's hands: the bytes survive
// a reopen, completions can be held and released in any order, frames can be looked at, flipped and swapped.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "terrace/backend.h"

namespace terrace {

// The platters: shared by the backends that are opened on them one after another.
struct MemoryPlatters {
  struct Object {
    ObjectMeta meta;
    std::vector<std::byte> frame;
  };
  std::mutex mutex;
  std::map<ObjectId, Object> objects;
  std::map<ChunkKey, RootRecord> roots;
  uint64_t generation = 0;
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t get_bytes = 0;  // of frames, as far as they were read
  uint64_t max_used_bytes = 0;
  // Completions wait here while holding is set; a held Put has not landed yet.
  bool holding_puts = false;
  bool holding_gets = false;
  std::vector<std::function<void()>> held;

  uint64_t UsedBytes() const;  // with mutex held
  // Runs what is held, first or last first; returns how much that was. Holding stays as it is.
  size_t ReleaseHeld(bool last_first = false);
  size_t num_held();
};

std::unique_ptr<Backend> MakeMemoryDisk(std::shared_ptr<MemoryPlatters> platters, uint64_t capacity_bytes);

}  // namespace terrace
