// ServeProcess: `terrace serve` as a child of this process, on loopback and a Unix socket of its own, with no
// tokens: for the benchmark's cases remote and shm, and for tests.
//
// Used by one thread, Kill by any. The child ends with this process, however that ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::llamacpp {

class ServeProcess {
 public:
  struct Options {
    std::string program;  // the file `terrace`
    uint64_t host_bytes = uint64_t{1} << 30;
    std::vector<std::string> arguments;  // more of them
  };
  // It takes connections when this returns. kUnavailable: why not.
  static Result<std::unique_ptr<ServeProcess>> Start(Options options);
  ~ServeProcess();
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  std::string tcp_address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string unix_address() const { return "unix:" + socket_; }
  // SIGKILL. Returns when it has ended.
  void Kill();
  // After Kill: at the same addresses, with nothing in memory.
  Status Restart();

 private:
  explicit ServeProcess(Options options) : options_(std::move(options)) {}
  Status Spawn();
  Status AwaitConnections();
  // Sends the signal and waits until the child has ended, at most `seconds`. False: it has not.
  bool End(int signal, int seconds);

  const Options options_;
  std::string directory_;
  std::string socket_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  pid_t child_ = 0;  // mutex_; 0: none
};

// The program `terrace` in the folder of this one.
std::string ServeProgramBeside();

}  // namespace terrace::llamacpp
