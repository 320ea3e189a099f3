// Manifest: the records of a directory in RocksDB - where each object lies, what it is, and the roots table.
// Records only, never payload. Column families: places, contents (keys and values as in
// lib/wire/object_record.h), roots; the default one holds "next_generation" (u64 little-endian),
// "identity" (directory id[16] | secret tag[16] | u64 floor) and the quarantine:
// "quarantine/" | u32 segment | u64 offset, both big-endian -> u64 length, little-endian.
//
// With a RecordCipher the values of contents and roots lie sealed, places do not.
//
// Threads: every call from every thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/nvme/record_cipher.h"
#include "lib/wire/object_record.h"
#include "lib/wire/tier_page.h"
#include "terrace/backend.h"
#include "terrace/status.h"

namespace rocksdb {
class FileSystem;
}

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

// What a change survives once Apply has returned. Of several in one call the strongest counts for all.
enum class RecordWrite : uint8_t {
  kUnlogged,  // a clean close
  kLogged,    // and a crash of the process: the log's write is done
  kSynced,    // and a power loss
};

// Key, both values and what RocksDB adds.
uint64_t RecordBytes(size_t place_bytes, size_t content_bytes);

struct LoadedRecord {
  ObjectId id;
  ObjectRecord record;  // meta.content stays null
  uint64_t record_bytes = 0;
};

// What a manifest belongs to. A manifest without one and with generations is complete and was made before
// there were identities; one without both was not finished.
struct ManifestIdentity {
  DirectoryId directory{};
  // First bytes of SHA-256 of the directory's secret: another one, and a Clear came after its last record.
  std::array<std::byte, 16> secret_tag{};
  // At least the superblock's rebuild_floor, or the manifest is older than that.
  uint64_t floor = 0;
  friend bool operator==(const ManifestIdentity&, const ManifestIdentity&) = default;
};

class Manifest {
 public:
  // Whether there is a database at `path`; kUnavailable where that cannot be known.
  static Result<bool> Exists(const std::string& path, rocksdb::FileSystem& files);
  // `files`: where the database lies, see Disk::RocksFileSystem. `cipher` may be null, and outlives it.
  // kDataLoss where files of it are damaged or missing.
  static Result<std::unique_ptr<Manifest>> Open(const std::string& path, uint64_t reserve_bytes,
                                                std::shared_ptr<rocksdb::FileSystem> files,
                                                const RecordCipher* cipher = nullptr);
  virtual ~Manifest() = default;

  // All or none of them, in order.
  virtual Status Apply(std::span<const RecordChange> changes, RecordWrite write) = 0;
  // Every record, roots included; durable.
  virtual Status DropAll() = 0;
  // What was applied before, kUnlogged too, is kSynced now.
  virtual Status Sync() = 0;

  // Calls `each` for every record that is whole; keys of broken ones (a checksum, a content without a place)
  // are appended to `broken`.
  virtual Status Load(const std::function<void(LoadedRecord)>& each, std::vector<std::string>* broken) = 0;
  // The same without reading contents, and without seeing what is wrong with them: a start. In no order, on
  // two threads; `each` is called on one at a time.
  virtual Status LoadPlaces(const std::function<void(std::span<LoadedRecord>)>& each,
                            std::vector<std::string>* broken) = 0;
  // A number that is higher than any generation given out before and not below `at_least`, durably reserving
  // those up to `count` above it; the identity becomes durable with it.
  virtual Result<uint64_t> ReserveGenerations(uint64_t count, uint64_t at_least,
                                              const ManifestIdentity& identity) = 0;
  // Generations were reserved before.
  virtual Result<bool> HasGenerations() = 0;
  virtual Result<std::optional<ManifestIdentity>> Identity() = 0;
  // Durable, and everything applied before with it.
  virtual Status SetIdentity(const ManifestIdentity& identity) = 0;

  // Bytes of segments that are never to be used again; durable. LoadQuarantine gives all that were put.
  virtual Status PutQuarantine(std::span<const Extent> extents) = 0;
  virtual Result<std::vector<Extent>> LoadQuarantine() = 0;

  // Contents that are broken are left out of their objects.
  virtual Result<ScanPage> Scan(std::string_view cursor, size_t limit, ScanDetail detail) = 0;
  virtual Status PutRoot(const RootRecord& record) = 0;
  virtual Result<std::vector<RootRecord>> ScanRoots() = 0;

  // Nothing else may be called after.
  virtual Status Close() = 0;
};

}  // namespace terrace
