#include "connectors/server/bulk_tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <string>
#include <vector>

namespace terrace::server {
namespace {

struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct CertificateFree {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
struct KeyFree {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using CertificatePtr = std::unique_ptr<X509, CertificateFree>;

// Never what OpenSSL says of a key: only that it is wrong.
Status Wrong(const char* field) {
  ERR_clear_error();
  return InvalidArgumentError(std::string(field) + ": not PEM, or it does not fit the rest");
}

std::unique_ptr<BIO, BioFree> Reader(const std::string& pem) {
  return std::unique_ptr<BIO, BioFree>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::vector<CertificatePtr> CertificatesOf(const std::string& pem) {
  std::vector<CertificatePtr> certificates;
  const auto reader = Reader(pem);
  while (X509* certificate = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();  // the end is one
  return certificates;
}

Status AddCertificates(SSL_CTX* context, const ServerTls& tls) {
  std::vector<CertificatePtr> chain = CertificatesOf(tls.certificate_chain);
  if (chain.empty() || SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return Wrong("tls.certificate_chain");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add0_chain_cert(context, chain[i].get()) != 1) return Wrong("tls.certificate_chain");
    chain[i].release();  // the context's now
  }
  const auto reader = Reader(tls.private_key);
  const std::unique_ptr<EVP_PKEY, KeyFree> key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, nullptr, nullptr));
  if (!key || SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return Wrong("tls.private_key");
  }
  return OkStatus();
}

Status AddClientRoots(SSL_CTX* context, const std::string& pem) {
  const std::vector<CertificatePtr> roots = CertificatesOf(pem);
  if (roots.empty()) return Wrong("tls.client_roots");
  for (const CertificatePtr& root : roots) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), root.get()) != 1)
      return Wrong("tls.client_roots");
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return OkStatus();
}

}  // namespace

Result<SslContextPtr> MakeServerTlsContext(const ServerTls& tls) {
  SslContextPtr context(SSL_CTX_new(TLS_server_method()));
  if (!context) return InternalError("OpenSSL makes no context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(
      context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_ENABLE_KTLS);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  if (const Status added = AddCertificates(context.get(), tls); !added.ok()) return added;
  if (!tls.client_roots.empty()) {
    if (const Status added = AddClientRoots(context.get(), tls.client_roots); !added.ok()) return added;
  }
  return context;
}

}  // namespace terrace::server
