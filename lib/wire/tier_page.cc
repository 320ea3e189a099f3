#include "lib/wire/tier_page.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>

#include "lib/base/check.h"
#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TERRPAGE";
constexpr uint32_t kVersion = 1;
constexpr size_t kFieldBytes = 64;
constexpr size_t kMacBytes = 16;

using Mac = std::array<std::byte, kMacBytes>;

Mac ComputeMac(Bytes fields, Bytes header_area, const DirectorySecret& secret) {
  // Fetched once: fetching takes longer than the MAC itself.
  static EVP_MAC* const kHmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  TERRACE_CHECK(kHmac != nullptr);
  EVP_MAC_CTX* context = EVP_MAC_CTX_new(kHmac);
  char digest_name[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest_name, 0),
                               OSSL_PARAM_construct_end()};
  std::array<unsigned char, 32> full{};
  size_t written = 0;
  const auto* key = reinterpret_cast<const unsigned char*>(secret.data());
  const bool ok =
      EVP_MAC_init(context, key, secret.size(), params) == 1 &&
      EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(fields.data()), fields.size()) == 1 &&
      EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(header_area.data()),
                     header_area.size()) == 1 &&
      EVP_MAC_final(context, full.data(), &written, full.size()) == 1;
  EVP_MAC_CTX_free(context);
  TERRACE_CHECK(ok && written == full.size());
  Mac mac;
  std::memcpy(mac.data(), full.data(), mac.size());
  return mac;
}

}  // namespace

void WriteTierPage(const TierPage& fields, Bytes header_area, const DirectorySecret& secret,
                   MutableBytes page) {
  TERRACE_CHECK(page.size() == kTierPageBytes);
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(kVersion);
  out.Write<uint32_t>(static_cast<uint32_t>(header_area.size()));
  out.WriteBytes(Bytes(fields.directory));
  out.Write<uint64_t>(fields.generation);
  out.Write<uint64_t>(fields.frame_bytes);
  out.Write<int64_t>(fields.expiry_ns);
  out.Write<int32_t>(fields.priority);
  out.Write<uint32_t>(0);
  TERRACE_CHECK(out.size() == kFieldBytes);
  const Mac mac = ComputeMac(std::as_bytes(std::span(out.str())), header_area, secret);
  std::memset(page.data(), 0, page.size());
  std::memcpy(page.data(), out.str().data(), kFieldBytes);
  std::memcpy(page.data() + kFieldBytes, mac.data(), mac.size());
}

Result<TierPage> ParseTierPage(Bytes page, Bytes header_area, const DirectorySecret& secret) {
  if (page.size() < kTierPageBytes) return DataLossError("tier page: cut off");
  ByteReader in(page);
  if (in.ReadBytes(kMagic.size()) != kMagic) return DataLossError("tier page: magic is wrong");
  if (in.Read<uint32_t>() != kVersion) return DataLossError("tier page: unknown version");
  if (in.Read<uint32_t>() != header_area.size()) return DataLossError("tier page: header length differs");
  TierPage fields;
  const std::string_view directory = in.ReadBytes(fields.directory.size());
  std::memcpy(fields.directory.data(), directory.data(), directory.size());
  fields.generation = in.Read<uint64_t>();
  fields.frame_bytes = in.Read<uint64_t>();
  fields.expiry_ns = in.Read<int64_t>();
  fields.priority = in.Read<int32_t>();
  const Mac mac = ComputeMac(page.first(kFieldBytes), header_area, secret);
  if (CRYPTO_memcmp(mac.data(), page.data() + kFieldBytes, mac.size()) != 0) {
    return DataLossError("tier page: authentication code is wrong");
  }
  return fields;
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
