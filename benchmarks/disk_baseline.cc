#include "benchmarks/disk_baseline.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/slice.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "backends/nvme/file_descriptor.h"
#include "benchmarks/cpu_time.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kThreads = 4;
using Clock = std::chrono::steady_clock;

// Both calls from kThreads threads; `thread` says which, `payload` is that thread's.
class PlainStore {
 public:
  virtual ~PlainStore() = default;
  virtual Status Put(uint64_t number, const std::string& payload) = 0;
  virtual Status Get(uint64_t number, std::string* payload) = 0;
  // On the device, and no longer in memory.
  virtual Status Settle() = 0;
};

class RocksBlobs : public PlainStore {
 public:
  static Result<std::unique_ptr<PlainStore>> Open(const std::string& directory) {
    auto store = std::make_unique<RocksBlobs>();
    rocksdb::Options options;
    options.create_if_missing = true;
    options.enable_blob_files = true;
    options.min_blob_size = 0;
    options.blob_file_size = uint64_t{256} << 20;
    options.compression = rocksdb::kNoCompression;
    options.write_buffer_size = size_t{64} << 20;
    options.max_write_buffer_number = 4;
    options.max_background_jobs = static_cast<int>(kThreads);
    options.use_direct_reads = true;
    options.use_direct_io_for_flush_and_compaction = true;
    rocksdb::DB* db = nullptr;
    TERRACE_RETURN_IF_ERROR(StatusOf(rocksdb::DB::Open(options, directory, &db)));
    store->db_.reset(db);
    return std::unique_ptr<PlainStore>(std::move(store));
  }
  Status Put(uint64_t number, const std::string& payload) override {
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    return StatusOf(db_->Put(options, std::to_string(number), payload));
  }
  Status Get(uint64_t number, std::string* payload) override {
    rocksdb::PinnableSlice value;
    const Status status = StatusOf(db_->Get({}, db_->DefaultColumnFamily(), std::to_string(number), &value));
    if (status.ok()) payload->assign(value.data(), value.size());
    return status;
  }
  Status Settle() override { return StatusOf(db_->Flush({})); }

 private:
  static Status StatusOf(const rocksdb::Status& status) {
    return status.ok() ? OkStatus() : UnavailableError("rocksdb: " + status.ToString());
  }
  std::unique_ptr<rocksdb::DB> db_;
};

class FilePerChunk : public PlainStore {
 public:
  explicit FilePerChunk(std::filesystem::path directory) : directory_(std::move(directory)) {}
  Status Put(uint64_t number, const std::string& payload) override {
    TERRACE_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(number, O_WRONLY | O_CREAT | O_TRUNC));
    for (size_t done = 0; done < payload.size();) {
      const ssize_t n = write(file.get(), payload.data() + done, payload.size() - done);
      if (n < 0 && errno != EINTR) return ErrnoStatus("write", errno);
      if (n > 0) done += static_cast<size_t>(n);
    }
    written_.fetch_add(1);
    return OkStatus();
  }
  Status Get(uint64_t number, std::string* payload) override {
    TERRACE_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(number, O_RDONLY));
    for (size_t done = 0; done < payload->size();) {
      const ssize_t n = read(file.get(), payload->data() + done, payload->size() - done);
      if (n == 0) return DataLossError("a file ends early");
      if (n < 0 && errno != EINTR) return ErrnoStatus("read", errno);
      if (n > 0) done += static_cast<size_t>(n);
    }
    return OkStatus();
  }
  Status Settle() override {
    for (uint64_t number = 0; number < written_.load(); ++number) {
      TERRACE_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(number, O_RDONLY));
      if (fdatasync(file.get()) != 0) return ErrnoStatus("fdatasync", errno);
      if (const int error = posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
        return ErrnoStatus("posix_fadvise", error);
    }
    return OkStatus();
  }

 private:
  Result<FileDescriptor> OpenFile(uint64_t number, int flags) const {
    const std::filesystem::path path = directory_ / std::to_string(number);
    FileDescriptor file(open(path.c_str(), flags | O_CLOEXEC, 0600));
    if (!file) return ErrnoStatus(path.string(), errno);
    return file;
  }
  const std::filesystem::path directory_;
  std::atomic<uint64_t> written_{0};
};

std::string Payload(uint64_t chunk_bytes, uint64_t seed) {
  std::string payload(chunk_bytes, '\0');
  uint64_t state = seed;
  for (size_t at = 0; at + 8 <= payload.size(); at += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const uint64_t word = state ^ (state >> 29);
    std::memcpy(payload.data() + at, &word, 8);
  }
  return payload;
}

// `one` for each number, from kThreads threads.
Status Measure(uint64_t count, std::vector<std::string>& payloads, BaselineFigures& figures,
               const std::function<Status(uint64_t number, std::string& payload)>& one) {
  std::atomic<uint64_t> next{0};
  std::mutex mutex;  // failed, figures.ms
  Status failed;
  const double cpu = ProcessCpuSeconds();
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t number = next++; number < count; number = next++) {
        const Clock::time_point start = Clock::now();
        const Status status = one(number, payloads[thread]);
        const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
        const std::lock_guard lock(mutex);
        figures.ms.push_back(ms);
        if (!status.ok()) failed = status;
        if (!failed.ok()) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double gigabytes = static_cast<double>(count * payloads[0].size()) / 1e9;
  figures.gbps = gigabytes / seconds;
  figures.cpu_s_per_gb = (ProcessCpuSeconds() - cpu) / gigabytes;
  return failed;
}

}  // namespace

Result<std::vector<BaselineFigures>> MeasureBaseline(BaselineKind kind, const std::string& directory,
                                                     uint64_t bytes, uint64_t chunk_bytes) {
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  if (error) return UnavailableError(directory + ": " + error.message());
  std::unique_ptr<PlainStore> store;
  const bool is_rocks = kind == BaselineKind::kRocksBlobs;
  if (is_rocks) {
    TERRACE_ASSIGN_OR_RETURN(store, RocksBlobs::Open(directory));
  } else {
    store = std::make_unique<FilePerChunk>(directory);
  }
  const std::string system = is_rocks ? "rocksdb_blob" : "file_per_chunk";
  std::vector<BaselineFigures> figures = {
      {.system = system,
       .op = "put",
       .note = is_rocks ? "no write-ahead log, flush not counted" : "page cache, sync not counted"},
      {.system = system,
       .op = "get",
       .note = is_rocks ? "direct reads, unverified" : "cold page cache, unverified"}};
  std::vector<std::string> payloads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) payloads.push_back(Payload(chunk_bytes, thread));
  const uint64_t count = bytes / chunk_bytes;
  TERRACE_RETURN_IF_ERROR(
      Measure(count, payloads, figures[0],
              [&](uint64_t number, const std::string& payload) { return store->Put(number, payload); }));
  TERRACE_RETURN_IF_ERROR(store->Settle());
  TERRACE_RETURN_IF_ERROR(Measure(count, payloads, figures[1], [&](uint64_t number, std::string& payload) {
    return store->Get(number, &payload);
  }));
  return figures;
}

}  // namespace terrace::bench
