#include "backends/remote/tests/fake_server.h"

#include <grpcpp/server_builder.h>

#include <algorithm>

#include "proto/grpc_lifetime.h"

namespace terrace::remote {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;

v1::Result ResultOf(v1::ResultCode code) {
  v1::Result result;
  result.set_code(code);
  return result;
}

}  // namespace

TestEnvironment::TestEnvironment() : shared(std::make_shared<LinkEnvironment>()) {
  shared->clock = Clock::Real();
  shared->metrics = &metrics;
  shared->log = log.get();
  shared->timers = std::make_shared<TimerQueue>(Clock::Real(), "test-timers");
  shared->connector = MakeThreadPool({.num_threads = 1, .name = "test-connect", .cpu_set = {}}).value();
  shared->ledger = std::make_shared<BufferLedger>(shared->options.inflight_bytes);
  shared->roots = std::make_shared<KnownRoots>();
  shared->operations = std::make_shared<OperationRegistry>();
  shared->news = std::make_shared<FirstNews>();
}

TestEnvironment::~TestEnvironment() { shared->timers->Stop(); }

FakeServer::FakeServer() {
  HoldGrpc();
  Listen();
}

FakeServer::~FakeServer() { Stop(); }

void FakeServer::Listen() {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port_), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

void FakeServer::Stop() {
  LetGo();
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

void FakeServer::Restart() {
  Stop();
  {
    std::lock_guard lock(mutex_);
    is_let_go_ = false;
    session_.clear();
    transfers_.clear();
  }
  Listen();
}

void FakeServer::LetGo() {
  std::lock_guard lock(mutex_);
  is_let_go_ = true;
  changed_.notify_all();
}

void FakeServer::AwaitLetGo(grpc::ServerContext* context) {
  std::unique_lock lock(mutex_);
  while (!is_let_go_ && !context->IsCancelled()) changed_.wait_for(lock, std::chrono::milliseconds(5));
}

bool FakeServer::Knows(const std::string& session) {
  std::lock_guard lock(mutex_);
  return session == session_ && !session_.empty();
}

grpc::Status FakeServer::OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest* request,
                                     v1::OpenSessionResponse* response) {
  const int number = ++num_opened_;
  std::lock_guard lock(mutex_);
  session_ = "session " + std::string(8 - std::to_string(number).size(), '0') + std::to_string(number);
  response->set_session_id(session_);
  response->set_server_id("server");
  response->mutable_limits()->set_max_batch(64);
  response->mutable_limits()->set_max_frame_bytes(uint64_t{1} << 30);
  response->mutable_limits()->set_max_inflight_bytes(uint64_t{1} << 30);
  response->set_session_ttl_ms(60'000);
  return open ? open(*request, response) : grpc::Status::OK;
}

grpc::Status FakeServer::CloseSession(grpc::ServerContext*, const v1::CloseSessionRequest*,
                                      v1::CloseSessionResponse*) {
  return grpc::Status::OK;
}

grpc::Status FakeServer::Lookup(grpc::ServerContext*, const v1::LookupRequest* request,
                                v1::LookupResponse* response) {
  ++num_lookups_;
  if (!Knows(request->session_id())) return {grpc::StatusCode::FAILED_PRECONDITION, "no such session"};
  return lookup ? lookup(*request, response) : grpc::Status::OK;
}

grpc::Status FakeServer::Get(grpc::ServerContext*, const v1::GetRequest* request, v1::GetResponse* response) {
  if (!get) return {grpc::StatusCode::UNIMPLEMENTED, "no bulk sockets"};
  return get(*request, response);
}

grpc::Status FakeServer::GetStream(grpc::ServerContext* context, const v1::GetRequest* request,
                                   Writer* writer) {
  if (!Knows(request->session_id())) return {grpc::StatusCode::FAILED_PRECONDITION, "no such session"};
  if (get_stream) return get_stream(context, *request, writer);
  v1::GetPart end;
  for (const v1::GetObject& object : request->objects()) {
    std::string frame;
    {
      std::lock_guard lock(mutex_);
      const auto found = frames_.find(object.name().key());
      if (found != frames_.end()) frame = found->second;
    }
    v1::GetResult* result = end.add_results();
    *result->mutable_result() = ResultOf(frame.empty() ? v1::RESULT_CODE_NOT_FOUND : v1::RESULT_CODE_OK);
    result->set_frame_bytes(frame.size());
    for (size_t at = 0; at < frame.size(); at += kPartBytes) {
      v1::GetPart part;
      part.set_transfer(object.transfer());
      part.set_offset(at);
      part.set_data(frame.substr(at, kPartBytes));
      writer->Write(part);
    }
  }
  writer->Write(end);
  return grpc::Status::OK;
}

grpc::Status FakeServer::BeginPut(grpc::ServerContext*, const v1::BeginPutRequest* request,
                                  v1::BeginPutResponse* response) {
  if (!Knows(request->session_id())) return {grpc::StatusCode::FAILED_PRECONDITION, "no such session"};
  if (begin_put) return begin_put(*request, response);
  std::lock_guard lock(mutex_);
  for (const v1::PutObject& object : request->objects()) {
    v1::PutNeed* need = response->add_needs();
    const std::string& key = object.name().key();
    const bool is_there = frames_.contains(key);
    *need->mutable_result() = ResultOf(is_there ? v1::RESULT_CODE_ALREADY_EXISTS : v1::RESULT_CODE_OK);
    if (is_there) continue;
    need->set_transfer(next_transfer_);
    transfers_[next_transfer_++] = {key, std::string(object.frame_bytes(), '\0'), object.frame_bytes()};
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::PutStream(grpc::ServerContext*, grpc::ServerReader<v1::PutPart>* reader,
                                   v1::PutStreamResponse*) {
  v1::PutPart part;
  while (reader->Read(&part)) {
    std::lock_guard lock(mutex_);
    const auto found = transfers_.find(part.transfer());
    if (found == transfers_.end()) return {grpc::StatusCode::NOT_FOUND, "no such transfer"};
    found->second.frame.replace(part.offset(), part.data().size(), part.data());
    found->second.missing -= part.data().size();
    changed_.notify_all();
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::CommitPut(grpc::ServerContext* context, const v1::CommitPutRequest* request,
                                   v1::CommitPutResponse* response) {
  if (commit_put) return commit_put(*request, response);
  std::unique_lock lock(mutex_);
  for (const uint64_t transfer : request->abandoned()) transfers_.erase(transfer);
  changed_.notify_all();
  for (const uint64_t transfer : request->transfers()) {
    const auto is_over = [&] {
      const auto found = transfers_.find(transfer);
      return found == transfers_.end() || found->second.missing == 0 || is_let_go_;
    };
    while (!is_over() && !context->IsCancelled()) changed_.wait_for(lock, std::chrono::milliseconds(5));
    const auto found = transfers_.find(transfer);
    const bool is_whole = found != transfers_.end() && found->second.missing == 0;
    *response->add_results() = ResultOf(is_whole ? v1::RESULT_CODE_OK : v1::RESULT_CODE_CANCELLED);
    if (is_whole) frames_[found->second.key] = std::move(found->second.frame);
    if (found != transfers_.end()) transfers_.erase(found);
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::Have(grpc::ServerContext*, const v1::HaveRequest* request,
                              v1::HaveResponse* response) {
  std::lock_guard lock(mutex_);
  for (const v1::ObjectName& name : request->names()) response->add_have(frames_.contains(name.key()));
  return grpc::Status::OK;
}

grpc::Status FakeServer::Stats(grpc::ServerContext*, const v1::StatsRequest* request,
                               v1::StatsResponse* response) {
  if (!Knows(request->session_id())) return {grpc::StatusCode::FAILED_PRECONDITION, "no such session"};
  return stats ? stats(*request, response) : grpc::Status::OK;
}

}  // namespace terrace::remote
