// StripedBackend: one Backend over several of one kind, each on a device of its own. A chunk lies in one of
// them, chosen by its key (rendezvous hashing over the members' lasting seeds: a member that comes or goes
// moves nothing but its own share), with all its groups and shards. What lies elsewhere, from a time with
// other members, is found there.
//
// Batches are split by member and answered as one, in order, when the last part is answered. The roots table
// is written to every member, so that the loss of one loses nothing of it. A member that fails fails its own
// operations only.
//
// Threads: as Backend says; completions come on the thread of the member that answers last.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/backend.h"

namespace terrace {

struct StripeMember {
  std::string name;                  // in messages
  uint64_t seed = 0;                 // the same at every open, different for each member
  std::unique_ptr<Backend> backend;  // not attached yet
  std::vector<ObjectId> ids;         // what it holds
};

// The member that new objects of `key` go to.
size_t StripeOwner(std::span<const uint64_t> seeds, const ChunkKey& key);

// `members` has one at least. An object that two of them hold is evicted from the one that does not own it.
std::unique_ptr<Backend> MakeStripedBackend(std::string name, std::vector<StripeMember> members);

}  // namespace terrace
