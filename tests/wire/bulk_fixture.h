// What the tests of bulk connections share: frames that are counted, pairs of connected sockets, awaited
// transfers that remember what they were told, and a peer that speaks bytes.
#pragma once

#include <gtest/gtest.h>
#include <openssl/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/wire/bulk_connection.h"

namespace terrace {

// Far more than anything takes: a test that waits so long fails.
inline constexpr auto kPatience = std::chrono::seconds(60);

std::vector<std::byte> RandomBytes(size_t n, uint64_t seed);

// Frames on the heap, of which every one is let go of at the end.
class FrameCounter {
 public:
  // `frame_bytes` of RandomBytes(seed) behind a tier page.
  static BufferRef Make(size_t frame_bytes, uint64_t seed);
  static int live();
};

// A status that arrives once; a second one fails the test.
class Awaited {
 public:
  std::function<void(const Status&)> callback() const;
  Status Get() const;  // waits
  bool arrived() const;

 private:
  struct State {
    std::promise<Status> promise;
    std::shared_future<Status> future{promise.get_future()};
    std::atomic<int> calls{0};
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// One awaited transfer into memory of its own.
class Incoming {
 public:
  explicit Incoming(size_t memory_bytes) : memory_(memory_bytes) {}
  Landing MakeLanding(std::vector<FrameRange> ranges);
  const std::vector<std::byte>& memory() const { return memory_; }
  Status Wait() const { return end_.Get(); }
  bool ended() const { return end_.arrived(); }
  // How often each of the memory's 4,096-byte units was reported; fails where a report is not of whole bytes
  // inside. Call after the end.
  uint64_t reported_bytes() const;
  bool ReportedOnce() const;

 private:
  std::vector<std::byte> memory_;
  mutable std::mutex mutex_;
  std::vector<std::pair<uint64_t, uint64_t>> reports_;
  Awaited end_;
};

enum class Transport { kUnix, kTcp, kTls };
std::string NameOf(Transport transport);

// Two ends that are connected; `tls` is null but for kTls, where both have spoken the bulk handshake.
struct SocketEnds {
  int fd[2] = {-1, -1};
  SSL* tls[2] = {nullptr, nullptr};
};
SocketEnds Connect(Transport transport);
// Over a connected pair, with a certificate made here; the handshake is still to come.
void BeginTls(SocketEnds& ends);

// One end in a reactor.
struct BulkEnd {
  std::shared_ptr<LandingTable> landings = std::make_shared<LandingTable>();
  std::shared_ptr<BulkConnection> connection;
  Awaited closed;

  void Join(BulkReactor& reactor, int fd, SSL* tls = nullptr,
            uint64_t max_message_bytes = kMaxBulkMessageBytes);
};

// The other end as bytes; blocks, and gives up after kPatience.
class RawPeer {
 public:
  explicit RawPeer(int fd);
  ~RawPeer() { Close(); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;
  void Write(Bytes bytes);
  void WriteMessage(const BulkMessage& message) { Write(EncodeBulkMessage(message)); }
  std::vector<std::byte> Read(size_t n);
  BulkMessage ReadMessage();
  void AwaitReadable();
  bool AtEnd();  // waits for the end; false where bytes come
  void Close();

 private:
  int fd_;
};

std::unique_ptr<BulkReactor> StartReactor(BulkReactorOptions options = {});

}  // namespace terrace
