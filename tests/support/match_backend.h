// MatchBackend: a remote store as the manager sees one, with everything in a test's hands. It answers prefix
// queries for itself, token-exactly, out of a map of objects; it completes when the test says so; and it may
// lie.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "terrace/backend.h"

namespace terrace {

// What lies in the store: shared by the backends that are opened on it, one after another or at once.
struct MatchShelf {
  struct Object {
    ObjectMeta meta;
    std::vector<std::byte> frame;
  };
  std::mutex mutex;
  std::map<ObjectId, Object> objects;

  // Completions wait in `held` while these are set. What is held at Close is answered with kCancelled.
  bool holding_matches = false;
  bool holding_gets = false;
  bool holding_puts = false;
  bool never_answers = false;             // a Match is forgotten, at Close too
  bool throws = false;                    // from Match
  Status match_status;                    // what a Match fails with
  Status put_status;                      // what a Put fails with
  std::function<void(PrefixMatch&)> lie;  // changes each answer before it is given

  uint64_t matches = 0;
  uint64_t gets = 0;
  uint64_t puts = 0;
  std::vector<PrefixQuery> queries;
  std::vector<std::string> released;  // lease tokens, in the order in which they came back
  std::vector<std::function<void(bool cancelled)>> held;

  // Runs what is held; how much that was. Holding stays as it is.
  size_t ReleaseHeld(bool cancelled = false);
  size_t num_held();
  size_t num_objects();
  uint64_t num_matches();
  std::vector<std::string> Released();
  // The next calls see `change` done.
  template <typename F>
  void Set(F&& change) {
    std::lock_guard lock(mutex);
    change(*this);
  }
};

std::unique_ptr<Backend> MakeMatchBackend(std::shared_ptr<MatchShelf> shelf);

}  // namespace terrace
