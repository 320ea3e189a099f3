#include "connectors/options/key_file.h"

#include <string.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "connectors/options/private_file.h"

namespace terrace::options {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 10;
constexpr size_t kHexDigits = 64;

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::string_view TakeWord(std::string_view* line) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = std::min(line->find_first_not_of(kBlanks), line->size());
  line->remove_prefix(begin);
  const size_t end = std::min(line->find_first_of(kBlanks), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(end);
  return word;
}

// What is wrong with the line; empty: nothing.
std::string ParseLine(std::string_view line, EncryptionKey* key) {
  const std::string_view id = TakeWord(&line);
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), key->id);
  if (error != std::errc() || end != id.data() + id.size() || key->id == 0) {
    return "begins with no id from 1 to 4294967295";
  }
  const std::string_view hex = TakeWord(&line);
  if (hex.size() != kHexDigits) {
    return std::to_string(hex.size()) + " characters of key, needed: " + std::to_string(kHexDigits) +
           " hex digits";
  }
  for (size_t i = 0; i < key->bytes.size(); ++i) {
    const std::optional<int> high = HexDigit(hex[2 * i]);
    const std::optional<int> low = HexDigit(hex[2 * i + 1]);
    if (!high || !low) return "a character of the key is no hex digit";
    key->bytes[i] = static_cast<std::byte>(*high * 16 + *low);
  }
  return TakeWord(&line).empty() ? "" : "something follows the key";
}

}  // namespace

Result<std::vector<EncryptionKey>> ParseKeys(std::string_view text) {
  std::vector<EncryptionKey> keys;
  std::map<uint32_t, size_t> lines;  // by id
  std::string wrong;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::string_view rest = line;
    const std::string_view first = TakeWord(&rest);
    if (first.empty() || first.front() == '#') continue;
    EncryptionKey key;
    std::string what = ParseLine(line, &key);
    if (what.empty()) {
      const auto [before, is_new] = lines.emplace(key.id, number);
      if (!is_new)
        what = "id " + std::to_string(key.id) + " is that of line " + std::to_string(before->second);
    }
    if (what.empty()) {
      keys.push_back(key);
    } else {
      wrong += (wrong.empty() ? "line " : "; line ") + std::to_string(number) + ": " + what;
    }
  }
  if (!wrong.empty()) return InvalidArgumentError(wrong);
  if (keys.empty()) return InvalidArgumentError("no key in it, needed: lines of an id and 64 hex digits");
  return keys;
}

Result<std::vector<EncryptionKey>> ReadKeyFile(const std::string& path) {
  const std::string name = "key file \"" + path + "\"";
  Result<std::string> text = ReadPrivateFile(name, path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  Result<std::vector<EncryptionKey>> keys = ParseKeys(*text);
  explicit_bzero(text->data(), text->size());
  if (!keys.ok()) return keys.status().WithContext(name);
  return keys;
}

}  // namespace terrace::options
