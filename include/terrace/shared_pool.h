// SharedPool: a manager's pool as other processes may map it, read-only.
//
// Two memory files, each sealed (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL) once this
// process has mapped it for writing, so that nobody who is handed the descriptor can write:
//
//   pool         the pool's bytes, as BufferRef::run() names them
//   generations  one u64 per 64 KiB unit of the pool, little-endian. That of a buffer's first unit is raised
//                when its memory is given back, before anybody else may have it. Who reads a frame without
//                holding the buffer reads the generation before (acquire) and after (after an acquire fence):
//                equal means that the bytes were the frame's all the time.
#pragma once

#include <cstdint>

#include "terrace/bytes.h"

namespace terrace {

inline constexpr uint64_t kSharedPoolUnitBytes = 64 * 1024;

// The descriptors are the manager's and live as long as its pool.
struct SharedPool {
  int pool_fd = -1;
  uint64_t pool_bytes = 0;
  int generations_fd = -1;
  uint64_t generations_bytes = 0;
};

// Where a buffer of the pool lies in it.
struct SharedPlace {
  uint64_t frame_offset = 0;  // of frame()'s first byte in the pool
  uint64_t generation = 0;    // of the buffer's first unit, which is (frame_offset - 4,096) / 64 KiB
};

}  // namespace terrace
