#include "benchmarks/stream_probe.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace::bench {

#if defined(__x86_64__)
namespace {

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

}  // namespace

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

}  // namespace terrace::bench
