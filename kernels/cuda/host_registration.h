// HostRegistration: which host memory is pinned for CUDA, in which pieces. A copy that crosses the border of
// two pieces is refused by the driver, so copies are cut there.
//
// Memory that is registered already (for another device of this process: registrations are portable) is
// used as it is, and left registered by Remove; whoever registered it keeps it for as long.
//
// Threads: every call from every thread; regions are registered at the same time where callers ask for them
// so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

class HostRegistration {
 public:
  // What pins a piece; replaced in tests. AlreadyExists: registered before. The bound of a piece is a
  // multiple of the page size.
  struct Calls {
    std::function<Status(std::byte* base, uint64_t bytes)> pin;
    std::function<void(std::byte* base)> unpin;
  };
  static constexpr uint64_t kMaxPieceBytes = uint64_t{64} << 30;

  explicit HostRegistration(Calls calls, uint64_t max_piece_bytes = kMaxPieceBytes)
      : calls_(std::move(calls)), max_piece_bytes_(max_piece_bytes) {}

  // All of it or nothing. kInvalidArgument: not whole pages, or partly registered here already; pin's error.
  Status Add(MutableBytes memory);
  // Of a region that Add took; anything else is left alone.
  void Remove(MutableBytes memory);

  // How many of `bytes` from `address` on lie in the same piece, or outside of all: what one copy may take.
  uint64_t UncutBytes(const std::byte* address, uint64_t bytes) const;
  // The first byte of the piece that `address` lies in; null where it is in none.
  std::byte* PieceOf(const std::byte* address) const;

 private:
  struct Piece {
    uint64_t bytes = 0;
    bool is_ours = false;  // pinned by Add
  };

  void Unpin(uintptr_t begin, uintptr_t end);

  const Calls calls_;
  const uint64_t max_piece_bytes_;
  mutable std::mutex mutex_;
  std::map<uintptr_t, Piece> pieces_;  // by address, disjoint; guarded by mutex_
};

}  // namespace terrace
