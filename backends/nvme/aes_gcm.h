// AES-256-GCM and HKDF-SHA-256, of OpenSSL. Every key here seals under a nonce once: who calls sees to that.
//
// Threads: a GcmStream belongs to one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "terrace/bytes.h"
#include "terrace/status.h"

struct evp_cipher_ctx_st;

namespace terrace {

// 32 bytes that are overwritten when they are given up.
class CipherKey {
 public:
  static constexpr size_t kBytes = 32;
  CipherKey() = default;
  explicit CipherKey(const std::array<std::byte, kBytes>& bytes) : bytes_(bytes) {}
  CipherKey(const CipherKey&) = default;
  CipherKey& operator=(const CipherKey&) = default;
  ~CipherKey();
  Bytes bytes() const { return bytes_; }
  MutableBytes mutable_bytes() { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_{};
};

using GcmNonce = std::array<std::byte, 12>;
using GcmTag = std::array<std::byte, 16>;

// HKDF-SHA-256, extract and expand.
CipherKey DeriveKey(const CipherKey& key, Bytes salt, Bytes info);
// HMAC-SHA-256.
std::array<std::byte, 32> HmacSha256(const CipherKey& key, Bytes message);
// From the system's random source.
Status FillRandom(MutableBytes bytes);

// Messages under one key, one after another, each in as many updates as its owner likes.
class GcmStream {
 public:
  enum class Direction { kSeal, kOpen };
  GcmStream(Direction direction, const CipherKey& key);

  void Begin(const GcmNonce& nonce, Bytes associated);
  // `out` has in.size() bytes; it may be `in` itself. What an opening stream wrote is not to be shown to
  // anyone before FinishOpen.
  void Update(Bytes in, std::byte* out);
  GcmTag FinishSeal();
  // False: not what was sealed.
  bool FinishOpen(const GcmTag& tag);

 private:
  struct FreeContext {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  const Direction direction_;
  std::unique_ptr<evp_cipher_ctx_st, FreeContext> context_;
};

}  // namespace terrace
