#include "benchmarks/restart_probe.h"

#include <malloc.h>
#include <rocksdb/db.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "backends/nvme/disk.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/tier_directory.h"
#include "lib/base/status_macros.h"
#include "terrace/nvme_backend.h"
#include "terrace/storage_manager.h"
#include "terrace/token_hasher.h"

namespace terrace::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPromptChunks = 32;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kFrameBytes = 8192;
constexpr uint64_t kObjectBytes = kTierPageBytes + kFrameBytes;
constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;
constexpr uint64_t kObjectsPerSegment = kSegmentBytes / kObjectBytes;
constexpr uint64_t kGroup = 1024;
constexpr std::chrono::minutes kContentsLimit(10);

double ResidentBytes() {
  ::malloc_trim(0);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "r"), &std::fclose);
  unsigned long size = 0;
  unsigned long resident = 0;
  if (!file || std::fscanf(file.get(), "%lu %lu", &size, &resident) != 2) return 0;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double CpuSeconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

struct Removed {
  std::string path;
  ~Removed() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

struct Bench {
  RestartBenchOptions options;
  NvmeOptions nvme;
  KvSpec spec;
  RootRecord root;
  std::vector<Token> first_prompt;
  // The fastest of the repetitions.
  std::map<std::string, RestartResult> results;
};

ChunkContent ContentOf(const Bench& bench, uint64_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  ChunkContent content;
  content.tokens.resize(bench.options.tokens);
  for (Token& token : content.tokens) token = static_cast<Token>(random() % 128'000);
  return content;
}

RecordChange RecordOf(const Bench& bench, uint64_t n, ChunkKey* parent) {
  const ChunkContent content = ContentOf(bench, n);
  ObjectRecord record;
  record.header_bytes = kHeaderBytes;
  record.meta.root = bench.root.root;
  record.meta.parent = n % kPromptChunks == 0 ? bench.root.root : *parent;
  record.meta.first_token = n % kPromptChunks * bench.options.tokens;
  record.meta.frame_bytes = kFrameBytes;
  record.meta.payload_bytes = kFrameBytes - kHeaderBytes;
  record.meta.division = bench.spec.DivisionTag();
  record.meta.generation = n + 1;
  record.extents = {
      {static_cast<uint32_t>(n / kObjectsPerSegment), n % kObjectsPerSegment * kObjectBytes, kObjectBytes}};
  *parent = TokenHasher::KeyOf(record.meta.parent, content);
  RecordChange change;
  change.key = EncodeRecordKey({*parent, {}});
  change.place = EncodePlace(record);
  change.content = EncodeRecordContent(content);
  return change;
}

// An empty tier, which makes the directory's own files.
Status MakeDirectory(const Bench& bench) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeNvmeBackend(bench.nvme));
  return backend->Close();
}

Status WriteRecords(Bench& bench) {
  const std::unique_ptr<Disk> disk = MakeSystemDisk(bench.nvme.directory, bench.nvme.io_engine);
  TERRACE_ASSIGN_OR_RETURN(TierDirectory directory,
                           TierDirectory::Open(*disk, bench.nvme.segment_bytes, KeyRing()));
  for (uint64_t segment = 0; segment * kObjectsPerSegment < bench.options.entries; ++segment) {
    char name[32];
    std::snprintf(name, sizeof(name), "/seg-%06u", static_cast<unsigned>(segment));
    const std::string path = bench.nvme.directory + name;
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "w"), &std::fclose);
    if (!file || ::ftruncate(::fileno(file.get()), kSegmentBytes) != 0) return UnavailableError(path);
  }
  TERRACE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Manifest> manifest,
      Manifest::Open(directory.manifest_path(), ManifestReserve(bench.nvme.capacity_bytes),
                     disk->RocksFileSystem()));
  TERRACE_RETURN_IF_ERROR(manifest->PutRoot(bench.root));
  ChunkKey parent;
  std::vector<RecordChange> group;
  for (uint64_t n = 0; n < bench.options.entries; ++n) {
    group.push_back(RecordOf(bench, n, &parent));
    if (group.size() < kGroup && n + 1 < bench.options.entries) continue;
    TERRACE_RETURN_IF_ERROR(manifest->Apply(group, RecordWrite::kLogged));
    group.clear();
  }
  return manifest->Close();
}

Status Prepare(Bench& bench) {
  const RestartBenchOptions& options = bench.options;
  if (options.entries == 0 || options.tokens == 0 || options.tokens > 4096) {
    return InvalidArgumentError("entries = " + std::to_string(options.entries) + ", tokens = " +
                                std::to_string(options.tokens) + "; allowed: 1 and more; 1 to 4096");
  }
  bench.nvme.directory = options.directory + "/terrace-restart";
  if (fs::exists(bench.nvme.directory)) {
    return FailedPreconditionError(bench.nvme.directory + " is there already");
  }
  bench.nvme.segment_bytes = kSegmentBytes;
  bench.nvme.prepare_ahead_bytes = 0;
  // Such that the records are in their budget, which is a 64th.
  const uint64_t record_bytes = 512 + options.tokens * sizeof(Token);
  bench.nvme.capacity_bytes =
      std::max(uint64_t{64} * record_bytes, 2 * kObjectBytes) * options.entries + 2 * kSegmentBytes;
  bench.spec.model_id = "bench";
  bench.spec.tokens_per_chunk = options.tokens;
  TERRACE_ASSIGN_OR_RETURN(bench.root, ComputeRoot(bench.spec, {}, ""));
  for (uint64_t n = 0; n < std::min(kPromptChunks, options.entries); ++n) {
    const ChunkContent content = ContentOf(bench, n);
    bench.first_prompt.insert(bench.first_prompt.end(), content.tokens.begin(), content.tokens.end());
  }
  TERRACE_RETURN_IF_ERROR(MakeDirectory(bench));
  return WriteRecords(bench);
}

// Measures phases one after the other; each ends where the next begins.
class Stopwatch {
 public:
  explicit Stopwatch(Bench& bench) : bench_(bench), resident_(ResidentBytes()) { Restart(); }
  void Restart() {
    cpu_ = CpuSeconds();
    begin_ = std::chrono::steady_clock::now();
  }
  RestartResult End(const std::string& phase) {
    RestartResult result;
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    result.cpu_s = CpuSeconds() - cpu_;
    result.phase = phase;
    result.entries = bench_.options.entries;
    result.rss_bytes_per_entry = (ResidentBytes() - resident_) / static_cast<double>(result.entries);
    Keep(result);
    Restart();
    return result;
  }
  void Keep(const RestartResult& result) {
    const auto [at, is_new] = bench_.results.emplace(result.phase, result);
    if (!is_new && result.seconds < at->second.seconds) at->second = result;
  }

 private:
  Bench& bench_;
  const double resident_;
  double cpu_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

Status FromRocks(const rocksdb::Status& status) {
  return status.ok() ? OkStatus() : InternalError(status.ToString());
}

Status ScanBare(Bench& bench) {
  rocksdb::DBOptions options;
  const std::string path = bench.nvme.directory + "/" + std::string(kManifestDirectoryName);
  std::vector<std::string> names;
  TERRACE_RETURN_IF_ERROR(FromRocks(rocksdb::DB::ListColumnFamilies(options, path, &names)));
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  TERRACE_RETURN_IF_ERROR(
      FromRocks(rocksdb::DB::OpenForReadOnly(options, path, families, &handles, &opened)));
  const std::unique_ptr<rocksdb::DB> db(opened);
  Stopwatch watch(bench);
  Status status;
  for (size_t i = 0; i < names.size() && status.ok(); ++i) {
    if (names[i] != "places" && names[i] != "contents") continue;
    watch.Restart();
    const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(rocksdb::ReadOptions(), handles[i]));
    uint64_t seen = 0;
    uint64_t bytes = 0;
    for (at->SeekToFirst(); at->Valid(); at->Next(), ++seen) bytes += at->key().size() + at->value().size();
    watch.End(names[i] == "places" ? "manifest_scan_bare" : "contents_scan_bare");
    if (seen != bench.options.entries || bytes == 0) status = InternalError("records are missing");
  }
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    if (Status destroyed = FromRocks(db->DestroyColumnFamilyHandle(handle)); status.ok()) status = destroyed;
  }
  return status;
}

Status Restart(Bench& bench) {
  Stopwatch watch(bench);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeNvmeBackend(bench.nvme));
  const RestartResult open = watch.End("nvme_open");
  StorageOptions storage;
  storage.pool_bytes = uint64_t{1} << 20;
  storage.index_bytes = UINT64_MAX;
  storage.log = MakeNullLogSink();
  std::vector<Tier> tiers;
  tiers.push_back({std::move(backend), nullptr});
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<StorageManager> manager,
                           StorageManager::Open(std::move(storage), std::move(tiers)));
  TERRACE_ASSIGN_OR_RETURN(const ChunkKey root, manager->Root(bench.spec));
  TERRACE_ASSIGN_OR_RETURN(const PrefixPresence found, manager->Peek(root, bench.first_prompt));
  RestartResult total = watch.End("manager_restore");
  if (found.matched_tokens != bench.first_prompt.size()) {
    return InternalError("matched " + std::to_string(found.matched_tokens) + " tokens of " +
                         std::to_string(bench.first_prompt.size()));
  }
  total.phase = "total";
  total.seconds += open.seconds;
  total.cpu_s += open.cpu_s;
  watch.Keep(total);
  watch.Restart();
  const uint64_t all = bench.options.entries * bench.options.tokens * sizeof(Token);
  const auto give_up = std::chrono::steady_clock::now() + kContentsLimit;
  while (manager->Stats().index_content_bytes < all) {
    if (std::chrono::steady_clock::now() > give_up) return InternalError("contents did not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  watch.End("contents");
  if (manager->Stats().index_entries != bench.options.entries) return InternalError("entries were lost");
  return manager->Close();
}

}  // namespace

std::string RestartResult::ToJson() const {
  return nlohmann::ordered_json{{"phase", phase},
                                {"entries", entries},
                                {"seconds", seconds},
                                {"entries_per_s", static_cast<double>(entries) / seconds},
                                {"ratio", ratio},
                                {"cpu_s", cpu_s},
                                {"rss_bytes_per_entry", rss_bytes_per_entry}}
      .dump();
}

Result<std::vector<RestartResult>> MeasureRestart(const RestartBenchOptions& options) {
  Bench bench;
  bench.options = options;
  const Removed removed{fs::exists(options.directory + "/terrace-restart")
                            ? std::string()
                            : options.directory + "/terrace-restart"};
  TERRACE_RETURN_IF_ERROR(Prepare(bench));
  for (int i = 0; i < options.repetitions; ++i) {
    TERRACE_RETURN_IF_ERROR(ScanBare(bench));
    TERRACE_RETURN_IF_ERROR(Restart(bench));
  }
  std::vector<RestartResult> results;
  const double bare = bench.results["manifest_scan_bare"].seconds;
  for (const char* phase :
       {"manifest_scan_bare", "contents_scan_bare", "nvme_open", "manager_restore", "total", "contents"}) {
    results.push_back(bench.results[phase]);
    results.back().ratio = bare / results.back().seconds;
  }
  return results;
}

}  // namespace terrace::bench
