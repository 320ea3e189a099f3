// Lease: the result of a lookup and what protects it; PrefixPresence: the result of a peek, which protects
// nothing. A Lease is used by one thread at a time; different leases by different threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

// What protects a lookup's chunks. Moves; destruction (or Release) ends the protection.
class TERRACE_API Lease {
 public:
  struct State;  // internal
  Lease();
  ~Lease();
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  explicit Lease(std::shared_ptr<State> state);

  // Tokens of the prompt that can be loaded for every part asked for; 0 is a miss. Grows once, when the
  // remote part has arrived (is_pending() turns false).
  uint64_t matched_tokens() const;
  // Of those, tokens whose objects all lie in the first (host) tier.
  uint64_t host_tokens() const;
  // Objects that a load of the whole match yields.
  uint64_t num_objects() const;
  // Frame bytes of them.
  uint64_t frame_bytes() const;
  // False where the lease budget has no room for its host bytes, or after the deadline: a hint.
  bool is_protected() const;
  // A remote tier has been asked for what lies beyond the local match, and has not answered yet.
  bool is_pending() const;
  // Until it has answered; kDeadlineExceeded otherwise, and the lease stays as it is. What a remote tier
  // could not answer is a miss, not an error.
  Status WaitRemote(TimePoint deadline) const;
  void Release();
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

struct LookupOptions {
  // Same id, same root, tokens that extend the earlier ones: renews and extends the earlier lease's
  // protection. Other tokens release it first. 0 is anonymous.
  uint64_t request_id = 0;
  // The match ends here at the latest (an engine must compute at least one token).
  uint64_t max_tokens = UINT64_MAX;
  // What is asked for; empty = every group of shard 0.
  std::vector<ObjectPart> parts;
  // How long a remote tier may take for its part of the answer; zero: it is not asked.
  Duration remote_deadline = std::chrono::seconds(1);
  // Called once, on the executor, when the remote part has arrived or failed, with the lease's matched tokens
  // then; not called where no remote tier was asked, or where the lease was released first. May be null.
  std::function<void(uint64_t matched_tokens)> on_remote;
};

// What a Peek saw: an answer for schedulers that poll, with no protection behind it.
struct PrefixPresence {
  uint64_t matched_tokens = 0;  // as Lease::matched_tokens of the local tiers
  uint64_t host_tokens = 0;     // of those, in the host tier
  uint64_t num_objects = 0;
  uint64_t frame_bytes = 0;
  uint64_t host_frame_bytes = 0;  // of those, in the host tier
};

}  // namespace terrace
