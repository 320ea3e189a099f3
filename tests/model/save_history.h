// SaveHistory: which saves of which object may be answered, while several threads store, load and erase. A
// load may give any save that was committed and that no erase had ended before the load began.
//
// Threads: every call from every thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "terrace/object_id.h"

namespace terrace {

class SaveHistory {
 public:
  // A moment: what happened before it has a smaller number.
  uint64_t Now() { return ++now_; }

  // Before the Commit. The save's number.
  uint64_t BeginCommit(const ObjectId& id) {
    std::lock_guard lock(mutex_);
    Object& object = objects_[id];
    ++object.commits_begun;
    object.saves[++last_save_] = {};
    return last_save_;
  }
  void EndCommit(const ObjectId& id, uint64_t save) {
    std::lock_guard lock(mutex_);
    objects_[id].saves[save].committed_at = ++now_;
  }

  uint64_t CommitsBegun(const ObjectId& id) {
    std::lock_guard lock(mutex_);
    return objects_[id].commits_begun;
  }
  // The erase that began at `began` has returned: what had been committed by then is gone from now on.
  void EndErase(const ObjectId& id, uint64_t began) {
    std::lock_guard lock(mutex_);
    const uint64_t now = ++now_;
    for (auto& [number, save] : objects_[id].saves) {
      if (save.committed_at < began && save.ended_at > now) save.ended_at = now;
    }
  }

  // Why a load that began at `began` must not give this save; empty where it may.
  std::string WhyNot(const ObjectId& id, uint64_t save, uint64_t began) {
    std::lock_guard lock(mutex_);
    const auto& saves = objects_[id].saves;
    const auto found = saves.find(save);
    if (found == saves.end()) return "a save that was never committed";
    if (found->second.ended_at < began) return "a save that was erased before the load began";
    return "";
  }

 private:
  struct Save {
    uint64_t committed_at = UINT64_MAX;
    uint64_t ended_at = UINT64_MAX;
  };
  struct Object {
    uint64_t commits_begun = 0;
    std::map<uint64_t, Save> saves;
  };

  std::atomic<uint64_t> now_{0};
  std::mutex mutex_;
  std::map<ObjectId, Object> objects_;
  uint64_t last_save_ = 0;
};

}  // namespace terrace
