// DataPath: how the bytes of one session move, beside the gRPC calls that say what moves. One object per
// session; made again when the session is.
//
// Threads: every call from every thread. What is not given back by a call is told by a callback, once, on a
// thread of the path, without a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "lib/wire/landing_table.h"
#include "proto/terrace/v1/cache.pb.h"
#include "terrace/backend.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace::remote {

class DataPath {
 public:
  virtual ~DataPath() = default;
  virtual std::string_view name() const = 0;  // "streams", "bulk", "shm"; of logs and metrics
  // kUnavailable: sockets or mapping are lost; the link opens its session anew.
  virtual Status status() const = 0;

  // --- Gets. The landing of each transfer is in the link's LandingTable before the call is sent.
  // Whether Get is called (bulk, shm), or GetStream (streams).
  virtual bool uses_streams() const = 0;
  // Takes an answer of Get: bulk: nothing to do, bytes come by themselves; shm: copies out of the pool into
  // the landing, checks the generation, and gives the place back. An error fails the landing.
  virtual void OnGetResult(uint64_t transfer, const v1::GetResult& result) = 0;

  // --- Puts. Sends the frame's bytes; `sent` when nobody reads the buffer any more (an error: the transfer
  // will not be whole).
  virtual void SendPut(const v1::PutNeed& need, BufferRef frame, uint64_t frame_bytes,
                       std::function<void(const Status&)> sent) = 0;
  virtual void CancelPut(uint64_t transfer) = 0;
  // The server reads what was sent when it commits, and not before: CommitPut follows the last `sent`.
  virtual bool commits_after_sent() const { return false; }

  virtual void Close() = 0;  // ends callbacks: each was called, or is called with kCancelled
};

}  // namespace terrace::remote
