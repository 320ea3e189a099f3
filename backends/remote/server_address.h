// ServerAddress: where a cache server listens, as options and address files name it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace::remote {

struct ServerAddress {
  std::string text;  // "host:port", "[v6]:port" or "unix:/path", as written; its identity in placement
  std::string host;  // without brackets; empty for a Unix socket
  uint16_t port = 0;
  std::string unix_path;  // empty for TCP

  bool is_unix() const { return !unix_path.empty(); }
  // 127.0.0.0/8, ::1 or "localhost": what is sent does not leave the host.
  bool is_loopback() const;
};

// kInvalidArgument says what is allowed.
Result<ServerAddress> ParseServerAddress(std::string_view text);

}  // namespace terrace::remote
