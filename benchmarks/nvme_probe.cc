#include "benchmarks/nvme_probe.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "benchmarks/disk_baseline.h"
#include "benchmarks/fio_run.h"
#include "benchmarks/tier_drive.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr std::array<std::string_view, 6> kOps = {"put",         "get",       "get_verified",
                                                  "mixed_70_30", "get_alone", "get_beside_puts"};
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMinBytes = 256 * kMiB;
constexpr uint64_t kMinChunkBytes = 4096;
constexpr uint64_t kMaxChunkBytes = 64 * kMiB;
constexpr uint64_t kMinChunks = 64;            // in the tier
constexpr uint64_t kSmallDepth = 32;           // operations in flight where a chunk is less than a request
constexpr uint64_t kMinFreeBytes = 64 * kMiB;  // left to the file system

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// A directory of this probe's own; gone with the object.
class WorkDirectory {
 public:
  explicit WorkDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  ~WorkDirectory() { Empty(); }
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  void Empty() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

struct MeasuredOp {
  std::string name;
  DrivePlan plan;
  std::optional<FioJob> job;
  std::string note;
  std::vector<double> gbps, cpu, fio_gbps, fio_cpu, ms;
};

// The operations on one size of chunks.
class ChunkBench {
 public:
  ChunkBench(const NvmeBenchOptions& options, uint64_t chunk_bytes)
      : options_(options), chunk_bytes_(chunk_bytes) {
    const bool is_small = chunk_bytes < options.request_bytes;
    block_bytes_ = is_small ? chunk_bytes : options.request_bytes;
    const uint64_t requests = options.inflight_bytes / options.request_bytes;
    fio_depth_ = static_cast<uint32_t>(is_small ? kSmallDepth : requests);
    depth_ = static_cast<uint32_t>(
        is_small ? kSmallDepth
                 : std::max<uint64_t>(2, (4 * options.inflight_bytes + chunk_bytes - 1) / chunk_bytes));
    io_bytes_ = std::max(options.bytes / 4, 16 * chunk_bytes) / block_bytes_ * block_bytes_;
    mixed_fio_depth_ = is_small ? fio_depth_ : 2 * fio_depth_;
    alone_fio_depth_ = static_cast<uint32_t>(
        std::min<uint64_t>(fio_depth_, (chunk_bytes + block_bytes_ - 1) / block_bytes_));
    if (is_small) alone_fio_depth_ = 1;
  }

  uint32_t max_depth() const { return 2 * depth_; }

  std::vector<MeasuredOp> Ops() const {
    const uint64_t num_ops = io_bytes_ / chunk_bytes_;
    std::vector<MeasuredOp> ops;
    const auto add = [&](const char* name, DrivePlan plan, const char* rw, uint32_t fio_depth) {
      if (!options_.ops.empty() && std::ranges::find(options_.ops, name) == options_.ops.end()) return;
      MeasuredOp& op = ops.emplace_back();
      op.name = name;
      op.plan = plan;
      op.plan.num_ops = num_ops;
      if (rw == nullptr) {
        op.note = "fio has no such job";
        return;
      }
      op.job = FioJob{.rw = rw,
                      .read_percent = 70,
                      .block_bytes = block_bytes_,
                      .depth = fio_depth,
                      .io_bytes = io_bytes_};
      op.note = "fio bs " + std::to_string(block_bytes_) + " depth " + std::to_string(fio_depth);
    };
    add("put", {.depth = depth_}, "write", fio_depth_);
    add("get", {.depth = depth_, .gets_of_ten = 10}, "read", fio_depth_);
    add("get_verified", {.depth = depth_, .gets_of_ten = 10, .verify = true}, "read", fio_depth_);
    add("mixed_70_30", {.depth = depth_, .gets_of_ten = 7, .scattered = true}, "randrw", mixed_fio_depth_);
    add("get_alone", {.depth = 1, .gets_of_ten = 10}, "read", alone_fio_depth_);
    add("get_beside_puts", {.depth = 1, .gets_of_ten = 10, .background_puts = depth_}, nullptr, 0);
    return ops;
  }

 private:
  const NvmeBenchOptions& options_;
  const uint64_t chunk_bytes_;
  uint64_t block_bytes_ = 0;
  uint64_t io_bytes_ = 0;
  uint32_t depth_ = 1;
  uint32_t fio_depth_ = 1;
  uint32_t mixed_fio_depth_ = 1;
  uint32_t alone_fio_depth_ = 1;
};

Status CheckOptions(const NvmeBenchOptions& options) {
  if (options.bytes < kMinBytes) {
    return InvalidArgumentError("bytes = " + std::to_string(options.bytes) +
                                ", allowed: " + std::to_string(kMinBytes) + " or more");
  }
  if (options.repetitions < 1) return InvalidArgumentError("repetitions is below 1");
  if (options.chunk_bytes.empty()) return InvalidArgumentError("chunk_bytes is empty");
  for (const uint64_t chunk : options.chunk_bytes) {
    const uint64_t most = std::min(kMaxChunkBytes, options.bytes / kMinChunks);
    if (chunk < kMinChunkBytes || chunk > most) {
      return InvalidArgumentError("chunk_bytes = " + std::to_string(chunk) +
                                  ", allowed: " + std::to_string(kMinChunkBytes) + " to " +
                                  std::to_string(most) + " (a 64th of bytes, 64 MiB at most)");
    }
  }
  for (const std::string& op : options.ops) {
    if (std::ranges::find(kOps, op) == kOps.end()) {
      return InvalidArgumentError(
          "ops has " + op + ", allowed: put, get, get_verified, mixed_70_30, get_alone, get_beside_puts");
    }
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.directory, error)) {
    return NotFoundError("directory " + options.directory + " is not there");
  }
  const std::filesystem::space_info space = std::filesystem::space(options.directory, error);
  if (error) return UnavailableError("directory " + options.directory + ": " + error.message());
  const uint64_t needed = 2 * options.bytes + 2 * kMinFreeBytes;
  if (space.available < needed) {
    return ResourceExhaustedError("directory " + options.directory + " has room for " +
                                  std::to_string(space.available) +
                                  " bytes, needed: " + std::to_string(needed) + " (twice the tier)");
  }
  return OkStatus();
}

NvmeResult Summarise(const MeasuredOp& op, uint64_t chunk_bytes) {
  NvmeResult result;
  result.op = op.name;
  result.chunk_bytes = chunk_bytes;
  result.library_gbps = Median(op.gbps);
  result.cpu_s_per_gb = Median(op.cpu);
  if (!op.fio_gbps.empty()) {
    result.fio_gbps = Median(op.fio_gbps);
    result.fio_cpu_s_per_gb = Median(op.fio_cpu);
  }
  result.p50_ms = Quantile(op.ms, 0.5);
  result.p99_ms = Quantile(op.ms, 0.99);
  result.note = op.note;
  return result;
}

// In turns: the device's speed moves with the hour.
Status RunRounds(TierDrive& drive, FioFile* fio, int repetitions, std::vector<MeasuredOp>& ops) {
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (MeasuredOp& op : ops) {
      TERRACE_ASSIGN_OR_RETURN(const DriveFigures figures, drive.Run(op.plan));
      op.gbps.push_back(figures.gbps);
      op.cpu.push_back(figures.cpu_s_per_gb);
      const std::vector<double>& ms = op.plan.gets_of_ten > 0 ? figures.get_ms : figures.put_ms;
      op.ms.insert(op.ms.end(), ms.begin(), ms.end());
      if (fio == nullptr || !op.job) continue;
      TERRACE_ASSIGN_OR_RETURN(const FioFigures beside, fio->Run(*op.job));
      op.fio_gbps.push_back(beside.gbps);
      op.fio_cpu.push_back(beside.cpu_s_per_gb);
    }
  }
  return OkStatus();
}

// What a row has to say of the tier.
std::string WaysOf(const NvmeBenchOptions& options) {
  std::string ways = options.keys.empty() ? "" : "encrypted; ";
  if (options.durability == Durability::kNone) ways += "durability none; ";
  if (options.durability == Durability::kSync) ways += "durability sync; ";
  return ways;
}

Status MeasureTier(const NvmeBenchOptions& options, const std::filesystem::path& path, uint64_t chunk_bytes,
                   FioFile* fio, const std::string& no_fio, std::vector<NvmeResult>& results) {
  const WorkDirectory directory(path);
  NvmeOptions tier;
  tier.directory = path.string();
  tier.capacity_bytes = options.bytes;
  tier.request_bytes = options.request_bytes;
  tier.inflight_bytes = options.inflight_bytes;
  tier.io_engine = options.io_engine;
  tier.durability = options.durability;
  tier.keys = options.keys;
  tier.min_free_bytes = kMinFreeBytes;
  const ChunkBench bench(options, chunk_bytes);
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<TierDrive> drive,
                           TierDrive::Open(tier, chunk_bytes, bench.max_depth()));
  std::vector<MeasuredOp> ops = bench.Ops();
  TERRACE_RETURN_IF_ERROR(RunRounds(*drive, fio, options.repetitions, ops));
  for (MeasuredOp& op : ops) {
    if (fio == nullptr) op.note = no_fio;
    op.note = WaysOf(options) + op.note;
    results.push_back(Summarise(op, chunk_bytes));
  }
  return OkStatus();
}

}  // namespace

std::string NvmeResult::ToJson() const {
  nlohmann::ordered_json row{{"op", op}, {"chunk_bytes", chunk_bytes}, {"library_gbps", library_gbps}};
  row["fio_gbps"] = nullptr;
  row["ratio"] = nullptr;
  if (fio_gbps) {
    row["fio_gbps"] = *fio_gbps;
    row["ratio"] = library_gbps / *fio_gbps;
  }
  row["cpu_s_per_gb"] = cpu_s_per_gb;
  row["fio_cpu_s_per_gb"] = nullptr;
  if (fio_cpu_s_per_gb) row["fio_cpu_s_per_gb"] = *fio_cpu_s_per_gb;
  row["p50_ms"] = p50_ms;
  row["p99_ms"] = p99_ms;
  row["system"] = system;
  row["note"] = note;
  return row.dump();
}

Result<std::vector<NvmeResult>> MeasureNvme(const NvmeBenchOptions& options) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  const std::filesystem::path base = std::filesystem::path(options.directory) / "terrace-bench-nvme";
  std::error_code error;
  if (!std::filesystem::create_directory(base, error)) {
    return FailedPreconditionError(base.string() + (error ? ": " + error.message() : " is in the way"));
  }
  const WorkDirectory work(base);
  FioFile file((base / "fio").string(), options.bytes / (4 * kMiB) * (4 * kMiB));
  FioFile* fio = &file;
  const Status prepared = file.Prepare();
  if (prepared.code() == StatusCode::kNotFound) {
    fio = nullptr;
  } else {
    TERRACE_RETURN_IF_ERROR(prepared);
  }
  std::vector<NvmeResult> results;
  for (const uint64_t chunk_bytes : options.chunk_bytes) {
    TERRACE_RETURN_IF_ERROR(
        MeasureTier(options, base / "tier", chunk_bytes, fio, std::string(prepared.message()), results));
    if (!options.baselines) continue;
    for (const BaselineKind kind : {BaselineKind::kRocksBlobs, BaselineKind::kFilePerChunk}) {
      const WorkDirectory directory(base / "baseline");
      TERRACE_ASSIGN_OR_RETURN(const std::vector<BaselineFigures> figures,
                               MeasureBaseline(kind, directory.path().string(), options.bytes, chunk_bytes));
      for (const BaselineFigures& one : figures) {
        results.push_back({.op = one.op,
                           .chunk_bytes = chunk_bytes,
                           .library_gbps = one.gbps,
                           .cpu_s_per_gb = one.cpu_s_per_gb,
                           .p50_ms = Quantile(one.ms, 0.5),
                           .p99_ms = Quantile(one.ms, 0.99),
                           .system = one.system,
                           .note = one.note});
      }
    }
  }
  return results;
}

}  // namespace terrace::bench
