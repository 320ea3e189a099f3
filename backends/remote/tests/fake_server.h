// FakeServer: a cache server whose answers are in a test's hands. By default it keeps whole frames by name
// and behaves; each call can be replaced by one that lies, stalls or breaks off.
#pragma once

#include <grpcpp/server.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backends/remote/server_link.h"
#include "proto/terrace/v1/cache.grpc.pb.h"

namespace terrace::remote {

// What links and membership need, with a real clock and no servers.
struct TestEnvironment {
  TestEnvironment();
  ~TestEnvironment();
  MetricRegistry metrics;
  std::shared_ptr<LogSink> log = MakeNullLogSink();
  std::shared_ptr<LinkEnvironment> shared;
};

class FakeServer : public v1::Cache::Service {
 public:
  using Writer = grpc::ServerWriter<v1::GetPart>;
  template <typename Request, typename Response>
  using Answer = std::function<grpc::Status(const Request&, Response*)>;

  FakeServer();  // listens on a port of 127.0.0.1
  ~FakeServer() override;
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Stop();
  // On the same port, with nothing of its sessions.
  void Restart();
  // Calls that wait for it end.
  void LetGo();
  void AwaitLetGo(grpc::ServerContext* context);
  int num_opened() const { return num_opened_; }
  int num_lookups() const { return num_lookups_; }

  // Replacements; set before the client starts.
  Answer<v1::OpenSessionRequest, v1::OpenSessionResponse> open;
  Answer<v1::LookupRequest, v1::LookupResponse> lookup;
  Answer<v1::GetRequest, v1::GetResponse> get;  // its bytes are the test's to send
  Answer<v1::BeginPutRequest, v1::BeginPutResponse> begin_put;
  Answer<v1::CommitPutRequest, v1::CommitPutResponse> commit_put;
  Answer<v1::StatsRequest, v1::StatsResponse> stats;
  std::function<grpc::Status(grpc::ServerContext*, const v1::GetRequest&, Writer*)> get_stream;

  grpc::Status OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest*,
                           v1::OpenSessionResponse*) override;
  grpc::Status CloseSession(grpc::ServerContext*, const v1::CloseSessionRequest*,
                            v1::CloseSessionResponse*) override;
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest*, v1::LookupResponse*) override;
  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest*, v1::GetResponse*) override;
  grpc::Status GetStream(grpc::ServerContext*, const v1::GetRequest*, Writer*) override;
  grpc::Status BeginPut(grpc::ServerContext*, const v1::BeginPutRequest*, v1::BeginPutResponse*) override;
  grpc::Status PutStream(grpc::ServerContext*, grpc::ServerReader<v1::PutPart>*,
                         v1::PutStreamResponse*) override;
  grpc::Status CommitPut(grpc::ServerContext*, const v1::CommitPutRequest*, v1::CommitPutResponse*) override;
  grpc::Status Have(grpc::ServerContext*, const v1::HaveRequest*, v1::HaveResponse*) override;
  grpc::Status Stats(grpc::ServerContext*, const v1::StatsRequest*, v1::StatsResponse*) override;

 private:
  struct Transfer {
    std::string key;
    std::string frame;
    uint64_t missing = 0;
  };
  void Listen();
  bool Knows(const std::string& session);

  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::atomic<int> num_opened_{0};
  std::atomic<int> num_lookups_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_let_go_ = false;
  std::string session_;
  uint64_t next_transfer_ = 1;
  std::map<uint64_t, Transfer> transfers_;
  std::map<std::string, std::string> frames_;  // by key; kept over a restart
};

}  // namespace terrace::remote
