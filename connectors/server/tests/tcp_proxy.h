// TcpProxy: a wire that a test can damage. Listens on an address of this host and passes bytes on to another,
// in both directions, until told to do something else with them.
//
// Threads: one for all connections.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace terrace::server {

class TcpProxy {
 public:
  enum class Fault : uint8_t {
    kNone,
    kLatency,  // bytes wait for `latency_ms`
    kReset,   // the connection is reset when `fault_bytes` went to the client, counted from the fault's start
    kHalf,    // the same, but it is closed in order: the client sees the end in the middle of a frame
    kStall,   // after `fault_bytes` nothing passes any more; the connection stays
    kRefuse,  // connections end at once
  };

  // Port 0 of `listen_port`: any.
  TcpProxy(const std::string& listen_host, uint16_t listen_port, uint16_t target_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  uint16_t port() const { return port_; }
  // In force for connections that are open and that come. Setting kNone resets those that a stall holds.
  void Set(Fault fault, uint64_t fault_bytes = 0);
  // Bytes that went to clients.
  uint64_t passed_bytes() const { return passed_bytes_; }
  // Connections that a fault ended or stalled.
  uint64_t num_faults() const { return num_faults_; }

 private:
  struct Pair;
  void Run();
  void Accept();
  // False: the pair is over.
  bool Serve(Pair& pair);
  bool Fill(Pair& pair, bool to_client);
  bool Drain(Pair& pair, bool to_client);
  bool Damage(Pair& pair);

  const uint16_t target_port_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<uint64_t> fault_bytes_{0};
  std::atomic<uint64_t> fault_number_{0};
  std::atomic<uint64_t> passed_bytes_{0};
  std::atomic<uint64_t> num_faults_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::thread thread_;
};

}  // namespace terrace::server
