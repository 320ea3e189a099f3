// AccessLog: what the body of the kernels loads and stores, access by access: for each byte of the
// destination how often it was stored, and whether all accesses were aligned and inside of their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/emulated_launch.h"
#include "kernels/paged_copy_body.h"
#include "lib/base/check.h"
#include "terrace/bytes.h"

namespace terrace {

class AccessLog {
 public:
  void AddSource(Bytes memory) { sources_.push_back(memory); }
  void AddDestination(Bytes memory) {
    destinations_.push_back(memory);
    stores_.emplace_back(memory.size());
  }

  void Load(const std::byte* at, uint32_t width) {
    CheckAccess(at, width);
    for (const Bytes memory : sources_) {
      if (Holds(memory, at, width)) return;
    }
    ++num_outside_;
  }
  void Store(const std::byte* at, uint32_t width) {
    CheckAccess(at, width);
    for (size_t i = 0; i < destinations_.size(); ++i) {
      if (!Holds(destinations_[i], at, width)) continue;
      for (uint32_t b = 0; b < width; ++b)
        ++stores_[i][static_cast<size_t>(at - destinations_[i].data()) + b];
      return;
    }
    ++num_outside_;
  }

  uint8_t stores(size_t destination, size_t at) const { return stores_[destination][at]; }
  const std::vector<std::vector<uint8_t>>& stores() const { return stores_; }
  uint64_t num_outside() const { return num_outside_; }
  uint64_t num_misaligned() const { return num_misaligned_; }
  uint64_t num_accesses() const { return num_accesses_; }
  uint32_t widths() const { return widths_; }  // all that were used, or-ed

 private:
  static bool Holds(Bytes memory, const std::byte* at, uint32_t width) {
    return at >= memory.data() && at + width <= memory.data() + memory.size();
  }
  void CheckAccess(const std::byte* at, uint32_t width) {
    ++num_accesses_;
    widths_ |= width;
    if (reinterpret_cast<uintptr_t>(at) % width != 0) ++num_misaligned_;
  }

  std::vector<Bytes> sources_;
  std::vector<Bytes> destinations_;
  std::vector<std::vector<uint8_t>> stores_;
  uint64_t num_outside_ = 0;
  uint64_t num_misaligned_ = 0;
  uint64_t num_accesses_ = 0;
  uint32_t widths_ = 0;
};

// SameForm, logged.
class LoggedForm : public SameForm {
 public:
  explicit LoggedForm(AccessLog& log) : log_(log) {}

  template <uint32_t kWidth>
  Vector<kWidth> LoadEngine(const std::byte* at) const {
    log_.Load(at, kWidth);
    return LoadVector<kWidth>(at);
  }
  template <uint32_t kWidth>
  Vector<kWidth> LoadPayload(const std::byte* at) const {
    return LoadEngine<kWidth>(at);
  }
  template <uint32_t kWidth>
  void StoreEngine(std::byte* at, const Vector<kWidth>& v) const {
    log_.Store(at, kWidth);
    StoreVector<kWidth>(at, v);
  }
  template <uint32_t kWidth>
  void StorePayload(std::byte* at, const Vector<kWidth>& v) const {
    StoreEngine<kWidth>(at, v);
  }

 private:
  AccessLog& log_;
};

inline void RunLogged(const PagedCopyArgs& args, const EmulatedGrid& grid, AccessLog& log) {
  const Status status = ForEachLaunch(args, [&](const PagedCopyLaunch& launch) {
    EmulateLaunch(launch, grid, LoggedForm(log));
    return OkStatus();
  });
  TERRACE_CHECK(status.ok());
}

}  // namespace terrace
