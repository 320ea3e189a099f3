#include "terrace/object_id.h"

namespace terrace {
namespace {

int HexValue(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

std::string Digest::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    hex += kDigits[std::to_integer<int>(byte) >> 4];
    hex += kDigits[std::to_integer<int>(byte) & 15];
  }
  return hex;
}

Result<Digest> Digest::FromHex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) {
    return InvalidArgumentError("digest: " + std::to_string(hex.size()) +
                                " characters, 64 hex digits are needed");
  }
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return InvalidArgumentError("digest: not a hex digit at character " +
                                  std::to_string(high < 0 ? 2 * i : 2 * i + 1));
    }
    digest.bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return digest;
}

}  // namespace terrace
