// TlsIdentity: a key and a certificate for 127.0.0.1 that is its own root, made on the spot, as PEM texts.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace terrace {

struct TlsIdentity {
  std::string certificate;
  std::string key;
};

inline std::string TakePemText(BIO* bio) {
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio, &text);
  std::string copy(text, static_cast<size_t>(length));
  BIO_free(bio);
  return copy;
}

// Valid from `valid_from` (an hour ago) until `valid_seconds` from now (below zero: expired).
inline TlsIdentity MakeTlsIdentity(long valid_seconds = 3600, long valid_from = -3600) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), valid_from);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_seconds);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1,
                             0);
  X509_set_issuer_name(certificate.get(), name);
  X509_EXTENSION* host =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  X509_add_ext(certificate.get(), host, -1);
  X509_EXTENSION_free(host);
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  BIO* certificate_text = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(certificate_text, certificate.get());
  BIO* key_text = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(key_text, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {TakePemText(certificate_text), TakePemText(key_text)};
}

}  // namespace terrace
