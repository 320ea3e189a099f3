// What a plane of a copy looks like to those who cut it: its tokens' size, its runs as long as the strides
// allow.
#pragma once

#include <cstdint>

#include "kernels/paged_copy_args.h"

namespace terrace {

inline uint64_t PayloadTokenBytes(const PlaneArgs& plane) {
  return uint64_t{plane.num_heads} * plane.run_bytes;
}

// The same plane with one run per token, where its heads are contiguous. A token's plane of 4 GiB and more
// stays as it is.
inline PlaneArgs MergeHeads(PlaneArgs plane) {
  const uint64_t token_bytes = PayloadTokenBytes(plane);
  const bool contiguous = plane.num_heads == 1 || plane.head_stride == int64_t{plane.run_bytes};
  if (!contiguous || token_bytes != static_cast<uint32_t>(token_bytes)) return plane;
  plane.run_bytes = static_cast<uint32_t>(token_bytes);
  plane.num_heads = 1;
  return plane;
}

// Of a plane with merged heads: tokens of a block are contiguous on both sides.
inline bool HasContiguousTokens(const PlaneArgs& merged) {
  return merged.num_heads == 1 && merged.token_stride == int64_t{merged.run_bytes};
}

}  // namespace terrace
