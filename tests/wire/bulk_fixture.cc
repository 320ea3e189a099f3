#include "tests/wire/bulk_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/support/tls_identity.h"

namespace terrace {
namespace {

std::atomic<int> live_frames{0};

struct HeapFrame {
  BufferControl control;
  std::vector<std::byte> bytes;
};

void Check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

void SetPatience(int fd) {
  const timeval limit{.tv_sec = std::chrono::seconds(kPatience).count()};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void ConnectTcp(int (&fd)[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  Check(bind(listener, any, length) == 0 && listen(listener, 1) == 0, "listen");
  Check(getsockname(listener, any, &length) == 0, "getsockname");
  fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Check(connect(fd[0], any, length) == 0, "connect");
  fd[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  Check(fd[1] >= 0, "accept");
  close(listener);
}

SSL_CTX* ServerContext() {
  const TlsIdentity identity = MakeTlsIdentity();
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  BIO* text = BIO_new_mem_buf(identity.certificate.data(), static_cast<int>(identity.certificate.size()));
  X509* certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
  BIO_free(text);
  text = BIO_new_mem_buf(identity.key.data(), static_cast<int>(identity.key.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(text, nullptr, nullptr, nullptr);
  BIO_free(text);
  Check(SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1,
        "TLS");
  X509_free(certificate);
  EVP_PKEY_free(key);
  return context;
}

}  // namespace

std::vector<std::byte> RandomBytes(size_t n, uint64_t seed) {
  std::vector<std::byte> bytes(n);
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), n - at));
  }
  return bytes;
}

BufferRef FrameCounter::Make(size_t frame_bytes, uint64_t seed) {
  auto* frame = new HeapFrame;
  frame->bytes.resize(kTierPageBytes);
  const std::vector<std::byte> bytes = RandomBytes(frame_bytes, seed);
  frame->bytes.insert(frame->bytes.end(), bytes.begin(), bytes.end());
  frame->control.data = frame->bytes.data();
  frame->control.size_bytes = frame->bytes.size();
  static_assert(offsetof(HeapFrame, control) == 0);
  frame->control.release = [](BufferControl* control) {
    delete reinterpret_cast<HeapFrame*>(control);
    --live_frames;
  };
  ++live_frames;
  return BufferRef(&frame->control);
}

int FrameCounter::live() { return live_frames.load(); }

std::function<void(const Status&)> Awaited::callback() const {
  return [state = state_](const Status& status) {
    if (state->calls.fetch_add(1) > 0) {
      ADD_FAILURE() << "called again: " << status.ToString();
      return;
    }
    state->promise.set_value(status);
  };
}

Status Awaited::Get() const {
  if (state_->future.wait_for(kPatience) != std::future_status::ready) return InternalError("never called");
  return state_->future.get();
}

bool Awaited::arrived() const { return state_->calls.load() > 0; }

Landing Incoming::MakeLanding(std::vector<FrameRange> ranges) {
  Landing landing{.memory = MutableBytes(memory_), .ranges = std::move(ranges)};
  landing.on_bytes = [this](uint64_t offset, uint64_t n) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return ADD_FAILURE() << "two reports at once";
    if (ended()) ADD_FAILURE() << "a report after the end";
    reports_.emplace_back(offset, n);
  };
  landing.on_end = end_.callback();
  return landing;
}

uint64_t Incoming::reported_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [offset, n] : reports_) bytes += n;
  return bytes;
}

bool Incoming::ReportedOnce() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<uint64_t, uint64_t>> reports = reports_;
  std::sort(reports.begin(), reports.end());
  uint64_t end = 0;
  for (const auto& [offset, n] : reports) {
    if (offset < end || n == 0 || offset + n > memory_.size()) return false;
    end = offset + n;
  }
  return true;
}

std::string NameOf(Transport transport) {
  return transport == Transport::kUnix ? "Unix" : transport == Transport::kTcp ? "Tcp" : "Tls";
}

void BeginTls(SocketEnds& ends) {
  SSL_CTX* server = ServerContext();
  SSL_CTX* client = SSL_CTX_new(TLS_client_method());
  ends.tls[0] = SSL_new(client);
  ends.tls[1] = SSL_new(server);
  SSL_CTX_free(client);
  SSL_CTX_free(server);
  for (int i : {0, 1}) SSL_set_fd(ends.tls[i], ends.fd[i]);
  SSL_set_connect_state(ends.tls[0]);
  SSL_set_accept_state(ends.tls[1]);
}

SocketEnds Connect(Transport transport) {
  SocketEnds ends;
  if (transport == Transport::kUnix) {
    Check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.fd) == 0, "socketpair");
    return ends;
  }
  ConnectTcp(ends.fd);
  if (transport == Transport::kTcp) return ends;
  BeginTls(ends);
  std::thread server([&] {
    EXPECT_TRUE(BulkServerHello(ends.fd[1], ends.tls[1], kPatience).ok());
    EXPECT_TRUE(BulkServerAnswer(ends.fd[1], ends.tls[1], {}, kPatience).ok());
  });
  BulkWelcome welcome;
  const Status shaken = BulkClientHandshake(ends.fd[0], ends.tls[0], {}, welcome, kPatience);
  server.join();
  Check(shaken.ok(), "handshake");
  return ends;
}

void BulkEnd::Join(BulkReactor& reactor, int fd, SSL* tls, uint64_t max_message_bytes) {
  auto added = reactor.Add({.fd = fd,
                            .tls = tls,
                            .landings = landings,
                            .max_message_bytes = max_message_bytes,
                            .on_close = closed.callback()});
  ASSERT_TRUE(added.ok()) << added.status().ToString();
  connection = std::move(added).value();
}

RawPeer::RawPeer(int fd) : fd_(fd) { SetPatience(fd); }

void RawPeer::Write(Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(n, 0) << std::strerror(errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

std::vector<std::byte> RawPeer::Read(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t at = 0; at < n;) {
    const ssize_t got = recv(fd_, bytes.data() + at, n - at, 0);
    if (got <= 0) {
      ADD_FAILURE() << "recv: " << got;
      return bytes;
    }
    at += static_cast<size_t>(got);
  }
  return bytes;
}

BulkMessage RawPeer::ReadMessage() {
  const Result<BulkMessage> message = DecodeBulkMessage(Read(kBulkMessageBytes));
  EXPECT_TRUE(message.ok()) << message.status().ToString();
  return message.ok() ? *message : BulkMessage{};
}

void RawPeer::AwaitReadable() {
  pollfd waited{.fd = fd_, .events = POLLIN};
  ASSERT_EQ(poll(&waited, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
}

bool RawPeer::AtEnd() {
  std::byte byte;
  return recv(fd_, &byte, 1, 0) == 0;
}

void RawPeer::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::unique_ptr<BulkReactor> StartReactor(BulkReactorOptions options) {
  auto reactor = BulkReactor::Start(options);
  EXPECT_TRUE(reactor.ok()) << reactor.status().ToString();
  return std::move(reactor).value();
}

}  // namespace terrace
