#include "backends/nvme/aes_gcm.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "lib/base/check.h"

namespace terrace {
namespace {

const unsigned char* Raw(Bytes bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* Raw(MutableBytes bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

}  // namespace

CipherKey::~CipherKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

CipherKey DeriveKey(const CipherKey& key, Bytes salt, Bytes info) {
  // Fetched once: fetching takes longer than the derivation.
  static EVP_KDF* const kHkdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  TERRACE_CHECK(kHkdf != nullptr);
  EVP_KDF_CTX* context = EVP_KDF_CTX_new(kHkdf);
  char digest_name[] = "SHA256";
  const auto octets = [](const char* name, Bytes bytes) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()), bytes.size());
  };
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest_name, 0),
                               octets(OSSL_KDF_PARAM_KEY, key.bytes()), octets(OSSL_KDF_PARAM_SALT, salt),
                               octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  CipherKey derived;
  const bool ok = EVP_KDF_derive(context, Raw(derived.mutable_bytes()), CipherKey::kBytes, params) == 1;
  EVP_KDF_CTX_free(context);
  TERRACE_CHECK(ok);
  return derived;
}

std::array<std::byte, 32> HmacSha256(const CipherKey& key, Bytes message) {
  std::array<std::byte, 32> code;
  unsigned int length = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.bytes().data(), CipherKey::kBytes, Raw(message),
                                   message.size(), Raw(MutableBytes(code)), &length);
  TERRACE_CHECK(made != nullptr && length == code.size());
  return code;
}

Status FillRandom(MutableBytes bytes) {
  if (RAND_bytes(Raw(bytes), static_cast<int>(bytes.size())) != 1) {
    return UnavailableError("the system gave no random bytes");
  }
  return OkStatus();
}

void GcmStream::FreeContext::operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }

GcmStream::GcmStream(Direction direction, const CipherKey& key)
    : direction_(direction), context_(EVP_CIPHER_CTX_new()) {
  static EVP_CIPHER* const kCipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  TERRACE_CHECK(kCipher != nullptr && context_ != nullptr);
  const int ok = EVP_CipherInit_ex2(context_.get(), kCipher, Raw(key.bytes()), nullptr,
                                    direction_ == Direction::kSeal ? 1 : 0, nullptr);
  TERRACE_CHECK(ok == 1);
}

void GcmStream::Begin(const GcmNonce& nonce, Bytes associated) {
  int length = 0;
  const bool ok = EVP_CipherInit_ex2(context_.get(), nullptr, nullptr, Raw(nonce), -1, nullptr) == 1 &&
                  EVP_CipherUpdate(context_.get(), nullptr, &length, Raw(associated),
                                   static_cast<int>(associated.size())) == 1;
  TERRACE_CHECK(ok);
}

void GcmStream::Update(Bytes in, std::byte* out) {
  // Lengths are ints there.
  constexpr size_t kMaxUpdate = size_t{1} << 30;
  while (!in.empty()) {
    const size_t n = in.size() < kMaxUpdate ? in.size() : kMaxUpdate;
    int length = 0;
    const int ok = EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(out), &length, Raw(in),
                                    static_cast<int>(n));
    TERRACE_CHECK(ok == 1 && static_cast<size_t>(length) == n);
    in = in.subspan(n);
    out += n;
  }
}

GcmTag GcmStream::FinishSeal() {
  TERRACE_CHECK(direction_ == Direction::kSeal);
  GcmTag tag;
  unsigned char nothing[16];
  int length = 0;
  const bool ok = EVP_CipherFinal_ex(context_.get(), nothing, &length) == 1 && length == 0 &&
                  EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()),
                                      tag.data()) == 1;
  TERRACE_CHECK(ok);
  return tag;
}

bool GcmStream::FinishOpen(const GcmTag& tag) {
  TERRACE_CHECK(direction_ == Direction::kOpen);
  const int set = EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag.size()),
                                      const_cast<std::byte*>(tag.data()));
  TERRACE_CHECK(set == 1);
  unsigned char nothing[16];
  int length = 0;
  return EVP_CipherFinal_ex(context_.get(), nothing, &length) == 1;
}

}  // namespace terrace
