// StreamCopy: memcpy for bytes that the CPU does not read soon. Stores go around the cache, so that the
// destination is not read first and nothing useful is pushed out. StreamCopier does the same for many pieces
// with one fence at the end.
//
// Source and destination do not overlap; any alignment, any size. No global state but the kernel chosen on
// first use. Every call from every thread; a StreamCopier belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>

namespace terrace {

enum class CopyKernel {
  kPlain = 1,              // memcpy
  kAvx2 = 2,               // 32-byte streaming stores, in the order of the addresses
  kAvx2Interleaved = 3,    // the same, four pages at once
  kAvx512 = 4,             // 64-byte streaming stores, in the order of the addresses
  kAvx512Interleaved = 5,  // the same, four pages at once
};

inline constexpr std::array kCopyKernels = {CopyKernel::kPlain, CopyKernel::kAvx2,
                                            CopyKernel::kAvx2Interleaved, CopyKernel::kAvx512,
                                            CopyKernel::kAvx512Interleaved};

// Whether this processor (and the system's saving of its registers) can run it. kPlain always is.
bool IsSupported(CopyKernel kernel);
// What StreamCopy uses here, by cpuid; a supported one.
CopyKernel ChosenCopyKernel();
// Its name for reports, e.g. "avx512_interleaved".
const char* CopyKernelName(CopyKernel kernel);

// When it returns, the bytes are ordered as those of a memcpy: a release store after it publishes them.
void StreamCopy(std::byte* dst, const std::byte* src, size_t n);
// For tests and benchmarks. `kernel` must be supported.
void StreamCopyWith(CopyKernel kernel, std::byte* dst, const std::byte* src, size_t n);

// Where the pieces of a StreamCopier come from.
enum class PieceSources {
  kInOrder = 1,    // each piece continues the one before, as out of a payload: the processor fetches ahead
  kScattered = 2,  // as out of an engine's pages: StreamCopier fetches ahead where that was measured to pay
};

// Copies of many pieces. A piece may be copied as late as in Finish: its source and destination stay until
// then.
class StreamCopier {
 public:
  // `kernel` must be supported.
  explicit StreamCopier(PieceSources sources, CopyKernel kernel = ChosenCopyKernel());
  StreamCopier(const StreamCopier&) = delete;
  StreamCopier& operator=(const StreamCopier&) = delete;
  ~StreamCopier() { Finish(); }

  void Copy(std::byte* dst, const std::byte* src, size_t n);
  // Copies what is left; afterwards the bytes are ordered as after StreamCopy. More pieces may follow.
  void Finish();

 private:
  struct Piece {
    std::byte* dst;
    const std::byte* src;
    size_t bytes;
  };
  // Copies whole cache lines to a 64-byte aligned destination.
  using LineCopy = void (*)(std::byte* dst, const std::byte* src, size_t n);

  void CopyNow(std::byte* dst, const std::byte* src, size_t n);
  void CopyStepOfFirst();

  const LineCopy lines_;  // null: memcpy
  const bool fetch_ahead_;
  bool unfenced_ = false;
  // With fetch_ahead_: pieces that are fetched and not yet copied, in the order of their arrival; of the
  // first one what is left.
  std::array<Piece, 64> queue_;
  size_t first_ = 0;
  size_t num_queued_ = 0;
  size_t queued_bytes_ = 0;
};

}  // namespace terrace
