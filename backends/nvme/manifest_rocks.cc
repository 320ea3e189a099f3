#include "backends/nvme/manifest_rocks.h"

#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/memtablerep.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

class NoAutoRecovery : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

}  // namespace

Status FromRocks(const rocksdb::Status& status) {
  if (status.ok()) return OkStatus();
  const std::string text = "manifest: " + status.ToString();
  if (status.IsNoSpace()) return ResourceExhaustedError(text);
  if (status.IsCorruption()) return DataLossError(text);
  if (status.IsIOError() || status.IsBusy() || status.IsTryAgain() || status.IsTimedOut()) {
    return UnavailableError(text);
  }
  return InternalError(text);
}

Status FromRocksOpen(const rocksdb::Status& status) {
  if (status.IsPathNotFound() || status.IsInvalidArgument() || status.IsNotSupported() ||
      status.IsNotFound()) {
    return DataLossError("manifest: " + status.ToString());
  }
  return FromRocks(status);
}

rocksdb::ColumnFamilyOptions FamilyOptions(uint64_t reserve_bytes) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = std::clamp(reserve_bytes / 16, 64 * kKiB, 4 * kMiB);
  options.arena_block_size = options.write_buffer_size / 16;
  options.max_write_buffer_number = 2;
  options.compression = rocksdb::kNoCompression;  // digests and random tokens
  options.level_compaction_dynamic_level_bytes = true;
  options.level0_file_num_compaction_trigger = 2;
  options.target_file_size_base = std::clamp(reserve_bytes / 32, 64 * kKiB, 8 * kMiB);
  options.max_bytes_for_level_base = std::clamp(reserve_bytes / 8, 256 * kKiB, 64 * kMiB);
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // the index is in memory; records are read by scans
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::ColumnFamilyOptions RecordFamilyOptions(uint64_t reserve_bytes) {
  rocksdb::ColumnFamilyOptions options = FamilyOptions(reserve_bytes);
  options.memtable_factory = std::make_shared<rocksdb::VectorRepFactory>();
  return options;
}

rocksdb::DBOptions DatabaseOptions(uint64_t reserve_bytes, rocksdb::Env* env) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_write_buffer_size = std::clamp(reserve_bytes / 8, 256 * kKiB, 16 * kMiB);
  options.max_total_wal_size = std::clamp(reserve_bytes / 8, 128 * kKiB, 16 * kMiB);
  // Nothing is allocated ahead: the reserve is counted in physical bytes.
  options.allow_fallocate = false;
  options.manifest_preallocation_size = 4 * kKiB;
  options.max_manifest_file_size = std::clamp(reserve_bytes / 32, 32 * kKiB, 4 * kMiB);
  options.info_log = std::make_shared<NullLogger>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.max_background_jobs = 2;
  // Nearly all writes come from one thread, in groups; and RecordFamilyOptions needs it.
  options.allow_concurrent_memtable_write = false;
  options.enable_write_thread_adaptive_yield = false;
  options.max_file_opening_threads = 1;  // few files
  // Places and contents of records that were not logged reach the disk together.
  options.atomic_flush = true;
  // Who writes resumes after an error. RocksDB's own attempts, on threads of theirs, meet that in the middle
  // and end the process (an assertion).
  options.max_bgerror_resume_count = 0;
  options.listeners.push_back(std::make_shared<NoAutoRecovery>());
  return options;
}

rocksdb::ReadOptions ScanOptions() {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = 2 * kMiB;
  return options;
}

Status ResumeWithin(rocksdb::DB& db, std::chrono::milliseconds limit) {
  std::promise<void> over;
  std::thread watch([&db, limit, ended = over.get_future()] {
    if (ended.wait_for(limit) == std::future_status::ready) return;
    if (db.PauseBackgroundWork().ok()) db.ContinueBackgroundWork().PermitUncheckedError();
    if (ended.wait_for(limit) == std::future_status::ready) return;
    rocksdb::CancelAllBackgroundWork(&db, /*wait=*/false);
  });
  const rocksdb::Status resumed = db.Resume();
  over.set_value();
  watch.join();
  return FromRocks(resumed);
}

}  // namespace terrace
