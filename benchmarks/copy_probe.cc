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
#include <numeric>
#include <random>
#include <thread>

#include "lib/base/check.h"
#include "lib/codec/paged_copy.h"
#include "lib/memory/stream_copy.h"
#include "terrace/bytes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace::bench {
namespace {

using CopyFunction = void (*)(std::byte* dst, const std::byte* src, size_t n);

struct ProbeSetting {
  const char* name;
  CopyFunction copy;
};

#if defined(__x86_64__)

// The probe: `kPages` pages at once, `kLines` cache lines of each per step, then a fence. What is left of a
// line at both ends, and of the pages at the end, goes in order.
template <int kPages, int kLines>
__attribute__((target("avx2"))) void ProbeAvx2(std::byte* dst, const std::byte* src, size_t n) {
  const size_t head = std::min<size_t>(n, -reinterpret_cast<uintptr_t>(dst) % 64);
  std::memcpy(dst, src, head);
  size_t at = head;
  for (; at + kPages * 4096 <= n; at += kPages * 4096) {
    for (size_t line = 0; line < 4096; line += 64 * kLines) {
#pragma GCC unroll 32
      for (int v = 0; v < kPages * kLines * 2; ++v) {
        const size_t place = at + static_cast<size_t>(v / (2 * kLines)) * 4096 + line +
                             static_cast<size_t>(v % (2 * kLines)) * 32;
        const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + place));
        _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + place), value);
      }
    }
  }
  for (; at + 32 <= n; at += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + at)));
  }
  _mm_sfence();
  std::memcpy(dst + at, src + at, n - at);
}

template <int kPages, int kLines>
__attribute__((target("avx512f"))) void ProbeAvx512(std::byte* dst, const std::byte* src, size_t n) {
  const size_t head = std::min<size_t>(n, -reinterpret_cast<uintptr_t>(dst) % 64);
  std::memcpy(dst, src, head);
  size_t at = head;
  for (; at + kPages * 4096 <= n; at += kPages * 4096) {
    for (size_t line = 0; line < 4096; line += 64 * kLines) {
#pragma GCC unroll 32
      for (int v = 0; v < kPages * kLines; ++v) {
        const size_t place =
            at + static_cast<size_t>(v / kLines) * 4096 + line + static_cast<size_t>(v % kLines) * 64;
        _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + place), _mm512_loadu_si512(src + place));
      }
    }
  }
  for (; at + 64 <= n; at += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  }
  _mm_sfence();
  std::memcpy(dst + at, src + at, n - at);
}

void ProbeRepMovs(std::byte* dst, const std::byte* src, size_t n) {
  asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(n) : : "memory");
}

std::vector<ProbeSetting> ProbeSettings() {
  std::vector<ProbeSetting> settings = {{"rep movsb", ProbeRepMovs}};
  if (__builtin_cpu_supports("avx2")) {
    settings.push_back({"avx2 pages:1 lines:1", ProbeAvx2<1, 1>});
    settings.push_back({"avx2 pages:1 lines:4", ProbeAvx2<1, 4>});
    settings.push_back({"avx2 pages:4 lines:2", ProbeAvx2<4, 2>});
  }
  if (__builtin_cpu_supports("avx512f")) {
    settings.push_back({"avx512 pages:1 lines:1", ProbeAvx512<1, 1>});
    settings.push_back({"avx512 pages:1 lines:4", ProbeAvx512<1, 4>});
    settings.push_back({"avx512 pages:4 lines:1", ProbeAvx512<4, 1>});
    settings.push_back({"avx512 pages:4 lines:2", ProbeAvx512<4, 2>});
    settings.push_back({"avx512 pages:8 lines:1", ProbeAvx512<8, 1>});
  }
  return settings;
}

#else

std::vector<ProbeSetting> ProbeSettings() {
  return {{"memcpy", [](std::byte* dst, const std::byte* src, size_t n) { std::memcpy(dst, src, n); }}};
}

#endif

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
  std::string name;
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
CopyResult Summarise(std::string op, const std::vector<Contender>& contenders) {
  CopyResult result;
  result.op = std::move(op);
  result.library_gbps = Median(contenders[0].gbps);
  result.memcpy_gbps = Median(contenders[1].gbps);
  for (size_t i = 2; i < contenders.size(); ++i) {
    if (const double gbps = Median(contenders[i].gbps); gbps > result.probe_gbps) {
      result.probe_gbps = gbps;
      result.probe_setting = contenders[i].name;
    }
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
  contenders.push_back({"library", Contiguous(StreamCopy, bytes, to_pool), {}});
  contenders.push_back({"memcpy", Contiguous(Memcpy, bytes, to_pool), {}});
  for (const ProbeSetting& setting : ProbeSettings()) {
    contenders.push_back({setting.name, Contiguous(setting.copy, bytes, to_pool), {}});
  }
  return contenders;
}

// One layer with one plane, a block of one token per piece: the caller's arena as pages in shuffled order.
class Pages {
 public:
  Pages(uint64_t arena_bytes, uint64_t bytes, uint64_t piece_bytes)
      : piece_bytes_(piece_bytes), tokens_per_copy_(bytes / piece_bytes), table_(arena_bytes / piece_bytes) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937_64(1));
    const auto plane_bytes = static_cast<uint32_t>(piece_bytes);
    spec_.model_id = "copies";
    spec_.payload_form = PayloadForm::kCanonical;
    spec_.layers = {{0, {{PlaneKind::kLatent, DType::kU8, 1, plane_bytes, plane_bytes}}}};
  }

  uint64_t bytes_per_copy() const { return tokens_per_copy_ * piece_bytes_; }

  CopySlot Library(bool to_pool) const {
    return [this, to_pool, layout = PayloadLayout(spec_, {})](const Sides& sides, uint64_t slot) {
      const auto stride = static_cast<int64_t>(piece_bytes_);
      const PlaneView plane = {.base = sides.caller.data(),
                               .block_stride = stride,
                               .token_stride = stride,
                               .run_bytes = static_cast<uint32_t>(piece_bytes_)};
      PagedKvView view;
      view.planes = {&plane, 1};
      view.block_table = table_;
      view.tokens_per_block = 1;
      view.num_tokens = table_.size();
      const TokenRange tokens = {slot * tokens_per_copy_, (slot + 1) * tokens_per_copy_};
      const MutableBytes payload(sides.pool.data() + slot * bytes_per_copy(), bytes_per_copy());
      if (to_pool) {
        TERRACE_CHECK(GatherLayers({layout, view, tokens}, tokens, {0, 1}, payload).ok());
      } else {
        ScatterLayers({layout, view, tokens}, tokens, {0, 1}, payload);
      }
    };
  }

  CopySlot PieceByPiece(bool to_pool) const {
    return [this, to_pool](const Sides& sides, uint64_t slot) {
      for (uint64_t i = slot * tokens_per_copy_; i < (slot + 1) * tokens_per_copy_; ++i) {
        std::byte* pool = sides.pool.data() + i * piece_bytes_;
        std::byte* page = sides.caller.data() + static_cast<uint64_t>(table_[i]) * piece_bytes_;
        std::memcpy(to_pool ? pool : page, to_pool ? page : pool, piece_bytes_);
      }
    };
  }

 private:
  const uint64_t piece_bytes_;
  const uint64_t tokens_per_copy_;
  std::vector<int64_t> table_;
  KvSpec spec_;
};

}  // namespace

std::string CopyResult::ToJson() const {
  char line[512];
  std::snprintf(line, sizeof(line),
                "{\"op\": \"%s\", \"bytes\": %llu, \"piece_bytes\": %llu, \"threads\": %d, \"library_gbps\": "
                "%.2f, \"probe_gbps\": %.2f, \"memcpy_gbps\": %.2f, \"ratio\": %.3f, \"ratio_memcpy\": %.3f, "
                "\"probe_setting\": \"%s\"}",
                op.c_str(), static_cast<unsigned long long>(bytes),
                static_cast<unsigned long long>(piece_bytes), threads, library_gbps, probe_gbps, memcpy_gbps,
                ratio(), ratio_memcpy(), probe_setting.c_str());
  return line;
}

std::vector<CopyResult> MeasureCopies(const CopyBenchOptions& options) {
  std::vector<CopyResult> results;
  for (const uint64_t bytes : options.sizes_bytes) {
    for (const int threads : options.threads) {
      Rounds rounds(options, threads, bytes);
      const auto measure = [&](const char* op, uint64_t piece_bytes, std::vector<Contender> contenders) {
        rounds.Run(contenders);
        CopyResult& result = results.emplace_back(Summarise(op, contenders));
        result.bytes = bytes;
        result.piece_bytes = piece_bytes;
        result.threads = threads;
      };
      measure("to_pool", 0, ContiguousContenders(bytes, true));
      measure("from_pool", 0, ContiguousContenders(bytes, false));
      for (const uint64_t piece_bytes : options.piece_sizes_bytes) {
        const Pages pages(options.arena_bytes, bytes, piece_bytes);
        for (const bool to_pool : {true, false}) {
          std::vector<Contender> contenders = ContiguousContenders(bytes, to_pool);
          contenders[0].copy = pages.Library(to_pool);
          contenders[1].copy = pages.PieceByPiece(to_pool);
          measure(to_pool ? "gather" : "scatter", piece_bytes, std::move(contenders));
        }
      }
    }
  }
  return results;
}

}  // namespace terrace::bench
