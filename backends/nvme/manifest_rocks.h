// What the manifest needs of RocksDB: its options, sized from the reserve, its statuses as ours, and what it
// throws as a Status. For manifest.cc alone.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace {

Status FromRocks(const rocksdb::Status& status);
// Of opening: what it misses, or finds and does not understand, is damage too.
Status FromRocksOpen(const rocksdb::Status& status);

// Runs one use of RocksDB; what it throws becomes a Status.
template <typename Use>
auto Guarded(Use&& use) -> decltype(use()) {
  try {
    return use();
  } catch (const std::exception& error) {
    return InternalError(std::string("manifest: ") + error.what());
  }
}

inline rocksdb::Slice SliceOf(std::string_view bytes) { return {bytes.data(), bytes.size()}; }
inline std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Keeps nothing. RocksDB's own logger ends the process (an assertion) when it goes on after the file system
// was full.
class NullLogger : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::ColumnFamilyOptions FamilyOptions(uint64_t reserve_bytes);
// Of records: written one after the other and read by scans alone, never by key. They are sorted when they
// leave memory, which takes a fifth of what keeping them sorted does.
rocksdb::ColumnFamilyOptions RecordFamilyOptions(uint64_t reserve_bytes);
rocksdb::DBOptions DatabaseOptions(uint64_t reserve_bytes, rocksdb::Env* env);
// For reading much in order: nothing is kept in a cache, and the file is read ahead of the iterator.
rocksdb::ReadOptions ScanOptions();

// DB::Resume that ends. RocksDB 7.8 may wait in it for ever, for a flush that failed meanwhile and that
// nobody does again: after `limit` its background work is told to look again, and after as long once more it
// is ended for good: nothing is written then until the database is opened anew.
Status ResumeWithin(rocksdb::DB& db, std::chrono::milliseconds limit);

}  // namespace terrace
