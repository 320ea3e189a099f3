// PutOrder: what has to wait for puts in flight: an erase for those of its objects, clear and flush for all,
// a put's commit for the earlier puts of its objects' parents, which a server wants first.
//
// Threads: every call from every thread. What waited runs on the thread that ended the last put, without a
// lock, or inside After where nothing is in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "terrace/object_id.h"

namespace terrace::remote {

class PutOrder {
 public:
  uint64_t Begin(std::span<const ObjectId> ids);
  void End(uint64_t flight);
  // Once every put that has begun, of these ids (of any: empty), has ended. `before`: only flights with a
  // smaller number count, so that two flights never wait for each other.
  void After(std::span<const ObjectId> ids, std::function<void()> work, uint64_t before = UINT64_MAX);

 private:
  struct Waiter {
    size_t num_flights = 0;
    std::function<void()> work;
  };
  struct Flight {
    absl::flat_hash_set<ObjectId, ObjectIdHash> ids;
    std::vector<std::shared_ptr<Waiter>> waiters;
  };
  std::mutex mutex_;
  std::map<uint64_t, Flight> flights_;
  uint64_t next_ = 1;
};

}  // namespace terrace::remote
