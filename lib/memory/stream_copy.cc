#include "lib/memory/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lib/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace {
namespace {

constexpr size_t kLineBytes = 64;
using LineCopy = void (*)(std::byte* dst, const std::byte* src, size_t n);

// Below this one copy with its fence gains nothing over memcpy. To memory that is not in cache, GB/s of
// memcpy / streaming: 4 KiB 17.8 / 18.4, 8 KiB 20.5 / 22.8, 32 KiB 22.5 / 25.3.
constexpr size_t kMinStreamBytes = 4096;
// Below this a piece (without a fence of its own) is left to memcpy; no smaller one was measured. Scattered
// out of a payload: 128 B 10.5 / 22, 160 B 7.4 / 21, 1,152 B 11.7 / 22.
constexpr size_t kMinPieceBytes = 128;
// Gathered out of pages shuffled within 64 MiB, memcpy / streaming / streaming with this much fetched ahead:
// 2 KiB 11.8 / 9.8 / 16, 8 KiB 13.1 / 13.0 / 19.7, 32 KiB 18.3 / 19.8 / 22.5 (contiguous: 27). Steps of 1
// KiB, 4 KiB ahead, or only the beginning of the next piece gave half of that gain; 16 KiB the same; fetching
// to L2 instead of L1 lost.
constexpr size_t kFetchAheadBytes = 8192;
constexpr size_t kStepBytes = 256;
static_assert(kMinStreamBytes >= kLineBytes && kMinPieceBytes >= kLineBytes);  // StreamPiece wants a line

#if defined(__x86_64__)

constexpr size_t kPageBytes = 4096;
constexpr size_t kInterleavedPages = 4;

// Both kernels move a group of lines per step: all its loads, then all its stores. Interleaved, a step takes
// a group from each of four neighbouring pages, so that more of the memory's banks work at once; the rest of
// less than four pages goes in order.
template <size_t kGroupBytes>
__attribute__((target("avx2"), always_inline)) inline void MoveGroupAvx2(std::byte* dst,
                                                                         const std::byte* src) {
  constexpr size_t kVectors = kGroupBytes / sizeof(__m256i);
  __m256i group[kVectors];
#pragma GCC unroll 8
  for (size_t i = 0; i < kVectors; ++i) {
    group[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src) + i);
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kVectors; ++i) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst) + i, group[i]);
  }
}

template <size_t kGroupBytes>
__attribute__((target("avx512f"), always_inline)) inline void MoveGroupAvx512(std::byte* dst,
                                                                              const std::byte* src) {
  constexpr size_t kVectors = kGroupBytes / sizeof(__m512i);
  __m512i group[kVectors];
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) group[i] = _mm512_loadu_si512(src + i * sizeof(__m512i));
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i * sizeof(__m512i)), group[i]);
  }
}

__attribute__((target("avx2"))) void CopyLinesAvx2(std::byte* dst, const std::byte* src, size_t n) {
  constexpr size_t kGroupBytes = 4 * kLineBytes;
  for (; n >= kGroupBytes; n -= kGroupBytes, dst += kGroupBytes, src += kGroupBytes) {
    MoveGroupAvx2<kGroupBytes>(dst, src);
  }
  for (; n >= kLineBytes; n -= kLineBytes, dst += kLineBytes, src += kLineBytes) {
    MoveGroupAvx2<kLineBytes>(dst, src);
  }
}

__attribute__((target("avx2"))) void CopyLinesAvx2Interleaved(std::byte* dst, const std::byte* src,
                                                              size_t n) {
  constexpr size_t kGroupBytes = 2 * kLineBytes;
  constexpr size_t kRoundBytes = kInterleavedPages * kPageBytes;
  for (; n >= kRoundBytes; n -= kRoundBytes, dst += kRoundBytes, src += kRoundBytes) {
    for (size_t at = 0; at < kPageBytes; at += kGroupBytes) {
#pragma GCC unroll 4
      for (size_t page = 0; page < kInterleavedPages; ++page) {
        MoveGroupAvx2<kGroupBytes>(dst + page * kPageBytes + at, src + page * kPageBytes + at);
      }
    }
  }
  CopyLinesAvx2(dst, src, n);
}

__attribute__((target("avx512f"))) void CopyLinesAvx512(std::byte* dst, const std::byte* src, size_t n) {
  constexpr size_t kGroupBytes = 2 * kLineBytes;
  for (; n >= kGroupBytes; n -= kGroupBytes, dst += kGroupBytes, src += kGroupBytes) {
    MoveGroupAvx512<kGroupBytes>(dst, src);
  }
  if (n > 0) MoveGroupAvx512<kLineBytes>(dst, src);
}

__attribute__((target("avx512f"))) void CopyLinesAvx512Interleaved(std::byte* dst, const std::byte* src,
                                                                   size_t n) {
  constexpr size_t kGroupBytes = 2 * kLineBytes;
  constexpr size_t kRoundBytes = kInterleavedPages * kPageBytes;
  for (; n >= kRoundBytes; n -= kRoundBytes, dst += kRoundBytes, src += kRoundBytes) {
    for (size_t at = 0; at < kPageBytes; at += kGroupBytes) {
#pragma GCC unroll 4
      for (size_t page = 0; page < kInterleavedPages; ++page) {
        MoveGroupAvx512<kGroupBytes>(dst + page * kPageBytes + at, src + page * kPageBytes + at);
      }
    }
  }
  CopyLinesAvx512(dst, src, n);
}

// Less than a line, of which one end is a line's border: so the address is a multiple of 16 where the length
// is. Then in streaming stores of 16 bytes: a plain store would read the line first, which costs as much as
// copying several.
inline void CopyPartOfLine(std::byte* dst, const std::byte* src, size_t n) {
  if (n % sizeof(__m128i) != 0) {
    std::memcpy(dst, src, n);
    return;
  }
  for (size_t at = 0; at < n; at += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + at)));
  }
}

// A line and more.
void StreamPiece(LineCopy lines, std::byte* dst, const std::byte* src, size_t n) {
  const size_t head = -reinterpret_cast<uintptr_t>(dst) % kLineBytes;
  if (head > 0) CopyPartOfLine(dst, src, head);
  const size_t whole = (n - head) / kLineBytes * kLineBytes;
  if (whole > 0) lines(dst + head, src + head, whole);
  const size_t done = head + whole;
  if (done < n) CopyPartOfLine(dst + done, src + done, n - done);
}

void Fence() { _mm_sfence(); }

void Prefetch(const std::byte* src, size_t n) {
  for (size_t at = 0; at < n; at += kLineBytes) _mm_prefetch(src + at, _MM_HINT_T0);
}

LineCopy LineCopyOf(CopyKernel kernel) {
  switch (kernel) {
    case CopyKernel::kPlain:
      return nullptr;
    case CopyKernel::kAvx2:
      return CopyLinesAvx2;
    case CopyKernel::kAvx2Interleaved:
      return CopyLinesAvx2Interleaved;
    case CopyKernel::kAvx512:
      return CopyLinesAvx512;
    case CopyKernel::kAvx512Interleaved:
      return CopyLinesAvx512Interleaved;
  }
  return nullptr;
}

// Which order of the stores is fast differs between processors, and by more than the width of the registers
// does. GB/s of one thread, 5.9 MB / 32 MiB at a time, memory not in cache, medians of 7 (two threads give
// twice that; pages of 4 KiB and other alignments are within 5 %):
//
//                                     memcpy       avx2         avx2, 4 pages  avx512       avx512, 4 pages
//   AMD EPYC, Zen 5                   19.5 / 20.1  26.5 / 27.6  23.8 / 22.2    25.2 / 26.0  23.2 / 21.3
//   a server with 2 MiB of L2 a core  5.4 - 6.7                                             10.6 - 11.1
//
// So AMD's go in the order of the addresses, and all others four pages at once. A processor on which the
// benchmark's best probe is of the other order wants a line here.
CopyKernel ChooseCopyKernel() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return CopyKernel::kPlain;  // sanitizers see what memcpy does, not what streaming stores do
#endif
  if (__builtin_cpu_is("amd")) return IsSupported(CopyKernel::kAvx2) ? CopyKernel::kAvx2 : CopyKernel::kPlain;
  if (IsSupported(CopyKernel::kAvx512Interleaved)) return CopyKernel::kAvx512Interleaved;
  if (IsSupported(CopyKernel::kAvx2Interleaved)) return CopyKernel::kAvx2Interleaved;
  return CopyKernel::kPlain;
}

#else  // other architectures: memcpy

void StreamPiece(LineCopy, std::byte*, const std::byte*, size_t) {}
void Fence() {}
void Prefetch(const std::byte*, size_t) {}
LineCopy LineCopyOf(CopyKernel) { return nullptr; }
CopyKernel ChooseCopyKernel() { return CopyKernel::kPlain; }

#endif

}  // namespace

bool IsSupported(CopyKernel kernel) {
#if defined(__x86_64__)
  switch (kernel) {
    case CopyKernel::kPlain:
      return true;
    case CopyKernel::kAvx2:
    case CopyKernel::kAvx2Interleaved:
      return __builtin_cpu_supports("avx2");
    case CopyKernel::kAvx512:
    case CopyKernel::kAvx512Interleaved:
      return __builtin_cpu_supports("avx512f");
  }
  return false;
#else
  return kernel == CopyKernel::kPlain;
#endif
}

CopyKernel ChosenCopyKernel() {
  static const CopyKernel chosen = ChooseCopyKernel();
  return chosen;
}

const char* CopyKernelName(CopyKernel kernel) {
  switch (kernel) {
    case CopyKernel::kPlain:
      return "plain";
    case CopyKernel::kAvx2:
      return "avx2";
    case CopyKernel::kAvx2Interleaved:
      return "avx2_interleaved";
    case CopyKernel::kAvx512:
      return "avx512";
    case CopyKernel::kAvx512Interleaved:
      return "avx512_interleaved";
  }
  return "unknown";
}

void StreamCopy(std::byte* dst, const std::byte* src, size_t n) {
  StreamCopyWith(ChosenCopyKernel(), dst, src, n);
}

void StreamCopyWith(CopyKernel kernel, std::byte* dst, const std::byte* src, size_t n) {
  const LineCopy lines = LineCopyOf(kernel);
  if (n < kMinStreamBytes || lines == nullptr) {
    if (n > 0) std::memcpy(dst, src, n);
    return;
  }
  StreamPiece(lines, dst, src, n);
  Fence();
}

StreamCopier::StreamCopier(PieceSources sources, CopyKernel kernel)
    : lines_(LineCopyOf(kernel)),
      fetch_ahead_(sources == PieceSources::kScattered &&
                   (kernel == CopyKernel::kAvx2 || kernel == CopyKernel::kAvx512)) {
  TERRACE_CHECK(IsSupported(kernel)) << CopyKernelName(kernel);
}

void StreamCopier::CopyNow(std::byte* dst, const std::byte* src, size_t n) {
  if (lines_ == nullptr || n < kMinPieceBytes) {
    std::memcpy(dst, src, n);
    return;
  }
  StreamPiece(lines_, dst, src, n);
  unfenced_ = true;
}

void StreamCopier::CopyStepOfFirst() {
  Piece& first = queue_[first_];
  // Steps end where a line of the destination does.
  const size_t n = std::min(first.bytes, kStepBytes - reinterpret_cast<uintptr_t>(first.dst) % kLineBytes);
  CopyNow(first.dst, first.src, n);
  queued_bytes_ -= n;
  if (n == first.bytes) {
    first_ = (first_ + 1) % queue_.size();
    --num_queued_;
    return;
  }
  first = {first.dst + n, first.src + n, first.bytes - n};
}

void StreamCopier::Copy(std::byte* dst, const std::byte* src, size_t n) {
  if (n == 0) return;
  if (!fetch_ahead_) {
    CopyNow(dst, src, n);
    return;
  }
  while (num_queued_ == queue_.size()) CopyStepOfFirst();
  queue_[(first_ + num_queued_) % queue_.size()] = {dst, src, n};
  ++num_queued_;
  for (size_t at = 0; at < n; at += kStepBytes) {
    const size_t step = std::min(kStepBytes, n - at);
    Prefetch(src + at, step);
    queued_bytes_ += step;
    while (queued_bytes_ > kFetchAheadBytes) CopyStepOfFirst();
  }
}

void StreamCopier::Finish() {
  while (num_queued_ > 0) CopyStepOfFirst();
  if (unfenced_) Fence();
  unfenced_ = false;
}

}  // namespace terrace
