// Bytes, MutableBytes, BufferRef: the only names for the bytes between connector and device.
//
// A pool buffer is a tier page and a frame, one contiguous run of memory:
//
//   data()                                                                    data() + size()
//   | tier page, 4,096 B | frame header, n x 4,096 B | payload, padded to 4,096 | unused |
//   ^ 4,096-aligned      ^ frame()
//
// BufferRef counts references; the last one gives the run back to its pool. It may be copied and
// dropped on any thread. Writing is allowed to the one who allocated the buffer (or to the backend
// that was handed it as a destination) until the object is published; from then on nobody writes but
// for the tier page, which nobody but a disk tier reads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace terrace {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline constexpr size_t kTierPageBytes = 4096;
inline constexpr size_t kFrameAlignment = 4096;

// One run of memory and its count. Made by whoever owns the memory (BufferPool, or an outside
// store of bytes); `release` is called once, on the thread that drops the last reference.
struct BufferControl {
  std::atomic<uint32_t> references{1};
  std::byte* data = nullptr;
  size_t size_bytes = 0;
  uint32_t region_id = 0;  // which registered MemoryRegion the run lies in
  void (*release)(BufferControl*) = nullptr;
};

class BufferRef {
 public:
  BufferRef() = default;
  // Adopts the reference that a new BufferControl starts with.
  explicit BufferRef(BufferControl* adopted) : control_(adopted) {}
  BufferRef(const BufferRef& other) : control_(other.control_) {
    if (control_) control_->references.fetch_add(1, std::memory_order_relaxed);
  }
  BufferRef(BufferRef&& other) noexcept : control_(std::exchange(other.control_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(control_, other.control_);
    return *this;
  }
  ~BufferRef() { Reset(); }

  void Reset() {
    if (control_ && control_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      control_->release(control_);
    }
    control_ = nullptr;
  }

  explicit operator bool() const { return control_ != nullptr; }
  bool SameAs(const BufferRef& other) const { return control_ == other.control_; }
  size_t size_bytes() const { return control_->size_bytes; }
  uint32_t region_id() const { return control_->region_id; }
  uint32_t use_count() const { return control_->references.load(std::memory_order_acquire); }

  // The whole run with its tier page.
  Bytes run() const { return {control_->data, control_->size_bytes}; }
  MutableBytes mutable_run() const { return {control_->data, control_->size_bytes}; }
  // From the frame's first byte to the end of the run.
  Bytes frame() const { return run().subspan(kTierPageBytes); }
  MutableBytes mutable_frame() const { return mutable_run().subspan(kTierPageBytes); }

 private:
  BufferControl* control_ = nullptr;
};

}  // namespace terrace
