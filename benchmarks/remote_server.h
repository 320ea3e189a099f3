// RemoteServer: the cache server under test: a child process of this program, or somebody else's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "benchmarks/child_process.h"
#include "terrace/remote_backend.h"
#include "terrace/status.h"

namespace terrace::bench {

class RemoteServer {
 public:
  struct Sizes {
    uint64_t host_bytes = 0;
    uint64_t staging_bytes = 0;  // of each client's puts through shared memory
  };
  // `program serve` with a Unix socket and a log in `directory`, and a loopback port.
  static Result<std::unique_ptr<RemoteServer>> Start(const std::string& program, const std::string& directory,
                                                     const Sizes& sizes);
  static std::unique_ptr<RemoteServer> At(const std::string& address, const std::string& token);

  // How a client reaches it; a server at an address of the other family is not reached.
  RemoteOptions OptionsFor(bool over_unix, RemotePath path) const;
  // kUnavailable when the server of its own has ended.
  Status CheckRunning();
  const ChildProcess* process() const { return process_.get(); }  // null: somebody else's

 private:
  RemoteServer() = default;
  const std::string& AddressOf(bool over_unix) const { return over_unix ? unix_address_ : tcp_address_; }

  std::string unix_address_;
  std::string tcp_address_;
  std::string token_;
  std::string log_path_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace terrace::bench
