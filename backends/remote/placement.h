// Placement: which of several servers has which chunks. A run of chunks (RunBegin, RunEnd) lies on one server
// (on `replicas`), found by rendezvous hashing of the key of its first chunk: a server that comes or goes
// moves only the runs that are, or were, its own.
//
//   server word = first 8 bytes, little-endian, of SHA-256(address as configured)
//   key word    = first 8 bytes, little-endian, of the run's key
//   score       = Mix64(server word ^ Mix64(key word))      Mix64: the finalizer of SplitMix64
//
// The servers with the highest scores own the run; equal scores go by server word. These words decide where
// data lies: they are frozen.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "terrace/backend.h"
#include "terrace/object_id.h"

namespace terrace::remote {

uint64_t Mix64(uint64_t value);
uint64_t ServerWord(std::string_view address);

// Places in `server_words` of the owners, best first; at most `count`.
std::vector<size_t> OwnersOf(const ChunkKey& run_key, std::span<const uint64_t> server_words, size_t count);

// A query cut at the runs' borders.
struct SubQuery {
  PrefixQuery query;
  ChunkKey run_key;
  bool ask_all = false;  // a tail that begins a run: its own key, which places it, is not known
};
std::vector<SubQuery> SplitQuery(const PrefixQuery& query);

// Appends the answer to `next`, which follows on `joined`; false where nothing can follow any more. What of
// `next` lies beyond a gap is left out.
bool JoinMatch(const SubQuery& asked, const PrefixMatch& next, PrefixMatch& joined);

}  // namespace terrace::remote
