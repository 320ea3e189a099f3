// ErasedLog: the ids that were erased, outside the manifest, so that a rebuild of a lost manifest from the
// segments does not bring one back. A frame that was evicted lies in free space with a whole tier page until
// its place is used again; an Erase wipes the page of the live object, if there is one, and adds the id here.
//
// File `erased`, entries of 64 bytes, appended, little-endian:
//
//   offset  size
//   0       32    key
//   32      2     u16 group
//   34      2     u16 shard
//   36      4     u32 version = 1
//   40      8     u64 floor: no frame of this id with a generation below it is adopted
//   48      8     zeros
//   56      8     XXH3-64 of bytes [0, 56)
//
// An entry with a wrong checksum in front of whole ones hides an id that nobody can name any more: a rebuild
// then leaves out every frame below the highest floor in the log.
//
// When it is full, the superblock's rebuild_floor rises to the generation that is next, and the log begins
// anew: a rebuild after that leaves out what is older. Clear empties it: another secret does its work.
//
// Threads: none of its own; one caller at a time (the commit thread).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>

#include "backends/nvme/disk.h"
#include "terrace/object_id.h"

namespace terrace {

inline constexpr char kErasedLogName[] = "erased";
inline constexpr size_t kErasedEntryBytes = 64;

struct ErasedEntry {
  ObjectId id;
  uint64_t floor = 0;
};

using ErasedFloors = std::unordered_map<ObjectId, uint64_t, ObjectIdHash>;

class ErasedLog {
 public:
  // At most `max_entries` (> 0) before it is full. Entries with a wrong checksum at the end are what a crash
  // left and are cut off. `disk` outlives it. A log that is made anew is there after a power loss, once this
  // returned.
  static Result<std::unique_ptr<ErasedLog>> Open(Disk& disk, size_t max_entries);
  // For who only looks: the file is not changed, and what a crash left at its end stays there. kNotFound
  // where there is none.
  static Result<std::unique_ptr<const ErasedLog>> OpenForReading(Disk& disk);
  virtual ~ErasedLog() = default;

  // Durable when it returns OK. kResourceExhausted (and nothing added): it would be full.
  virtual Status Add(std::span<const ErasedEntry> entries) = 0;
  // Empties it, durably. Only after the superblock that makes it unnecessary is durable.
  virtual Status Reset() = 0;
  virtual size_t num_entries() const = 0;
  // For a rebuild: the highest floor of each id.
  virtual const ErasedFloors& Floors() const = 0;
  // Broken entries in front of whole ones, found at open.
  virtual size_t num_broken() const = 0;
  // Of all entries; 0 without any. No frame of this generation or above existed when the last was added.
  virtual uint64_t highest_floor() const = 0;
};

}  // namespace terrace
