// The streams path: frames of puts as PutStream calls, one each; frames of gets come in GetStream
// (get_stream.h).
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "backends/remote/make_path.h"
#include "backends/remote/wire_values.h"
#include "lib/wire/part_message.h"

namespace terrace::remote {
namespace {

constexpr uint64_t kPartBytes = uint64_t{2} << 20;

// One frame on its way. Lives until gRPC is done with the call.
class PutStreamCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  PutStreamCall(std::shared_ptr<LinkChannel> channel, std::string session_id, uint64_t transfer,
                BufferRef frame, uint64_t frame_bytes)
      : channel_(std::move(channel)),
        session_id_(std::move(session_id)),
        transfer_(transfer),
        frame_(std::move(frame)),
        frame_bytes_(frame_bytes) {}

  void Start(std::shared_ptr<PutStreamCall> self, Duration limit, std::function<void(const Status&)> ended) {
    self_ = std::move(self);
    ended_ = std::move(ended);
    {
      std::lock_guard lock(mutex_);
      context_ = channel_->MakeContext(limit);
      if (is_cancelled_) context_->TryCancel();
    }
    channel_->generic->PrepareBidiStreamingCall(context_.get(), "/terrace.v1.Cache/PutStream", {}, this);
    StartRead(&answer_);
    WriteNext();
    StartCall();
  }

  void Cancel() {
    std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    if (context_) context_->TryCancel();
  }

  void OnWriteDone(bool ok) override {
    if (ok && offset_ < frame_bytes_) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<PutStreamCall> self = std::move(self_);
    frame_.Reset();
    const auto ended = std::move(ended_);
    ended(FromGrpc(status));
  }

 private:
  void WriteNext() {
    const uint64_t n = std::min(kPartBytes, frame_bytes_ - offset_);
    PartMessage part;
    if (offset_ == 0) part.session_id = session_id_;
    part.transfer = transfer_;
    part.offset = offset_;
    part.data_bytes = n;
    const std::string prefix = EncodePartPrefix(PartKind::kPut, part);
    // gRPC reads the frame itself; the reference is dropped when it has let go of the slice.
    auto* held = new BufferRef(frame_);
    const std::byte* bytes = held->frame().data() + offset_;
    const grpc::Slice slices[] = {grpc::Slice(prefix),
                                  grpc::Slice(
                                      const_cast<std::byte*>(bytes), n,
                                      [](void* user) { delete static_cast<BufferRef*>(user); }, held)};
    part_ = grpc::ByteBuffer(slices, 2);
    offset_ += n;
    if (offset_ == frame_bytes_) {
      StartWriteLast(&part_, {});
    } else {
      StartWrite(&part_);
    }
  }

  const std::shared_ptr<LinkChannel> channel_;
  const std::string session_id_;
  const uint64_t transfer_;
  BufferRef frame_;
  const uint64_t frame_bytes_;
  uint64_t offset_ = 0;
  grpc::ByteBuffer part_;
  grpc::ByteBuffer answer_;
  std::function<void(const Status&)> ended_;
  std::shared_ptr<PutStreamCall> self_;

  std::mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_;
  bool is_cancelled_ = false;
};

class StreamsPath final : public DataPath {
 public:
  explicit StreamsPath(const PathRequest& request)
      : channel_(request.channel),
        session_id_(request.session_id),
        limit_(request.environment->options.operation_deadline) {}

  std::string_view name() const override { return "streams"; }
  Status status() const override { return OkStatus(); }
  bool uses_streams() const override { return true; }
  void OnGetResult(uint64_t, const v1::GetResult&) override {}

  void SendPut(const v1::PutNeed& need, BufferRef frame, uint64_t frame_bytes,
               std::function<void(const Status&)> sent) override {
    const uint64_t transfer = need.transfer();
    auto call =
        std::make_shared<PutStreamCall>(channel_, session_id_, transfer, std::move(frame), frame_bytes);
    bool is_new = false;
    {
      std::lock_guard lock(calls_->mutex);
      if (!calls_->is_closed) is_new = calls_->by_transfer.emplace(transfer, call).second;
    }
    if (!is_new) {
      call.reset();
      return sent(CancelledError("the session has ended, or has this transfer already"));
    }
    call->Start(call, limit_, [calls = calls_, transfer, sent = std::move(sent)](const Status& status) {
      {
        std::lock_guard lock(calls->mutex);
        calls->by_transfer.erase(transfer);
      }
      sent(status);
    });
  }

  void CancelPut(uint64_t transfer) override {
    std::shared_ptr<PutStreamCall> call;
    {
      std::lock_guard lock(calls_->mutex);
      const auto found = calls_->by_transfer.find(transfer);
      if (found != calls_->by_transfer.end()) call = found->second.lock();
    }
    if (call) call->Cancel();
  }

  void Close() override {
    std::vector<std::shared_ptr<PutStreamCall>> calls;
    {
      std::lock_guard lock(calls_->mutex);
      calls_->is_closed = true;
      for (const auto& [transfer, weak] : calls_->by_transfer) {
        if (auto call = weak.lock()) calls.push_back(std::move(call));
      }
    }
    for (const auto& call : calls) call->Cancel();
  }

 private:
  struct Calls {
    std::mutex mutex;
    std::map<uint64_t, std::weak_ptr<PutStreamCall>> by_transfer;
    bool is_closed = false;
  };
  const std::shared_ptr<LinkChannel> channel_;
  const std::string session_id_;
  const Duration limit_;
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();  // outlives the path: calls end later
};

}  // namespace

Result<std::shared_ptr<DataPath>> MakeStreamsPath(const PathRequest& request) {
  return std::shared_ptr<DataPath>(std::make_shared<StreamsPath>(request));
}

}  // namespace terrace::remote
