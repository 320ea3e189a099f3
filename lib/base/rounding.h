// Divisions of sizes that round up. Unsigned; the sum of value and unit stays within 64 bits.
#pragma once

#include <cstdint>

namespace terrace {

constexpr uint64_t CeilDiv(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit; }
constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) { return CeilDiv(value, unit) * unit; }

}  // namespace terrace
