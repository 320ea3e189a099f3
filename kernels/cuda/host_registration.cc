#include "kernels/cuda/host_registration.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace terrace {
namespace {

constexpr uint64_t kPageBytes = 4096;

}  // namespace

Status HostRegistration::Add(MutableBytes memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + memory.size();
  if (memory.empty() || begin % kPageBytes != 0 || memory.size() % kPageBytes != 0) {
    return InvalidArgumentError("host memory is registered in whole pages of " + std::to_string(kPageBytes) +
                                " bytes, not " + std::to_string(memory.size()) + " from " +
                                std::to_string(begin));
  }
  {  // The pieces are claimed first: pinning takes 0.1 s per GB, during which other regions go on.
    const std::lock_guard<std::mutex> lock(mutex_);
    auto next = pieces_.lower_bound(begin);
    const bool overlaps_next = next != pieces_.end() && next->first < end;
    const bool overlaps_previous =
        next != pieces_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > begin;
    if (overlaps_next || overlaps_previous) {
      return InvalidArgumentError("host memory is registered with this device already");
    }
    for (uintptr_t piece = begin; piece < end; piece += max_piece_bytes_) {
      pieces_[piece] = {std::min<uint64_t>(max_piece_bytes_, end - piece), false};
    }
  }
  for (uintptr_t piece = begin; piece < end; piece += max_piece_bytes_) {
    const uint64_t bytes = std::min<uint64_t>(max_piece_bytes_, end - piece);
    const Status pinned = calls_.pin(memory.data() + (piece - begin), bytes);
    if (!pinned.ok() && pinned.code() != StatusCode::kAlreadyExists) {
      Unpin(begin, end);
      return pinned;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_[piece].is_ours = pinned.ok();
  }
  return OkStatus();
}

void HostRegistration::Remove(MutableBytes memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  Unpin(begin, begin + memory.size());
}

void HostRegistration::Unpin(uintptr_t begin, uintptr_t end) {
  std::vector<std::byte*> ours;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto piece = pieces_.lower_bound(begin);
    while (piece != pieces_.end() && piece->first + piece->second.bytes <= end) {
      if (piece->second.is_ours) ours.push_back(reinterpret_cast<std::byte*>(piece->first));
      piece = pieces_.erase(piece);
    }
  }
  for (std::byte* base : ours) calls_.unpin(base);
}

uint64_t HostRegistration::UncutBytes(const std::byte* address, uint64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = pieces_.upper_bound(begin);
  if (next != pieces_.begin()) {
    const auto& [base, piece] = *std::prev(next);
    if (begin - base < piece.bytes) return std::min(bytes, piece.bytes - (begin - base));
  }
  return next == pieces_.end() ? bytes : std::min<uint64_t>(bytes, next->first - begin);
}

std::byte* HostRegistration::PieceOf(const std::byte* address) const {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = pieces_.upper_bound(begin);
  if (next == pieces_.begin()) return nullptr;
  const auto& [base, piece] = *std::prev(next);
  return begin - base < piece.bytes ? reinterpret_cast<std::byte*>(base) : nullptr;
}

}  // namespace terrace
