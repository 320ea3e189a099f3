// The bare streaming copies that the library's are measured against: several settings, of which the fastest
// counts.
#pragma once

#include <cstddef>
#include <vector>

namespace terrace::bench {

using CopyFunction = void (*)(std::byte* dst, const std::byte* src, size_t n);

struct ProbeSetting {
  const char* name;
  CopyFunction copy;
};

// Those that this processor has.
std::vector<ProbeSetting> ProbeSettings();

}  // namespace terrace::bench
