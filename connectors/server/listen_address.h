// Addresses that a server listens on, and the sockets of those that are not gRPC's.
#pragma once

#include <cstdint>
#include <string>

#include "lib/wire/file_descriptor.h"
#include "terrace/status.h"

namespace terrace::server {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "host:port" or "[v6]:port". kInvalidArgument.
Result<HostPort> ParseHostPort(const std::string& address);
std::string FormatHostPort(const std::string& host, int port);

// A listening socket, non-blocking. kUnavailable: it cannot be bound.
Result<FileDescriptor> ListenTcp(const HostPort& address, uint16_t& port);
// With mode 0600.
Result<FileDescriptor> ListenUnix(const std::string& path);
// Makes way at a path for a Unix socket: what a server that is gone left there is removed. kUnavailable:
// somebody listens there; kInvalidArgument: too long, or there is something that is no socket.
Status ClearUnixPath(const std::string& path);

}  // namespace terrace::server
