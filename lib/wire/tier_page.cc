#include "lib/wire/tier_page.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"
#include "lib/wire/object_record.h"
#include "lib/wire/sealed_layout.h"

namespace terrace {
namespace {

constexpr uint32_t kVersion = 2;
constexpr uint32_t kVersionWithoutExtents = 1;
constexpr size_t kFieldBytes = 64;
constexpr size_t kMacBytes = 16;
constexpr size_t kTailOffset = kFieldBytes + kMacBytes;
constexpr uint32_t kSealedFlag = 1;
constexpr uint32_t kExtentsDoNotFit = 0xffffffff;
constexpr uint64_t kPageUnit = 4096;
constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 40;
constexpr size_t kIdBytes = 36;
constexpr size_t kIdOffset = kTierPageBytes - kIdBytes;
static_assert(kTailOffset + 24 + kMaxPageExtents * 12 <= kTierPageBytes);
static_assert(kTailOffset + 24 + kMaxSealedPageExtents * 12 <= kIdOffset);

size_t MaxExtents(const TierPage& fields) { return fields.sealed ? kMaxSealedPageExtents : kMaxPageExtents; }

using Mac = std::array<std::byte, kMacBytes>;

Status Bad(const std::string& what) { return DataLossError("tier page: " + what); }

// HMAC-SHA-256 that keeps its last key: making a context and setting a key take as long as the MAC of a page.
class KeyedMac {
 public:
  KeyedMac() {
    EVP_MAC* hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    context_ = EVP_MAC_CTX_new(hmac);
    EVP_MAC_free(hmac);
    TERRACE_CHECK(context_ != nullptr);
  }
  ~KeyedMac() {
    EVP_MAC_CTX_free(context_);
    OPENSSL_cleanse(secret_.data(), secret_.size());
  }
  KeyedMac(const KeyedMac&) = delete;
  KeyedMac& operator=(const KeyedMac&) = delete;

  Mac Compute(std::initializer_list<Bytes> parts, const DirectorySecret& secret) {
    bool ok = Begin(secret);
    for (const Bytes part : parts) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
      ok = ok && EVP_MAC_update(context_, bytes, part.size()) == 1;
    }
    std::array<unsigned char, 32> full{};
    size_t written = 0;
    ok = ok && EVP_MAC_final(context_, full.data(), &written, full.size()) == 1;
    TERRACE_CHECK(ok && written == full.size());
    Mac mac;
    std::memcpy(mac.data(), full.data(), mac.size());
    return mac;
  }

 private:
  bool Begin(const DirectorySecret& secret) {
    if (has_key_ && CRYPTO_memcmp(secret.data(), secret_.data(), secret.size()) == 0) {
      return EVP_MAC_init(context_, nullptr, 0, nullptr) == 1;
    }
    char digest_name[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest_name, 0),
                                 OSSL_PARAM_construct_end()};
    secret_ = secret;
    has_key_ = EVP_MAC_init(context_, reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
                            params) == 1;
    return has_key_;
  }

  EVP_MAC_CTX* context_;
  bool has_key_ = false;
  DirectorySecret secret_{};
};

Mac ComputeMac(std::initializer_list<Bytes> parts, const DirectorySecret& secret) {
  thread_local KeyedMac mac;
  return mac.Compute(parts, secret);
}

// Whether the page's fields can hold them. Larger segments than 16 TiB cannot be made.
bool Fits(const std::vector<Extent>& extents, size_t max_extents) {
  const auto has_room = [](const Extent& extent) {
    return extent.offset % kPageUnit == 0 && extent.length % kPageUnit == 0 && extent.length > 0 &&
           extent.offset / kPageUnit <= UINT32_MAX && extent.length / kPageUnit <= UINT32_MAX;
  };
  return !extents.empty() && extents.size() <= max_extents &&
         std::all_of(extents.begin(), extents.end(), has_room);
}

void WriteTail(const TierPage& fields, ByteWriter& out) {
  const bool fits = Fits(fields.extents, MaxExtents(fields));
  out.Write<uint32_t>(fits ? static_cast<uint32_t>(fields.extents.size()) : kExtentsDoNotFit);
  out.Write<uint32_t>(fields.key_id);
  out.WriteBytes(Bytes(fields.salt));
  if (!fits) return;
  for (const Extent& extent : fields.extents) {
    out.Write<uint32_t>(extent.segment);
    out.Write<uint32_t>(static_cast<uint32_t>(extent.offset / kPageUnit));
    out.Write<uint32_t>(static_cast<uint32_t>(extent.length / kPageUnit));
  }
}

// Key, salt and extents of version 2.
Status ReadTail(Bytes tail, TierPage& fields) {
  ByteReader in(tail);
  const auto n = in.Read<uint32_t>();
  fields.key_id = in.Read<uint32_t>();
  const std::string_view salt = in.ReadBytes(fields.salt.size());
  std::memcpy(fields.salt.data(), salt.data(), salt.size());
  if (n == kExtentsDoNotFit) return OkStatus();
  if (n == 0 || n > MaxExtents(fields)) return Bad(std::to_string(n) + " extents");
  uint64_t left = RunBytes(fields.frame_bytes, fields.sealed);
  fields.extents.reserve(n);
  for (uint32_t i = 0; i < n; ++i) {
    Extent extent;
    extent.segment = in.Read<uint32_t>();
    extent.offset = in.Read<uint32_t>() * kPageUnit;
    extent.length = in.Read<uint32_t>() * kPageUnit;
    if (extent.length == 0 || extent.length > left) return Bad("extents do not hold the frame");
    left -= extent.length;
    fields.extents.push_back(extent);
  }
  return left == 0 ? OkStatus() : Bad("extents do not hold the frame");
}

// All fields, bounded, whoever wrote them.
Result<PeekedTierPage> ReadPage(Bytes page) {
  if (page.size() < kTierPageBytes) return Bad("cut off");
  ByteReader in(page);
  if (in.ReadBytes(kTierPageMagic.size()) != kTierPageMagic) return Bad("magic is wrong");
  const auto version = in.Read<uint32_t>();
  if (version != kVersion && version != kVersionWithoutExtents) return Bad("unknown version");
  PeekedTierPage peeked;
  peeked.header_bytes = in.Read<uint32_t>();
  TierPage& fields = peeked.fields;
  const std::string_view directory = in.ReadBytes(fields.directory.size());
  std::memcpy(fields.directory.data(), directory.data(), directory.size());
  fields.generation = in.Read<uint64_t>();
  fields.frame_bytes = in.Read<uint64_t>();
  fields.expiry_ns = in.Read<int64_t>();
  fields.priority = in.Read<int32_t>();
  const auto flags = in.Read<uint32_t>();
  if (fields.frame_bytes > kMaxFrameBytes) return Bad("frame length");
  if (version == kVersionWithoutExtents) return peeked;
  if ((flags & ~kSealedFlag) != 0) return Bad("unknown flags are set");
  fields.sealed = (flags & kSealedFlag) != 0;
  if (fields.sealed) {
    const auto* key = reinterpret_cast<const char*>(page.data() + kIdOffset);
    TERRACE_ASSIGN_OR_RETURN(fields.id, DecodeRecordKey({key, kIdBytes}));
  }
  TERRACE_RETURN_IF_ERROR(ReadTail(page.subspan(kTailOffset, kTierPageBytes - kTailOffset), fields));
  if (fields.sealed != (fields.key_id != 0))
    return Bad("key id of a run that is not sealed, or none of one that is");
  return peeked;
}

}  // namespace

void WriteTierPage(const TierPage& fields, Bytes header_area, const DirectorySecret& secret,
                   MutableBytes page) {
  TERRACE_CHECK(page.size() == kTierPageBytes);
  ByteWriter out;
  out.WriteBytes(kTierPageMagic);
  out.Write<uint32_t>(kVersion);
  out.Write<uint32_t>(static_cast<uint32_t>(header_area.size()));
  out.WriteBytes(Bytes(fields.directory));
  out.Write<uint64_t>(fields.generation);
  out.Write<uint64_t>(fields.frame_bytes);
  out.Write<int64_t>(fields.expiry_ns);
  out.Write<int32_t>(fields.priority);
  out.Write<uint32_t>(fields.sealed ? kSealedFlag : 0);
  TERRACE_CHECK(out.size() == kFieldBytes);
  ByteWriter tail;
  WriteTail(fields, tail);
  std::memset(page.data(), 0, page.size());
  std::memcpy(page.data(), out.str().data(), kFieldBytes);
  std::memcpy(page.data() + kTailOffset, tail.str().data(), tail.size());
  if (fields.sealed) {
    const std::string key = EncodeRecordKey(fields.id);
    TERRACE_CHECK(key.size() == kIdBytes);
    std::memcpy(page.data() + kIdOffset, key.data(), key.size());
  }
  const Mac mac = ComputeMac({page.first(kFieldBytes), page.subspan(kTailOffset), header_area}, secret);
  std::memcpy(page.data() + kFieldBytes, mac.data(), mac.size());
}

Result<TierPage> ParseTierPage(Bytes page, Bytes header_area, const DirectorySecret& secret) {
  Result<PeekedTierPage> read = ReadPage(page);
  if (!read.ok()) return read.status();
  if (read->header_bytes != header_area.size()) return Bad("header length differs");
  ByteReader version(page.subspan(kTierPageMagic.size(), sizeof(uint32_t)));
  const bool has_tail = version.Read<uint32_t>() != kVersionWithoutExtents;
  const Bytes tail = has_tail ? page.subspan(kTailOffset, kTierPageBytes - kTailOffset) : Bytes();
  const Mac mac = ComputeMac({page.first(kFieldBytes), tail, header_area}, secret);
  if (CRYPTO_memcmp(mac.data(), page.data() + kFieldBytes, mac.size()) != 0) {
    return Bad("authentication code is wrong");
  }
  return std::move(read->fields);
}

Result<PeekedTierPage> PeekTierPage(Bytes page) {
  Result<PeekedTierPage> read = ReadPage(page);
  if (!read.ok()) return read;
  const uint64_t frame_bytes = read->fields.frame_bytes;
  if (read->header_bytes == 0 || read->header_bytes % kFrameAlignment != 0 ||
      read->header_bytes > kMaxHeaderBytes || read->header_bytes > frame_bytes ||
      frame_bytes % kFrameAlignment != 0 || frame_bytes > kMaxFrameBytes) {
    return Bad("header or frame length");
  }
  return read;
}

Digest Sha256(std::string_view bytes) {
  Digest digest;
  unsigned int length = 0;
  const int ok = EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.bytes.data()),
                            &length, EVP_sha256(), nullptr);
  TERRACE_CHECK(ok == 1 && length == digest.bytes.size());
  return digest;
}

}  // namespace terrace
