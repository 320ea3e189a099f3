// IndexEntry: what the index knows of one chunk, and ObjectPresence: where one of its objects lies. Who may
// read and write them is said in chunk_index.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "lib/core/packed_content.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

using TierMask = uint8_t;  // bit i: tier i
inline constexpr size_t kMaxTiers = 8;
constexpr TierMask TierBit(size_t tier) { return static_cast<TierMask>(1u << tier); }

// One object of a chunk. Exists while it lies in a tier or is being stored. 24 bytes.
struct ObjectPresence {
  ObjectPart part;
  TierMask tiers = 0;        // visible there
  TierMask writing = 0;      // write-behind to there is queued or in flight
  bool is_storing = false;   // prepared or committed, not yet published
  uint32_t division = 0;     // KvSpec::DivisionTag of whoever stored it
  uint32_t frame_pages = 0;  // frame_bytes / 4,096
  uint64_t payload_bytes = 0;

  uint64_t frame_bytes() const { return uint64_t{frame_pages} * 4096; }
  bool is_gone() const { return tiers == 0 && writing == 0 && !is_storing; }
};
static_assert(sizeof(ObjectPresence) == 24);

// The number of an entry in the index's slabs; half of a pointer. 0 is none.
using EntryHandle = uint32_t;

// In which part of the order of its siblings a child stands.
enum class ChildOrder : uint8_t {
  kPlain,      // no item at its first token, which `first` then is
  kItemFirst,  // an item there: `first` holds its first four bytes, so that smaller is still before
  kNoContent,  // after all others, by key; also where the entry is in no parent's order (yet)
};

struct IndexEntry {
  static constexpr uint16_t kUnknownTokens = UINT16_MAX;

  ChunkKey key;

  // The index's own: the entry's place among its siblings, a treap in order of content with priorities from
  // the keys. Guarded by the shard of the parent.
  EntryHandle left = 0;
  EntryHandle right = 0;
  uint32_t first = 0;  // most comparisons end here
  ChildOrder order = ChildOrder::kNoContent;

  bool was_visited = false;  // since the sweep for index_bytes last passed
  uint16_t num_tokens = 0;   // 0 for placeholders, kUnknownTokens before the content was first given

  // Pins. `holds` keeps the entry in the index; the others, of which each has a hold too, protect its objects
  // in the host tier and in the tiers below.
  uint32_t holds = 0;
  uint32_t host_pins = 0;
  uint32_t lower_pins = 0;

  EntryHandle children = 0;  // the index's own: the root of its children's treap

  IndexEntry* parent = nullptr;                    // null for placeholders
  PackedContentRef content;                        // null for placeholders, and where index_bytes took it
  absl::InlinedVector<ObjectPresence, 1> objects;  // in order of part
  uint32_t root_number = 0;                        // the owner's number of the root
  uint32_t first_token = 0;

  // The index's own.
  EntryHandle handle = 0;
  uint16_t stays = 0;      // operations under way on it or on a child: it is not freed
  bool is_moving = false;  // the sweep is taking its content

  ObjectPresence* Find(ObjectPart part);
  const ObjectPresence* Find(ObjectPart part) const { return const_cast<IndexEntry*>(this)->Find(part); }
  ObjectPresence& FindOrAdd(ObjectPart part);
  bool is_placeholder() const { return num_tokens == 0; }
  bool has_children() const { return children != 0; }
};
static_assert(sizeof(IndexEntry) == 128);

}  // namespace terrace
