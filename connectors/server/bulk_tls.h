// The OpenSSL context of the bulk port, out of the texts that the gRPC port has.
#pragma once

#include <openssl/ssl.h>

#include <memory>

#include "connectors/server/cache_server.h"
#include "terrace/status.h"

namespace terrace::server {

struct SslFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslContextPtr = std::unique_ptr<SSL_CTX, SslFree>;
using SslPtr = std::unique_ptr<SSL, SslFree>;

// TLS 1.2 and later; client certificates are demanded where tls.client_roots is set. kInvalidArgument.
Result<SslContextPtr> MakeServerTlsContext(const ServerTls& tls);

}  // namespace terrace::server
