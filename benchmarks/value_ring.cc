#include "benchmarks/value_ring.h"

#include <sys/mman.h>

#include <cstring>

#include "lib/base/check.h"
#include "lib/wire/frame.h"

namespace terrace::bench {

ValueRing::ValueRing(uint64_t size_bytes) : size_bytes_(RoundUp(size_bytes, kFrameAlignment)) {
  void* mapped = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TERRACE_CHECK(mapped != MAP_FAILED) << size_bytes_;
  data_ = static_cast<std::byte*>(mapped);
  // A system that refuses measures with the pages that it gives.
  (void)madvise(mapped, size_bytes_, MADV_HUGEPAGE);
  std::memset(data_, 7, size_bytes_);
}

ValueRing::~ValueRing() { munmap(data_, size_bytes_); }

MutableBytes ValueRing::Value(uint64_t number, uint64_t value_bytes) const {
  const uint64_t stride = RoundUp(value_bytes, kFrameAlignment);
  TERRACE_CHECK(stride <= size_bytes_) << "a value of " << value_bytes << " bytes in " << size_bytes_;
  return {data_ + number % (size_bytes_ / stride) * stride, value_bytes};
}

}  // namespace terrace::bench
