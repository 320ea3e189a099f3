// Sizes as people write them on a command line: "512MiB", "1.5GiB", "0", "1000000".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace::options {

// What ParseByteSize takes, for messages and --help.
inline constexpr std::string_view kByteSizeSyntax =
    "a number of bytes, or a number with KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of "
    "1000), "
    "such as 0, 512MiB or 1.5GiB, below 2^63 bytes";

// Units in any case; a fraction only with a unit above B, rounded down to bytes. kInvalidArgument says what
// is wrong.
Result<uint64_t> ParseByteSize(std::string_view text);

// "1.5 GiB", "94.4 MiB", "17 B".
std::string FormatByteSize(uint64_t bytes);

}  // namespace terrace::options
