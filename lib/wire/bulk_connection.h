// BulkConnection: one bulk socket after its handshake, either end of it: sends frames' ranges as data
// messages, receives data messages into a LandingTable. BulkReactor: the few threads that move the bytes of
// all of them.
//
// Bytes are received straight into the memory that the table names, in steps that fit the cache, each
// reported at once so that it is hashed there. What is sent is read straight out of the frames, which are
// held until the kernel (or TLS) has taken their bytes. Sockets do not block; a connection gets at most a few
// messages' worth of work per turn, so that none starves another. A peer that stops reading or sending in the
// middle of a message for `stall_limit` is dropped.
//
// A connection's end fails the transfer that it was in the middle of and no other: whoever owns the table
// knows which transfers the connection was to bring, and fails them from on_close.
//
// Threads: every call from every thread. Callbacks run on a reactor thread, without a lock, and do not block;
// only a Send after the reactor's end calls `sent` at once.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/wire/bulk_message.h"
#include "lib/wire/landing_table.h"
#include "terrace/backend.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

struct BulkReactorOptions {
  uint32_t threads = 2;  // 1..16
  Duration stall_limit = std::chrono::seconds(10);
  // Per connection, sends and aborts; one more and `sent` gets kResourceExhausted.
  size_t max_queued_sends = 65536;

  Status Validate() const;
};

class BulkConnection;

class BulkReactor {
 public:
  static Result<std::unique_ptr<BulkReactor>> Start(const BulkReactorOptions& options);
  virtual ~BulkReactor() = default;  // ends every connection, then the threads

  struct Connection {
    int fd = -1;         // a connected socket after the handshake; owned from here on, whatever the answer
    SSL* tls = nullptr;  // on that socket, after its handshake; owned; null: plain
    std::shared_ptr<LandingTable> landings;
    uint64_t max_message_bytes = kMaxBulkMessageBytes;  // that the peer takes, of its welcome
    // Once, when nothing is sent or received any more: why. kUnavailable: the peer closed, or was lost;
    // kDataLoss: it broke a rule; kCancelled: closed here.
    std::function<void(const Status&)> on_close;
  };
  virtual Result<std::shared_ptr<BulkConnection>> Add(Connection connection) = 0;
};

class BulkConnection {
 public:
  virtual ~BulkConnection() = default;

  // Bytes `ranges` of `frame` (dst_offset not used; a whole frame is one range) as messages of the transfer,
  // after what was asked for before. `sent`, once: OK when the last byte was handed to the kernel, else
  // kInvalidArgument (no ranges, outside the frame, not multiples of 4,096), kResourceExhausted, kCancelled
  // or the connection's end. May be null.
  virtual void Send(uint64_t transfer, BufferRef frame, std::vector<FrameRange> ranges,
                    std::function<void(const Status&)> sent) = 0;
  virtual void SendAbort(uint64_t transfer, BulkCode code) = 0;
  // Drops the messages of a transfer that have not begun (`sent` gets kCancelled) and tells the peer, if any.
  virtual void CancelSend(uint64_t transfer) = 0;
  virtual void Close() = 0;
  virtual uint64_t queued_bytes() const = 0;  // asked for and not yet sent
  // Whether the kernel encrypts what is sent; false on a plain socket and where OpenSSL does it.
  virtual bool kernel_tls() const = 0;
};

// The handshakes, on a new socket that nobody else uses; all of a call, TLS's own handshake with it where it
// was not made yet (SSL_set_connect_state or SSL_set_accept_state), takes `limit` at most however the peer
// trickles. An answer that is not kOk is none of these errors: `welcome` has it. kDeadlineExceeded;
// kUnavailable: the peer closed; kDataLoss: not what stands in bulk_message.h.
inline constexpr Duration kBulkHandshakeLimit = std::chrono::seconds(10);

Status BulkClientHandshake(int fd, SSL* tls, const BulkHello& hello, BulkWelcome& welcome,
                           Duration limit = kBulkHandshakeLimit);
// Reads the hello only: the caller decides and answers with BulkServerAnswer.
Result<BulkHello> BulkServerHello(int fd, SSL* tls, Duration limit = kBulkHandshakeLimit);
Status BulkServerAnswer(int fd, SSL* tls, const BulkWelcome& welcome, Duration limit = kBulkHandshakeLimit);

}  // namespace terrace
