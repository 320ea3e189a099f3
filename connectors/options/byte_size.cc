#include "connectors/options/byte_size.h"

#include <array>
#include <cctype>
#include <cstdio>
#include <optional>

namespace terrace::options {
namespace {

struct Unit {
  std::string_view name;  // lower case
  uint64_t bytes;
};

constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"kib", uint64_t{1} << 10},
                                          {"mib", uint64_t{1} << 20},
                                          {"gib", uint64_t{1} << 30},
                                          {"tib", uint64_t{1} << 40},
                                          {"kb", 1'000},
                                          {"mb", 1'000'000},
                                          {"gb", 1'000'000'000},
                                          {"tb", 1'000'000'000'000}}};
constexpr uint64_t kLimit = uint64_t{1} << 63;
constexpr size_t kMaxFractionDigits = 9;

std::optional<uint64_t> UnitBytes(std::string_view suffix) {
  std::string lower;
  for (char c : suffix) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& unit : kUnits) {
    if (lower == unit.name) return unit.bytes;
  }
  return std::nullopt;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Result<uint64_t> ParseByteSize(std::string_view text) {
  size_t at = 0;
  unsigned __int128 whole = 0;
  for (; at < text.size() && IsDigit(text[at]); ++at) {
    whole = whole * 10 + static_cast<unsigned>(text[at] - '0');
    if (whole >= kLimit) return InvalidArgumentError("too large");
  }
  if (at == 0) return InvalidArgumentError("does not begin with a digit");
  uint64_t fraction = 0, scale = 1;
  if (at < text.size() && text[at] == '.') {
    const size_t first = ++at;
    for (; at < text.size() && IsDigit(text[at]); ++at) {
      fraction = fraction * 10 + static_cast<unsigned>(text[at] - '0');
      scale *= 10;
      if (at - first >= kMaxFractionDigits) return InvalidArgumentError("too many digits after the point");
    }
    if (at == first) return InvalidArgumentError("no digit after the point");
  }
  const std::optional<uint64_t> unit = UnitBytes(text.substr(at));
  if (!unit) return InvalidArgumentError("unknown unit \"" + std::string(text.substr(at)) + "\"");
  if (scale > 1 && *unit == 1) return InvalidArgumentError("a fraction of a byte");
  // whole < 2^63 and unit <= 2^40: the product fits into 128 bits.
  const unsigned __int128 bytes = whole * *unit + static_cast<unsigned __int128>(fraction) * *unit / scale;
  if (bytes >= kLimit) return InvalidArgumentError("too large");
  return static_cast<uint64_t>(bytes);
}

std::string FormatByteSize(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t name = 0;
  while (value >= 1024 && name + 1 < kNames.size()) {
    value /= 1024;
    ++name;
  }
  char text[40];
  std::snprintf(text, sizeof text, name == 0 ? "%.0f %s" : "%.1f %s", value, kNames[name]);
  return text;
}

}  // namespace terrace::options
