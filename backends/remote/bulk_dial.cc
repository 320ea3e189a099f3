#include "backends/remote/bulk_dial.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/status_macros.h"

namespace terrace::remote {
namespace {

std::string TlsError() {
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return text;
}

Status SystemError(std::string_view what) {
  return UnavailableError(std::string(what) + ": " + std::strerror(errno));
}

struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct ContextFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

std::unique_ptr<BIO, BioFree> PemBio(const std::string& text) {
  return std::unique_ptr<BIO, BioFree>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Status AddRoots(SSL_CTX* context, const std::string& roots) {
  if (roots.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) != 1)
      return UnavailableError("no system roots: " + TlsError());
    return OkStatus();
  }
  const auto bio = PemBio(roots);
  int added = 0;
  while (X509* root = PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr)) {
    added += X509_STORE_add_cert(SSL_CTX_get_cert_store(context), root);
    X509_free(root);
  }
  ERR_clear_error();  // the end of the text is an error too
  return added > 0 ? OkStatus() : InvalidArgumentError("tls.roots holds no certificate");
}

Status AddCertificate(SSL_CTX* context, const RemoteTls& tls) {
  if (tls.certificate.empty()) return OkStatus();
  const auto bio = PemBio(tls.certificate);
  X509* own = PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr);
  if (own == nullptr || SSL_CTX_use_certificate(context, own) != 1) {
    X509_free(own);
    return InvalidArgumentError("tls.certificate: " + TlsError());
  }
  X509_free(own);
  while (X509* link = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, link) != 1) {
      X509_free(link);
      return InvalidArgumentError("tls.certificate: " + TlsError());
    }
  }
  ERR_clear_error();
  const auto key_bio = PemBio(tls.private_key);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr);
  const bool is_used = key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1;
  EVP_PKEY_free(key);
  return is_used ? OkStatus() : InvalidArgumentError("tls.private_key: " + TlsError());
}

// Connects without blocking for longer than the deadline; the socket stays non-blocking.
Status Connect(int fd, const sockaddr* address, socklen_t bytes, TimePoint deadline) {
  if (connect(fd, address, bytes) == 0) return OkStatus();
  if (errno != EINPROGRESS) return SystemError("connect");
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return UnavailableError("connect: no answer in time");
    pollfd waited{.fd = fd, .events = POLLOUT, .revents = 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::min<int64_t>(left.count(), INT32_MAX)));
    if (ready < 0 && errno != EINTR) return SystemError("poll");
    if (ready > 0) break;
  }
  int error = 0;
  socklen_t error_bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) return SystemError("getsockopt");
  errno = error;
  return error == 0 ? OkStatus() : SystemError("connect");
}

}  // namespace

DialedSocket::DialedSocket(DialedSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), tls_(std::exchange(other.tls_, nullptr)) {}

DialedSocket::~DialedSocket() {
  SSL_free(tls_);
  if (fd_ >= 0) close(fd_);
}

void DialedSocket::Disown() {
  fd_ = -1;
  tls_ = nullptr;
}

BulkDialer::BulkDialer(const RemoteTls& tls, SSL_CTX* context)
    : expected_name_(tls.server_name), context_(context) {}

BulkDialer::~BulkDialer() { SSL_CTX_free(context_); }

Result<std::unique_ptr<BulkDialer>> BulkDialer::Make(const RemoteTls& tls) {
  if (!tls.use_tls) return std::unique_ptr<BulkDialer>(new BulkDialer(tls, nullptr));
  std::unique_ptr<SSL_CTX, ContextFree> context(SSL_CTX_new(TLS_client_method()));
  if (!context) return InternalError("TLS: " + TlsError());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_options(context.get(), SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION);
  TERRACE_RETURN_IF_ERROR(AddRoots(context.get(), tls.roots));
  TERRACE_RETURN_IF_ERROR(AddCertificate(context.get(), tls));
  return std::unique_ptr<BulkDialer>(new BulkDialer(tls, context.release()));
}

Result<SSL*> BulkDialer::MakeTls(int fd, const std::string& host) const {
  SSL* tls = SSL_new(context_);
  if (tls == nullptr) return InternalError("TLS: " + TlsError());
  const std::string& name = expected_name_.empty() ? host : expected_name_;
  in6_addr address{};
  const bool is_address =
      inet_pton(AF_INET, name.c_str(), &address) == 1 || inet_pton(AF_INET6, name.c_str(), &address) == 1;
  const bool is_named =
      is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), name.c_str()) == 1
                 : SSL_set1_host(tls, name.c_str()) == 1 && SSL_set_tlsext_host_name(tls, name.c_str()) == 1;
  if (!is_named || SSL_set_fd(tls, fd) != 1) {
    SSL_free(tls);
    return InternalError("TLS: " + TlsError());
  }
  SSL_set_connect_state(tls);
  return tls;
}

Result<DialedSocket> BulkDialer::DialUnix(const std::string& path, TimePoint deadline) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return UnavailableError("the socket's path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  DialedSocket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), nullptr);
  if (socket.fd() < 0) return SystemError("socket");
  TERRACE_RETURN_IF_ERROR(
      Connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address), deadline));
  return socket;
}

Result<DialedSocket> BulkDialer::DialTcp(const std::string& host, uint16_t port, bool with_tls,
                                         TimePoint deadline) const {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return UnavailableError(host + ": " + gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  Status status = UnavailableError(host + ": no address");
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    DialedSocket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), nullptr);
    if (socket.fd() < 0) return SystemError("socket");
    status = Connect(socket.fd(), at->ai_addr, at->ai_addrlen, deadline);
    if (!status.ok()) continue;
    const int on = 1;
    // Refused: slower, not wrong.
    (void)setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (!with_tls) return socket;
    TERRACE_ASSIGN_OR_RETURN(SSL * tls, MakeTls(socket.fd(), host));
    DialedSocket secured(socket.fd(), tls);
    socket.Disown();
    return secured;
  }
  return status;
}

}  // namespace terrace::remote
