// Manifest: the records of a directory in RocksDB - where each object lies, what it is, and the roots table.
// Records only, never payload. Column families: places, contents (keys and values as in
// lib/wire/object_record.h), roots; the default one holds "next_generation" (u64 little-endian).
//
// Threads: every call from every thread. Apply survives a crash of the process when it returns (the log's
// write is done), a power loss with `sync` or after Sync.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/wire/object_record.h"
#include "terrace/backend.h"
#include "terrace/status.h"

namespace terrace {

// What the manifest may take of a capacity, kept free of segments: 1/32, at least 1 MiB, at most the
// capacity. Records may take half of it (see RecordBudget), the rest is for RocksDB's log and the copies that
// compaction makes: space of live records is 1.1 x with dynamic levels, plus files that wait to be merged,
// plus log and memtables, which are sized from the reserve. 1/32 with records of 1.3 KiB (256 tokens) serves
// objects of 88 KiB and more in full; smaller ones meet the record budget first, and then see
// kResourceExhausted as with full segments.
uint64_t ManifestReserve(uint64_t capacity_bytes);
// Bytes of encoded records that may be live.
uint64_t RecordBudget(uint64_t reserve_bytes);

// One object's records written or deleted.
struct RecordChange {
  std::string key;
  bool is_delete = false;
  std::string place;
  std::string content;  // empty: no record of the content
};

// Key, both values and what RocksDB adds.
uint64_t RecordBytes(size_t place_bytes, size_t content_bytes);

struct LoadedRecord {
  ObjectId id;
  ObjectRecord record;  // meta.content stays null
  uint64_t record_bytes = 0;
};

class Manifest {
 public:
  static Result<std::unique_ptr<Manifest>> Open(const std::string& path, uint64_t reserve_bytes);
  virtual ~Manifest() = default;

  // All or none of them, in order.
  virtual Status Apply(std::span<const RecordChange> changes, bool sync) = 0;
  // Every record, roots included; durable.
  virtual Status DropAll() = 0;
  virtual Status Sync() = 0;

  // Calls `each` for every record that is whole; keys of broken ones (a checksum, a content without a place)
  // are appended to `broken`.
  virtual Status Load(const std::function<void(LoadedRecord)>& each, std::vector<std::string>* broken) = 0;
  // A number that is higher than any generation given out before, durably reserving those up to `count` above
  // it.
  virtual Result<uint64_t> ReserveGenerations(uint64_t count) = 0;

  virtual Result<ScanPage> Scan(std::string_view cursor, size_t limit) = 0;
  virtual Status PutRoot(const RootRecord& record) = 0;
  virtual Result<std::vector<RootRecord>> ScanRoots() = 0;

  // Nothing else may be called after.
  virtual Status Close() = 0;
};

}  // namespace terrace
