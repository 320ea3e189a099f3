// TLS files: certificate chain, private key and client authorities, read and judged at start, so that a
// server does not listen with what every client will refuse.
#pragma once

#include <string>

#include "connectors/server/cache_server.h"
#include "connectors/server/mistakes.h"

namespace terrace::server {

struct TlsPaths {
  std::string cert;  // empty: no TLS
  std::string key;
  std::string client_ca;  // empty: clients need no certificate
};

// Wrong: a file that cannot be read, is no PEM of its kind, a key that others than its owner may read or that
// needs a passphrase, one that is not the certificate's, a certificate that is not valid now.
ServerTls ReadTlsFiles(const TlsPaths& paths, Mistakes& mistakes);

}  // namespace terrace::server
