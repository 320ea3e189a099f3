// Little-endian reading and writing of the formats in this folder. A reader never goes beyond its bytes:
// after a failed read ok() is false, every further read gives zeros, and the caller asks once at the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "lib/base/check.h"
#include "terrace/bytes.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian; add the swaps first");

class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Write(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out_.append(raw, sizeof(T));
  }
  void WriteBytes(Bytes bytes) { out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }
  void WriteBytes(std::string_view bytes) { out_.append(bytes); }
  void WriteDigest(const Digest& digest) { WriteBytes(Bytes(digest.bytes)); }
  // u32 length, then the bytes.
  void WriteSized(std::string_view bytes) {
    Write<uint32_t>(static_cast<uint32_t>(bytes.size()));
    WriteBytes(bytes);
  }
  size_t size() const { return out_.size(); }
  const std::string& str() const { return out_; }
  std::string Take() { return std::move(out_); }
  // Of a format of fixed size, which these bytes are exactly.
  template <size_t N>
  std::array<std::byte, N> TakeArray() {
    TERRACE_CHECK(out_.size() == N) << out_.size() << " bytes, not " << N;
    std::array<std::byte, N> bytes;
    std::memcpy(bytes.data(), out_.data(), N);
    out_.clear();
    return bytes;
  }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  explicit ByteReader(Bytes bytes) : bytes_(reinterpret_cast<const char*>(bytes.data()), bytes.size()) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T Read() {
    T value{};
    const std::string_view raw = ReadBytes(sizeof(T));
    if (raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  // Empty where fewer are left (and ok() turns false).
  std::string_view ReadBytes(size_t n);
  Digest ReadDigest();
  template <size_t N>
  std::array<std::byte, N> ReadArray() {
    std::array<std::byte, N> bytes{};
    const std::string_view raw = ReadBytes(N);
    if (ok_) std::memcpy(bytes.data(), raw.data(), N);
    return bytes;
  }
  std::string_view ReadSized() { return ReadBytes(Read<uint32_t>()); }

  bool ok() const { return ok_; }
  size_t remaining() const { return bytes_.size(); }
  void Fail() { ok_ = false; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

// u32 n_tokens | u32 token[] | u32 n_items | { u32 position | u32 length | bytes }[]: the form in which a
// chunk's content stands in keys, frames, records and messages.
void WriteContent(const ChunkContent& content, ByteWriter& out);
// Fails the reader unless n_tokens <= kMaxTokensPerChunk, positions strictly increase below n_tokens and
// lengths are 1..kMaxItemBytes.
ChunkContent ReadContent(ByteReader& in);

}  // namespace terrace
