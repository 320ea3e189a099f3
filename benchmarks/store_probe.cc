#include "benchmarks/store_probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/base/status_macros.h"
#include "lib/memory/stream_copy.h"
#include "terrace/host_backend.h"
#include "terrace/storage_manager.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kChunkTokens = 256;
constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kLayers = 16;
constexpr uint32_t kHeads = 8;
constexpr uint64_t kPoolChunks = 24;

template <typename F>
double MicrosecondsOf(F&& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// K and V of one chunk in pages, as an engine would hold them: [layer][k, v][block][token][head].
class Pages {
 public:
  explicit Pages(const KvSpec& spec) {
    token_bytes_ = spec.layers[0].planes[0].bytes_per_token;
    plane_bytes_ = uint64_t{token_bytes_} * kChunkTokens;
    memory_.resize(plane_bytes_ * 2 * kLayers, std::byte{3});
    blocks_.resize(kChunkTokens / kBlockTokens);
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);  // reversed: no run longer than a block
    for (size_t p = 0; p < 2; ++p) {
      PlaneView& plane = planes_[p];
      plane.base = memory_.data() + p * plane_bytes_;
      plane.layer_stride = static_cast<int64_t>(2 * plane_bytes_);
      plane.block_stride = int64_t{token_bytes_} * kBlockTokens;
      plane.token_stride = token_bytes_;
      plane.num_heads = 1;
      plane.run_bytes = token_bytes_;
    }
  }

  PagedKvView View(uint64_t first_token) const {
    return {.part = {},
            .planes = planes_,
            .block_table = blocks_,
            .tokens_per_block = kBlockTokens,
            .first_token = first_token,
            .num_tokens = kChunkTokens};
  }
  Bytes bytes() const { return memory_; }

 private:
  uint32_t token_bytes_ = 0;
  uint64_t plane_bytes_ = 0;
  std::vector<std::byte> memory_;
  std::vector<int64_t> blocks_;
  PlaneView planes_[2];
};

struct Bench {
  KvSpec spec;
  std::unique_ptr<StorageManager> manager;
  ChunkKey root;
  std::vector<Token> prompt;
  uint64_t request_id = 1;

  // The next chunk's tokens; another prompt after `prompt_chunks`.
  TokenRange Grow(uint64_t prompt_chunks) {
    if (prompt.size() >= prompt_chunks * kChunkTokens) {
      prompt.clear();
      ++request_id;
    }
    const uint64_t begin = prompt.size();
    for (uint64_t i = 0; i < kChunkTokens; ++i)
      prompt.push_back(static_cast<Token>(request_id * 1'000'003 + begin + i));
    return {begin, begin + kChunkTokens};
  }
};

Status Open(const StoreBenchOptions& options, Bench& bench) {
  if (options.payload_bytes == 0 || options.payload_bytes % (2 << 20) != 0)
    return InvalidArgumentError("payload_bytes is " + std::to_string(options.payload_bytes) +
                                "; allowed: multiples of 2 MiB above 0");
  KvSpec& spec = bench.spec;
  spec.model_id = "bench";
  spec.payload_form = PayloadForm::kCanonical;
  spec.tokens_per_chunk = kChunkTokens;
  spec.cut = Cut::kRanged;
  const auto bytes_per_token = static_cast<uint32_t>(options.payload_bytes / kChunkTokens / kLayers / 2);
  const PlaneSpec plane{PlaneKind::kK, DType::kBF16, kHeads, bytes_per_token / kHeads / 2, bytes_per_token};
  PlaneSpec value = plane;
  value.kind = PlaneKind::kV;
  spec.layers.assign(kLayers, LayerSpec{.group = 0, .planes = {plane, value}});
  const uint64_t pool_bytes = kPoolChunks * (options.payload_bytes + (128 << 10));
  StorageOptions storage;
  storage.pool_bytes = pool_bytes;
  storage.log = MakeNullLogSink();
  std::vector<Tier> tiers;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> host, MakeHostBackend({.capacity_bytes = pool_bytes}));
  tiers.push_back({std::move(host), nullptr});
  TERRACE_ASSIGN_OR_RETURN(bench.manager, StorageManager::Open(std::move(storage), std::move(tiers)));
  TERRACE_ASSIGN_OR_RETURN(bench.root, bench.manager->Root(spec));
  return OkStatus();
}

// One chunk; microseconds of the calls and of the filling.
Status PrepareAndCommit(const StoreBenchOptions& options, Bench& bench, const Pages& pages, double& calls_us,
                        double& copy_us) {
  const TokenRange range = bench.Grow(options.prompt_chunks);
  Result<PrepareResult> prepared = InternalError("not called");
  const double prepare_us = MicrosecondsOf([&] {
    prepared = bench.manager->Prepare(
        bench.request_id, bench.root, bench.prompt, range,
        [&](TokenRange, ObjectPart) -> Result<uint64_t> { return options.payload_bytes; });
  });
  TERRACE_RETURN_IF_ERROR(prepared.status());
  TERRACE_RETURN_IF_ERROR(prepared->status);
  WritableChunk chunk = *std::move(prepared->chunks[0].writable);
  copy_us = MicrosecondsOf(
      [&] { StreamCopy(chunk.payload().data(), pages.bytes().data(), chunk.payload().size()); });
  std::vector<WritableChunk> chunks;
  chunks.push_back(std::move(chunk));
  calls_us = prepare_us + MicrosecondsOf([&] { bench.manager->Commit(std::move(chunks)); });
  return bench.manager->Flush();
}

Status StoreView(const StoreBenchOptions& options, Bench& bench, const Pages& pages, double& call_us) {
  const TokenRange range = bench.Grow(options.prompt_chunks);
  const PagedKvView view = pages.View(range.begin);
  Result<StoreHandle> store = InternalError("not called");
  call_us = MicrosecondsOf([&] {
    store = bench.manager->Store(bench.root, bench.prompt, range, {&view, 1},
                                 {.request_id = bench.request_id, .on_source_free = nullptr});
  });
  TERRACE_RETURN_IF_ERROR(store.status());
  const StoreReport report = store->Wait();
  TERRACE_RETURN_IF_ERROR(report.status);
  if (report.stored_objects != 1) return InternalError("a chunk was not stored");
  return bench.manager->Flush();
}

}  // namespace

std::string StoreResult::ToJson() const {
  return nlohmann::ordered_json{
      {"op", op},         {"payload_bytes", payload_bytes}, {"library_us", library_us},
      {"p99_us", p99_us}, {"probe_us", probe_us},           {"ratio", ratio()}}
      .dump();
}

Result<std::vector<StoreResult>> MeasureStores(const StoreBenchOptions& options) {
  Bench bench;
  TERRACE_RETURN_IF_ERROR(Open(options, bench));
  const Pages pages(bench.spec);
  std::vector<double> calls, copies, view_calls;
  // The first ones fill the pool.
  for (int i = -2 * static_cast<int>(kPoolChunks); i < options.repetitions; ++i) {
    double calls_us = 0, copy_us = 0, view_us = 0;
    TERRACE_RETURN_IF_ERROR(PrepareAndCommit(options, bench, pages, calls_us, copy_us));
    TERRACE_RETURN_IF_ERROR(StoreView(options, bench, pages, view_us));
    if (i < 0) continue;
    calls.push_back(calls_us);
    copies.push_back(copy_us);
    view_calls.push_back(view_us);
  }
  const double copy_us = Quantile(copies, 0.5);
  return std::vector<StoreResult>{
      {"prepare_commit", options.payload_bytes, Quantile(calls, 0.5), Quantile(calls, 0.99), copy_us},
      {"store_view", options.payload_bytes, Quantile(view_calls, 0.5), Quantile(view_calls, 0.99), copy_us},
  };
}

}  // namespace terrace::bench
