#include "lib/wire/byte_codec.h"

#include <algorithm>

#include "terrace/kv_spec.h"

namespace terrace {

std::string_view ByteReader::ReadBytes(size_t n) {
  if (!ok_ || n > bytes_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view out = bytes_.substr(0, n);
  bytes_.remove_prefix(n);
  return out;
}

Digest ByteReader::ReadDigest() {
  Digest digest;
  const std::string_view raw = ReadBytes(digest.bytes.size());
  if (ok_) std::memcpy(digest.bytes.data(), raw.data(), raw.size());
  return digest;
}

void WriteContent(const ChunkContent& content, ByteWriter& out) {
  out.Write<uint32_t>(static_cast<uint32_t>(content.tokens.size()));
  out.WriteBytes(std::as_bytes(std::span(content.tokens)));
  out.Write<uint32_t>(static_cast<uint32_t>(content.items.size()));
  for (const Item& item : content.items) {
    out.Write<uint32_t>(static_cast<uint32_t>(item.position));
    out.Write<uint32_t>(static_cast<uint32_t>(item.bytes.size()));
    out.WriteBytes(Bytes(item.bytes));
  }
}

ChunkContent ReadContent(ByteReader& in) {
  ChunkContent content;
  const uint32_t n_tokens = in.Read<uint32_t>();
  if (n_tokens > kMaxTokensPerChunk) in.Fail();
  const std::string_view raw = in.ReadBytes(in.ok() ? size_t{n_tokens} * sizeof(Token) : 0);
  if (!in.ok()) return {};
  content.tokens.resize(n_tokens);
  if (n_tokens > 0) std::memcpy(content.tokens.data(), raw.data(), raw.size());
  const uint32_t n_items = in.Read<uint32_t>();
  if (n_items > n_tokens) in.Fail();
  for (uint32_t i = 0; i < n_items && in.ok(); ++i) {
    Item item;
    item.position = in.Read<uint32_t>();
    const uint32_t length = in.Read<uint32_t>();
    const bool ordered = content.items.empty() || item.position > content.items.back().position;
    if (item.position >= n_tokens || !ordered || length == 0 || length > kMaxItemBytes) in.Fail();
    const std::string_view bytes = in.ReadBytes(in.ok() ? length : 0);
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    item.bytes.assign(first, first + bytes.size());
    content.items.push_back(std::move(item));
  }
  if (!in.ok()) return {};
  return content;
}

}  // namespace terrace
