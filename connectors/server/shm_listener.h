// ShmListener: the Unix socket that hands a session's shared memory to its client (lib/wire/shm_message.h).
//
//   accept -> the peer's user is one that may -> hello, in time -> token -> pool, generations and staging
//          -> the socket is the client's sign of life: its end, or a byte on it, ends the session
//
// Threads: one of its own for all sockets; every call from every thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "connectors/server/session_table.h"
#include "terrace/log_sink.h"
#include "terrace/metrics.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace::server {

struct ShmListenerOptions {
  // Made with mode 0600; 0666 where `users` names others, of whom the credentials then decide. What a server
  // that is gone left there is removed.
  std::string path;
  std::vector<uint32_t> users;  // that may map memory, beside this process's own and root
  uint64_t staging_bytes = uint64_t{64} << 20;
  double place_share = 0.5;   // of the namespace's pool that one session may hold back
  size_t max_clients = 4096;  // with their memory
  size_t max_pending = 64;    // before their token was seen; more are closed at once
  Duration hello_limit = std::chrono::seconds(2);
  Clock* clock = Clock::Real();             // of the places' leases
  std::shared_ptr<LogSink> log;             // may be null
  std::shared_ptr<MetricRegistry> metrics;  // may be null
};

class ShmListener {
 public:
  // `sessions` outlives it. kInvalidArgument: the path; kUnavailable: somebody listens there, or it cannot be
  // bound.
  static Result<std::unique_ptr<ShmListener>> Start(const ShmListenerOptions& options,
                                                    SessionTable* sessions);
  // Closes every socket; sessions stay.
  virtual ~ShmListener() = default;

  // Gives back the frames of places whose lease has ended; called every second by the server.
  virtual void Reap() = 0;
  virtual size_t num_clients() const = 0;
  // Frames that all clients hold.
  virtual size_t num_places() const = 0;
};

}  // namespace terrace::server
