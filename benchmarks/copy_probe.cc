#include "benchmarks/copy_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>

#include "benchmarks/engine_pages.h"
#include "benchmarks/stream_probe.h"
#include "kernels/host_launcher.h"
#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/codec/paged_copy.h"
#include "lib/memory/stream_copy.h"
#include "terrace/bytes.h"

namespace terrace::bench {
namespace {

// Anonymous memory, touched, in huge pages or in pages of 4 KiB.
class Arena {
 public:
  Arena(size_t bytes, bool huge) : bytes_(bytes + kHugePage) {
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TERRACE_CHECK(mapped != MAP_FAILED) << bytes_;
    mapped_ = static_cast<std::byte*>(mapped);
    data_ = mapped_ + -reinterpret_cast<uintptr_t>(mapped_) % kHugePage;
    // A system that refuses measures with the pages that it gives.
    (void)madvise(mapped_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(mapped_, 1, bytes_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { munmap(mapped_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  static constexpr size_t kHugePage = 2 << 20;
  const size_t bytes_;
  std::byte* mapped_;
  std::byte* data_;
};

// What one thread copies between, each side arena_bytes and a page more.
struct Sides {
  explicit Sides(uint64_t arena_bytes) : pool(arena_bytes + 4096, true), caller(arena_bytes + 4096, false) {}
  Arena pool;
  Arena caller;
};

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Copies `slot`, one of the places of a size in the arenas.
using CopySlot = std::function<void(const Sides& sides, uint64_t slot)>;

struct Contender {
  CopySlot copy;
  std::vector<double> gbps;
};

class Rounds {
 public:
  Rounds(const CopyBenchOptions& options, int threads, uint64_t bytes)
      : options_(options), bytes_(bytes), slots_(options.arena_bytes / bytes) {
    TERRACE_CHECK(slots_ >= 2) << "an arena of " << options.arena_bytes << " bytes for copies of " << bytes;
    for (int i = 0; i < threads; ++i) sides_.push_back(std::make_unique<Sides>(options.arena_bytes));
  }

  void Run(std::vector<Contender>& contenders) {
    for (int repetition = -1; repetition < options_.repetitions; ++repetition) {  // the first one warms up
      for (Contender& contender : contenders) {
        const double gbps = RunOnce(contender.copy);
        if (repetition >= 0) contender.gbps.push_back(gbps);
      }
    }
  }

  const Sides& sides() const { return *sides_[0]; }

 private:
  double RunOnce(const CopySlot& copy) {
    const uint64_t copies = std::max<uint64_t>(1, options_.bytes_per_round / bytes_);
    std::vector<double> seconds(sides_.size());
    std::barrier start(static_cast<std::ptrdiff_t>(sides_.size()));
    const auto work = [&](size_t thread) {
      start.arrive_and_wait();
      const double begin = ThreadSeconds();
      for (uint64_t i = 0; i < copies; ++i) copy(*sides_[thread], (next_slot_ + i) % slots_);
      seconds[thread] = ThreadSeconds() - begin;
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < sides_.size(); ++i) others.emplace_back(work, i);
    work(0);
    for (std::thread& other : others) other.join();
    next_slot_ = (next_slot_ + copies) % slots_;
    double gbps = 0;
    for (const double spent : seconds) gbps += static_cast<double>(copies * bytes_) / spent / 1e9;
    return gbps;
  }

  const CopyBenchOptions& options_;
  const uint64_t bytes_;
  const uint64_t slots_;
  uint64_t next_slot_ = 0;
  std::vector<std::unique_ptr<Sides>> sides_;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The library first, memcpy second, then the probe's settings.
CopyResult Summarise(const std::vector<Contender>& contenders) {
  CopyResult result;
  result.library_gbps = Median(contenders[0].gbps);
  result.memcpy_gbps = Median(contenders[1].gbps);
  for (size_t i = 2; i < contenders.size(); ++i) {
    result.probe_gbps = std::max(result.probe_gbps, Median(contenders[i].gbps));
  }
  return result;
}

constexpr size_t kCallerShift = 24;  // bytes behind a page's begin

CopySlot Contiguous(CopyFunction copy, uint64_t bytes, bool to_pool) {
  return [=](const Sides& sides, uint64_t slot) {
    const uint64_t at = slot * (bytes / 4096 * 4096);
    std::byte* pool = sides.pool.data() + at;
    std::byte* caller = sides.caller.data() + at + kCallerShift;
    copy(to_pool ? pool : caller, to_pool ? caller : pool, bytes);
  };
}

void Memcpy(std::byte* dst, const std::byte* src, size_t n) { std::memcpy(dst, src, n); }

std::vector<Contender> ContiguousContenders(uint64_t bytes, bool to_pool) {
  std::vector<Contender> contenders;
  contenders.push_back({Contiguous(StreamCopy, bytes, to_pool), {}});
  contenders.push_back({Contiguous(Memcpy, bytes, to_pool), {}});
  for (const ProbeSetting& setting : ProbeSettings()) {
    contenders.push_back({Contiguous(setting.copy, bytes, to_pool), {}});
  }
  return contenders;
}

// The library's gather or scatter of a chunk.
CopySlot PagedCopySlot(const EnginePages& pages, CopyDirection direction) {
  return [&pages, direction](const Sides& sides, uint64_t chunk) {
    std::vector<PlaneView> planes;
    const PagedKvView view = pages.ViewOf(sides.caller.data(), planes);
    const TokenRange tokens = pages.TokensOf(chunk);
    const uint64_t bytes = pages.layout().bytes_per_token() * (tokens.end - tokens.begin);
    const MutableBytes payload(sides.pool.data() + chunk * bytes, bytes);
    const PagedCopy copy = {pages.layout(), view, tokens};
    const LayerSpan layers = {0, pages.layout().num_layers()};
    if (direction == CopyDirection::kToHost) {
      TERRACE_CHECK(GatherLayers(copy, tokens, layers, payload).ok());
    } else {
      ScatterLayers(copy, tokens, layers, payload);
    }
  };
}

// Where a piece begins in its side's memory.
struct PiecePlace {
  uint64_t pool = 0;
  uint64_t caller = 0;
};

// The same with memcpy, piece by piece, the places computed before.
CopySlot PieceByPiece(const EnginePages& pages, uint64_t piece_bytes, CopyDirection direction,
                      const Sides& any) {
  const bool to_pool = direction == CopyDirection::kToHost;
  std::vector<std::vector<PiecePlace>> places(pages.num_chunks());
  std::vector<PlaneView> whole;
  const Status valid = pages.ViewOf(any.caller.data(), whole).Validate(pages.spec(), !to_pool);
  TERRACE_CHECK(valid.ok()) << valid.ToString();
  for (uint64_t chunk = 0; chunk < places.size(); ++chunk) {
    std::vector<PlaneView> planes;
    const PagedKvView view = pages.ViewOf(any.caller.data(), planes);
    const TokenRange tokens = pages.TokensOf(chunk);
    const PagedCopy copy = {pages.layout(), view, tokens};
    const uint64_t begin = chunk * pages.layout().bytes_per_token() * (tokens.end - tokens.begin);
    const Result<KernelCopy> kernel =
        MakeKernelCopy(copy, tokens, {0, pages.layout().num_layers()}, direction, any.pool.data() + begin);
    TERRACE_CHECK(kernel.ok()) << kernel.status().ToString();
    ForEachCopyPiece(kernel->args, [&](const CopyPiece& piece) {
      const std::byte* pool = to_pool ? piece.dst : piece.src;
      const std::byte* caller = to_pool ? piece.src : piece.dst;
      // Neighbouring blocks are one piece here; the memcpy that is compared with does not see that.
      for (uint64_t at = 0; at < piece.bytes; at += piece_bytes) {
        places[chunk].push_back({static_cast<uint64_t>(pool - any.pool.data()) + at,
                                 static_cast<uint64_t>(caller - any.caller.data()) + at});
      }
    });
  }
  return [places = std::move(places), piece_bytes, to_pool](const Sides& sides, uint64_t chunk) {
    for (const PiecePlace& place : places[chunk]) {
      std::byte* pool = sides.pool.data() + place.pool;
      std::byte* caller = sides.caller.data() + place.caller;
      std::memcpy(to_pool ? pool : caller, to_pool ? caller : pool, piece_bytes);
    }
  };
}

// The copies of one layout, in both directions.
void MeasureLayout(const CopyBenchOptions& options, const EngineShape& shape, int threads, Rounds& rounds,
                   std::vector<CopyResult>& results) {
  const EnginePages pages(shape, options.arena_bytes, options.chunk_bytes);
  for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    const bool to_pool = direction == CopyDirection::kToHost;
    std::vector<Contender> contenders = ContiguousContenders(options.chunk_bytes, to_pool);
    contenders[0].copy = PagedCopySlot(pages, direction);
    contenders[1].copy = PieceByPiece(pages, shape.piece_bytes, direction, rounds.sides());
    rounds.Run(contenders);
    CopyResult& result = results.emplace_back(Summarise(contenders));
    result.op = to_pool ? "gather" : "scatter";
    result.layout = EngineLayoutName(shape.layout);
    result.piece_bytes = shape.piece_bytes;
    result.threads = threads;
  }
}

void MeasureContiguous(const CopyBenchOptions& options, uint64_t bytes, int threads,
                       std::vector<CopyResult>& results) {
  Rounds rounds(options, threads, bytes);
  for (const bool to_pool : {true, false}) {
    std::vector<Contender> contenders = ContiguousContenders(bytes, to_pool);
    rounds.Run(contenders);
    CopyResult& result = results.emplace_back(Summarise(contenders));
    result.op = "contiguous";
    result.layout = to_pool ? "to_pool" : "from_pool";
    result.piece_bytes = bytes;
    result.threads = threads;
  }
}

}  // namespace

std::string CopyResult::ToJson() const {
  char line[512];
  std::snprintf(line, sizeof(line),
                "{\"op\": \"%s\", \"layout\": \"%s\", \"piece_bytes\": %llu, \"threads\": %d, "
                "\"library_gbps\": %.2f, \"probe_gbps\": %.2f, \"memcpy_gbps\": %.2f, \"ratio\": %.3f}",
                op.c_str(), layout.c_str(), static_cast<unsigned long long>(piece_bytes), threads,
                library_gbps, probe_gbps, memcpy_gbps, ratio());
  return line;
}

Result<std::vector<CopyResult>> MeasureCopies(const CopyBenchOptions& options) {
  std::vector<EngineShape> shapes;
  for (const EngineLayout layout : {EngineLayout::kVllmFlashAttention, EngineLayout::kVllmCrossLayer,
                                    EngineLayout::kSglangMha, EngineLayout::kTrtllmCrossLayer}) {
    for (const uint64_t piece_bytes : options.piece_sizes_bytes) {
      TERRACE_ASSIGN_OR_RETURN(shapes.emplace_back(), ShapeOfPieces(layout, piece_bytes));
    }
  }
  TERRACE_ASSIGN_OR_RETURN(shapes.emplace_back(), ShapeOfPieces(EngineLayout::kTrtllmCrossLayer, 256));

  std::vector<CopyResult> results;
  for (const int threads : options.threads) {
    for (const uint64_t bytes : options.sizes_bytes) MeasureContiguous(options, bytes, threads, results);
    Rounds rounds(options, threads, options.chunk_bytes);
    for (const EngineShape& shape : shapes) MeasureLayout(options, shape, threads, rounds, results);
  }
  return results;
}

}  // namespace terrace::bench
