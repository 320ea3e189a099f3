#include "benchmarks/grpc_probe.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/base/status_macros.h"
#include "lib/memory/stream_copy.h"
#include "proto/terrace/v1/cache.pb.h"

namespace terrace::bench {
namespace {

constexpr char kGet[] = "/probe/get";
constexpr char kPut[] = "/probe/put";
constexpr char kEcho[] = "/probe/echo";
constexpr int kReadChunkBytes = 4 << 20;
constexpr std::chrono::seconds kCallLimit(120);

// The first message of a stream, in native byte order.
struct StreamRequest {
  uint64_t form = 0;
  uint64_t first = 0;
  uint64_t step = 1;
  uint64_t count = 0;
  uint64_t message_bytes = 0;
  uint64_t value_bytes = 0;
};

grpc::ByteBuffer CopiedBuffer(const void* bytes, size_t n) {
  const grpc::Slice slice(bytes, n);
  return grpc::ByteBuffer(&slice, 1);
}

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// The messages of a run, one after the other.
class MessageSource {
 public:
  MessageSource(const ValueRing& ring, const StreamRequest& request) : ring_(ring), request_(request) {}

  // False: that was all.
  bool Next(grpc::ByteBuffer& message) {
    if (index_ == request_.count) return false;
    const MutableBytes value = ring_.Value(request_.first + index_ * request_.step, request_.value_bytes);
    const size_t n = std::min<size_t>(request_.message_bytes, value.size() - offset_);
    const MutableBytes part = value.subspan(offset_, n);
    if (request_.form == static_cast<uint64_t>(WireForm::kProtobuf)) {
      proto_.set_transfer(index_);
      proto_.set_offset(offset_);
      proto_.set_data(part.data(), part.size());
      message.Clear();  // refused where something is in it
      bool own = false;
      (void)grpc::SerializationTraits<v1::PutPart>::Serialize(proto_, &message, &own);
    } else {
      const grpc::Slice slice(part.data(), part.size(), grpc::Slice::STATIC_SLICE);
      message = grpc::ByteBuffer(&slice, 1);
    }
    offset_ += n;
    if (offset_ == value.size()) {
      offset_ = 0;
      ++index_;
    }
    return true;
  }

 private:
  const ValueRing& ring_;
  const StreamRequest request_;
  uint64_t index_ = 0;
  uint64_t offset_ = 0;
  v1::PutPart proto_;
};

// Where they arrive.
class MessageSink {
 public:
  MessageSink(const ValueRing& ring, const StreamRequest& request) : ring_(ring), request_(request) {}

  void Take(grpc::ByteBuffer& message) {
    if (request_.form == static_cast<uint64_t>(WireForm::kProtobuf)) {
      if (!grpc::SerializationTraits<v1::PutPart>::Deserialize(&message, &proto_).ok()) return;
      Land(reinterpret_cast<const std::byte*>(proto_.data().data()), proto_.data().size());
      return;
    }
    if (request_.form == static_cast<uint64_t>(WireForm::kLanded)) {
      slices_.clear();
      if (!message.Dump(&slices_).ok()) return;
      for (const grpc::Slice& slice : slices_) {
        Land(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
      }
    } else {
      taken_bytes_ += message.Length();
    }
    message.Clear();
  }
  bool is_whole() const { return taken_bytes_ == request_.count * request_.value_bytes; }

 private:
  void Land(const std::byte* bytes, size_t n) {
    while (n > 0) {
      const uint64_t index = taken_bytes_ / request_.value_bytes;
      const MutableBytes rest = ring_.Value(request_.first + index * request_.step, request_.value_bytes)
                                    .subspan(taken_bytes_ % request_.value_bytes);
      const size_t step = std::min(n, rest.size());
      StreamCopy(rest.data(), bytes, step);
      bytes += step;
      n -= step;
      taken_bytes_ += step;
    }
  }

  const ValueRing& ring_;
  const StreamRequest request_;
  uint64_t taken_bytes_ = 0;
  v1::PutPart proto_;
  std::vector<grpc::Slice> slices_;
};

// --- Server.

class ServedCall : public grpc::ServerGenericBidiReactor {
 public:
  ServedCall(std::string method, std::shared_ptr<const ValueRing> ring)
      : method_(std::move(method)), ring_(std::move(ring)) {
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(sink_ && sink_->is_whole() ? grpc::Status::OK
                                        : grpc::Status(grpc::StatusCode::DATA_LOSS, "bytes are missing"));
      return;
    }
    if (sink_) {
      sink_->Take(message_);
      StartRead(&message_);
      return;
    }
    const std::string text = TextOf(message_);
    if (method_ == kEcho) {
      uint64_t answer_bytes = 0;
      std::memcpy(&answer_bytes, text.data(), std::min(text.size(), sizeof(answer_bytes)));
      const std::string answer(answer_bytes, 'a');
      message_ = CopiedBuffer(answer.data(), answer.size());
      StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
      return;
    }
    StreamRequest request;
    if (text.size() != sizeof(request)) {
      Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not a request"));
      return;
    }
    std::memcpy(&request, text.data(), sizeof(request));
    if (method_ == kPut) {
      sink_.emplace(*ring_, request);
      StartRead(&message_);
    } else {
      source_.emplace(*ring_, request);
      WriteNext();
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok && source_) WriteNext();
    if (!ok && source_) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    if (source_->Next(message_)) {
      StartWrite(&message_);
    } else {
      Finish(grpc::Status::OK);
    }
  }

  const std::string method_;
  const std::shared_ptr<const ValueRing> ring_;
  grpc::ByteBuffer message_;
  std::optional<MessageSource> source_;
  std::optional<MessageSink> sink_;
};

class ProbeServer : public GrpcProbeServer, private grpc::CallbackGenericService {
 public:
  explicit ProbeServer(std::shared_ptr<const ValueRing> ring) : ring_(std::move(ring)) {}
  ~ProbeServer() override {
    if (server_) server_->Shutdown();
  }

  Status Listen(const std::string& unix_path) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + unix_path, grpc::InsecureServerCredentials());
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument("grpc.experimental.tcp_read_chunk_size", kReadChunkBytes);
    builder.AddChannelArgument("grpc.experimental.tcp_min_read_chunk_size", kReadChunkBytes);
    builder.AddChannelArgument("grpc.experimental.tcp_max_read_chunk_size", kReadChunkBytes);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    return server_ && port_ > 0 ? OkStatus() : UnavailableError("the gRPC probe does not listen");
  }
  uint16_t tcp_port() const override { return static_cast<uint16_t>(port_); }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new ServedCall(context->method(), ring_);
  }

  const std::shared_ptr<const ValueRing> ring_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// --- Client.

// One stream; lives until WaitForEnd returned.
class ClientCall : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ClientCall(grpc::GenericStub& stub, Direction direction, const ValueRing& ring,
             const StreamRequest& request)
      : is_get_(direction == Direction::kGet), source_(ring, request), sink_(ring, request) {
    context_.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    stub.PrepareBidiStreamingCall(&context_, is_get_ ? kGet : kPut, {}, this);
    sent_ = CopiedBuffer(&request, sizeof(request));
    StartWrite(&sent_);
    if (is_get_) {
      StartWritesDone();
      StartRead(&received_);
    }
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (is_get_ || !ok) return;
    if (source_.Next(sent_)) {
      StartWrite(&sent_);
    } else {
      StartWritesDone();
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    sink_.Take(received_);
    StartRead(&received_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    is_done_ = true;
    ended_.notify_one();
  }

  Status WaitForEnd() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return is_done_; });
    if (!status_.ok()) return UnavailableError("the gRPC probe: " + status_.error_message());
    return !is_get_ || sink_.is_whole() ? OkStatus() : DataLossError("the gRPC probe: bytes are missing");
  }

 private:
  const bool is_get_;
  grpc::ClientContext context_;
  MessageSource source_;
  MessageSink sink_;
  grpc::ByteBuffer sent_;
  grpc::ByteBuffer received_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_done_ = false;
  grpc::Status status_;
};

class ProbeClient : public GrpcProbe {
 public:
  explicit ProbeClient(const ValueRing& ring) : ring_(ring) {}

  Status Open(const std::string& address) {
    for (uint32_t i = 0; i < kMaxStreams; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetMaxReceiveMessageSize(-1);
      arguments.SetMaxSendMessageSize(-1);
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetInt("grpc.experimental.tcp_read_chunk_size", kReadChunkBytes);
      arguments.SetInt("grpc.experimental.tcp_min_read_chunk_size", kReadChunkBytes);
      arguments.SetInt("grpc.experimental.tcp_max_read_chunk_size", kReadChunkBytes);
      auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10))) {
        return UnavailableError("the gRPC probe does not answer at " + address);
      }
      stubs_.push_back(std::make_unique<grpc::GenericStub>(std::move(channel)));
    }
    return OkStatus();
  }

  Result<double> Run(Direction direction, const Setting& setting, const ValueBatch& values) override {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<ClientCall>> calls;
    for (uint32_t i = 0; i < setting.streams; ++i) {
      const StreamRequest request{.form = static_cast<uint64_t>(setting.form),
                                  .first = i,
                                  .step = setting.streams,
                                  .count = values.ShareOf(i, setting.streams),
                                  .message_bytes = setting.message_bytes,
                                  .value_bytes = values.value_bytes};
      calls.push_back(std::make_unique<ClientCall>(*stubs_[i], direction, ring_, request));
    }
    Status status;
    for (const auto& call : calls) {
      if (Status one = call->WaitForEnd(); !one.ok()) status = std::move(one);
    }
    TERRACE_RETURN_IF_ERROR(status);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Result<double> RoundTrip(std::string_view request, uint64_t answer_bytes, bool by_callback) override {
    std::string text(request);
    text.resize(std::max(text.size(), sizeof(answer_bytes)));
    std::memcpy(text.data(), &answer_bytes, sizeof(answer_bytes));
    const grpc::ByteBuffer sent = CopiedBuffer(text.data(), text.size());
    grpc::ByteBuffer received;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    const auto begin = std::chrono::steady_clock::now();
    const grpc::Status status =
        by_callback ? CallBack(context, sent, received) : Poll(context, sent, received);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!status.ok()) return UnavailableError("the gRPC probe: " + status.error_message());
    return seconds;
  }

 private:
  grpc::Status Poll(grpc::ClientContext& context, const grpc::ByteBuffer& sent, grpc::ByteBuffer& received) {
    grpc::Status status;
    const auto call = stubs_[0]->PrepareUnaryCall(&context, kEcho, sent, &queue_);
    call->StartCall();
    call->Finish(&received, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return status;
  }
  grpc::Status CallBack(grpc::ClientContext& context, const grpc::ByteBuffer& sent,
                        grpc::ByteBuffer& received) {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<grpc::Status> result;
    stubs_[0]->UnaryCall(&context, kEcho, {}, &sent, &received, [&](grpc::Status status) {
      const std::lock_guard lock(mutex);
      result = std::move(status);
      ended.notify_one();
    });
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return result.has_value(); });
    return *result;
  }

  const ValueRing& ring_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  grpc::CompletionQueue queue_;
};

}  // namespace

Result<std::unique_ptr<GrpcProbeServer>> GrpcProbeServer::Start(const std::string& unix_path,
                                                                std::shared_ptr<const ValueRing> ring) {
  auto server = std::make_unique<ProbeServer>(std::move(ring));
  TERRACE_RETURN_IF_ERROR(server->Listen(unix_path));
  return std::unique_ptr<GrpcProbeServer>(std::move(server));
}

Result<std::unique_ptr<GrpcProbe>> GrpcProbe::Connect(const std::string& address, const ValueRing& ring) {
  auto client = std::make_unique<ProbeClient>(ring);
  TERRACE_RETURN_IF_ERROR(client->Open(address));
  return std::unique_ptr<GrpcProbe>(std::move(client));
}

}  // namespace terrace::bench
