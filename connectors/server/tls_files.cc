#include "connectors/server/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "connectors/options/private_file.h"

namespace terrace::server {
namespace {

constexpr size_t kMaxPemBytes = size_t{1} << 20;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using BioPtr = std::unique_ptr<BIO, Free>;
using CertificatePtr = std::unique_ptr<X509, Free>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Free>;

BioPtr BioOf(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// The first certificate; null: none.
CertificatePtr FirstCertificate(const std::string& pem) {
  CertificatePtr certificate(PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

int NoPassphrase(char*, int, int, void*) { return -1; }

KeyPtr KeyOf(const std::string& pem) {
  KeyPtr key(PEM_read_bio_PrivateKey(BioOf(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

std::string ReadFile(const char* field, const std::string& path, bool is_private, Mistakes& mistakes) {
  const std::string name = "\"" + path + "\"";
  Result<std::string> text = is_private ? options::ReadPrivateFile(name, path, kMaxPemBytes)
                                        : options::ReadWholeFile(name, path, kMaxPemBytes);
  if (text.ok()) return *std::move(text);
  mistakes.AddLine(field, text.status().message());
  return "";
}

}  // namespace

ServerTls ReadTlsFiles(const TlsPaths& paths, Mistakes& mistakes) {
  ServerTls tls;
  if (paths.cert.empty() || paths.key.empty()) return tls;
  tls.certificate_chain = ReadFile("tls_cert", paths.cert, false, mistakes);
  tls.private_key = ReadFile("tls_key", paths.key, true, mistakes);
  const CertificatePtr certificate = FirstCertificate(tls.certificate_chain);
  const KeyPtr key = KeyOf(tls.private_key);
  if (!tls.certificate_chain.empty() && certificate == nullptr) {
    mistakes.AddLine("tls_cert", "\"" + paths.cert + "\": holds no certificate in PEM");
  }
  if (!tls.private_key.empty() && key == nullptr) {
    mistakes.AddLine("tls_key", "\"" + paths.key + "\": holds no private key in PEM without passphrase");
  }
  if (certificate != nullptr && key != nullptr && X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    mistakes.AddLine("tls_key", "\"" + paths.key + "\": is not the key of the certificate in tls_cert");
  }
  if (certificate != nullptr && X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    mistakes.AddLine("tls_cert", "\"" + paths.cert + "\": has expired");
  }
  if (certificate != nullptr && X509_cmp_current_time(X509_get0_notBefore(certificate.get())) > 0) {
    mistakes.AddLine("tls_cert", "\"" + paths.cert + "\": is not valid yet");
  }
  if (!paths.client_ca.empty()) {
    tls.client_roots = ReadFile("tls_client_ca", paths.client_ca, false, mistakes);
    if (!tls.client_roots.empty() && FirstCertificate(tls.client_roots) == nullptr) {
      mistakes.AddLine("tls_client_ca", "\"" + paths.client_ca + "\": holds no certificate in PEM");
    }
  }
  return tls;
}

}  // namespace terrace::server
