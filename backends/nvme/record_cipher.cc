#include "backends/nvme/record_cipher.h"

#include <cstring>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr std::string_view kKeyLabel{"terrace-record-1\0", 17};
constexpr size_t kIdBytes = sizeof(uint32_t);

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

RecordCipher::RecordCipher(const KeyRing& keys, const DirectoryId& directory) {
  TERRACE_CHECK(!keys.empty());
  for (const auto& [id, key] : keys.keys()) keys_.emplace(id, DeriveKey(key, directory, AsBytes(kKeyLabel)));
}

Result<std::string> RecordCipher::Seal(std::string_view record_key, std::string_view value) const {
  const auto& [id, key] = *keys_.rbegin();
  GcmNonce nonce;
  TERRACE_RETURN_IF_ERROR(FillRandom(nonce));
  std::string sealed(value.size() + kExtraBytes, '\0');
  char* at = sealed.data();
  std::memcpy(at, &id, kIdBytes);
  std::memcpy(at + kIdBytes, nonce.data(), nonce.size());
  at += kIdBytes + nonce.size();
  GcmStream stream(GcmStream::Direction::kSeal, key);
  stream.Begin(nonce, AsBytes(record_key));
  stream.Update(AsBytes(value), reinterpret_cast<std::byte*>(at));
  const GcmTag tag = stream.FinishSeal();
  std::memcpy(at + value.size(), tag.data(), tag.size());
  return sealed;
}

Result<std::string> RecordCipher::Open(std::string_view record_key, std::string_view sealed) const {
  if (sealed.size() < kExtraBytes) return DataLossError("sealed record: cut off");
  uint32_t id;
  std::memcpy(&id, sealed.data(), kIdBytes);
  const auto key = keys_.find(id);
  if (key == keys_.end()) return DataLossError("sealed record: key id " + std::to_string(id));
  GcmNonce nonce;
  GcmTag tag;
  std::memcpy(nonce.data(), sealed.data() + kIdBytes, nonce.size());
  std::memcpy(tag.data(), sealed.data() + sealed.size() - tag.size(), tag.size());
  std::string value(sealed.size() - kExtraBytes, '\0');
  GcmStream stream(GcmStream::Direction::kOpen, key->second);
  stream.Begin(nonce, AsBytes(record_key));
  stream.Update(AsBytes(sealed.substr(kIdBytes + nonce.size(), value.size())),
                reinterpret_cast<std::byte*>(value.data()));
  if (!stream.FinishOpen(tag)) return DataLossError("sealed record: authentication failed");
  return value;
}

}  // namespace terrace
