// ValueRing: touched memory for a number of values that a probe sends or receives in turn, so that it moves
// as many different bytes as the library beside it does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "terrace/bytes.h"

namespace terrace::bench {

enum class Direction : uint8_t { kGet = 1, kPut = 2 };  // from the server, to the server

// What one run moves, and what of it one of several connections moves.
struct ValueBatch {
  uint64_t value_bytes = 0;
  uint64_t count = 0;
  uint64_t ShareOf(uint32_t index, uint32_t connections) const {
    return count / connections + (index < count % connections ? 1 : 0);
  }
};

class ValueRing {
 public:
  explicit ValueRing(uint64_t size_bytes);
  ~ValueRing();
  ValueRing(const ValueRing&) = delete;
  ValueRing& operator=(const ValueRing&) = delete;

  // Value `number` of `value_bytes` each, at most size_bytes. As many values as fit have memory of their own,
  // then they begin again.
  MutableBytes Value(uint64_t number, uint64_t value_bytes) const;

 private:
  const uint64_t size_bytes_;
  std::byte* data_;
};

}  // namespace terrace::bench
