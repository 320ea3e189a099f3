#include <grpcpp/server_context.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>

#include "connectors/server/frame_feed.h"
#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"
#include "connectors/server/stream_deadline.h"
#include "connectors/server/turnstile.h"
#include "lib/wire/part_message.h"

namespace terrace::server {
namespace {

// Of a part's data: what gRPC moves fastest.
constexpr uint64_t kPartBytes = uint64_t{2} << 20;

// The frame's own memory, held until gRPC has let go of it.
grpc::Slice FrameSlice(const BufferRef& frame, Bytes bytes) {
  return grpc::Slice(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void* held) { delete static_cast<BufferRef*>(held); }, new BufferRef(frame));
}

class GetStreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                            public std::enable_shared_from_this<GetStreamCall> {
 public:
  GetStreamCall(ServiceContext& service, grpc::CallbackServerContext* context)
      : service_(service),
        context_(context),
        deadline_(DeadlineOf(*context)),
        stream_deadline_(std::make_unique<StreamDeadline>(service.sessions.deadlines(), context, deadline_)) {
  }

  void Start(const grpc::ByteBuffer& request) {
    self_ = shared_from_this();
    Status status;
    const Status guarded = RunGuarded(*service_.log, "GetStream", [&] { status = Begin(request); });
    if (!guarded.ok()) status = guarded;
    if (status.ok()) return Pump();
    service_.metrics.CountRefusal(StatusCodeName(status.code()));
    End(status);
  }

 private:
  Status Begin(const grpc::ByteBuffer& bytes) {
    Result<std::unique_ptr<AdmittedCall>> admitted = service_.guard.Admit(*context_, Right::kRead);
    if (!admitted.ok()) return admitted.status();
    admitted_ = std::move(*admitted);
    v1::GetRequest request;
    grpc::ByteBuffer copy = bytes;  // the reader takes it, the slices are shared
    grpc::ProtoBufferReader reader(&copy);
    if (!reader.status().ok() || !request.ParseFromZeroCopyStream(&reader)) {
      return InvalidArgumentError("the request does not parse");
    }
    if (const Status joined = service_.guard.Join(*admitted_, request.session_id()); !joined.ok())
      return joined;
    session_ = admitted_->session;
    Result<std::vector<WantedObject>> wanted = WantedOf(request);
    if (!wanted.ok()) return wanted.status();
    if (service_.draining.load()) {
      for (WantedObject& want : *wanted) want.wrong = NotFoundError("draining");
    }
    results_.resize(wanted->size());
    feed_ = std::make_shared<FrameFeed>(session_->name_space, std::move(*wanted), deadline_, cancel_);
    return OkStatus();
  }

  void Pump() {
    turnstile_.Run([this] {
      bool more = false;
      const Status guarded = RunGuarded(*service_.log, "GetStream", [&] { more = Step(); });
      if (guarded.ok()) return more;
      End(guarded);
      return false;
    });
  }

  // Inside the turnstile. False: a write is on its way, a frame is awaited, or the stream is over.
  bool Step() {
    if (ended_ || writing_.load()) return false;
    if (cancel_->load() || broken_.load()) {
      End(CancelledError("the caller has gone"));
      return false;
    }
    if (held_) return WritePart();
    held_ = feed_->Take([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Pump();
    });
    if (held_) return BeginFrame();
    if (feed_->finished()) WriteResults();
    return false;
  }

  bool BeginFrame() {
    Status status = held_->fetched.status;
    v1::GetResult& result = results_[held_->index];
    result.set_frame_bytes(held_->fetched.frame_bytes);
    if (status.ok() && !session_->TakeBytes(held_->bytes)) {
      service_.metrics.CountRefusal("bytes_in_flight");
      status = ResourceExhaustedError("more bytes in flight than the tenant may have");
    }
    SetResult(status, result.mutable_result());
    if (!status.ok()) {
      held_.reset();
      return true;
    }
    charged_ = held_->bytes;
    ranges_ = feed_->wanted()[held_->index].ranges;
    if (ranges_.empty()) ranges_.push_back({0, held_->fetched.frame_bytes, 0});
    range_ = 0;
    return true;
  }

  bool WritePart() {
    if (range_ == ranges_.size()) {
      service_.metrics.AddBytes(ByteDirection::kOut, "streams", session_->tenant->name, charged_);
      GiveBack();
      return true;
    }
    FrameRange& left = ranges_[range_];
    PartMessage part;
    part.transfer = feed_->wanted()[held_->index].transfer;
    part.offset = left.frame_offset;
    part.data_bytes = std::min(left.length, kPartBytes);
    const BufferRef& frame = held_->fetched.frame;
    const grpc::Slice slices[] = {
        grpc::Slice(EncodePartPrefix(PartKind::kGet, part)),
        FrameSlice(frame, frame.frame().subspan(left.frame_offset, part.data_bytes))};
    buffer_ = grpc::ByteBuffer(slices, 2);
    left.frame_offset += part.data_bytes;
    left.length -= part.data_bytes;
    if (left.length == 0) ++range_;
    session_->Touch();
    writing_ = true;
    StartWrite(&buffer_);
    return false;
  }

  void WriteResults() {
    v1::GetPart last;
    for (v1::GetResult& result : results_) *last.add_results() = std::move(result);
    const grpc::Slice slice(last.SerializeAsString());
    buffer_ = grpc::ByteBuffer(&slice, 1);
    ended_ = true;
    Leave(OkStatus());
    StartWriteAndFinish(&buffer_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void GiveBack() {
    if (charged_ > 0) session_->GiveBytes(charged_);
    charged_ = 0;
    held_.reset();
  }
  void Leave(const Status& status) {
    GiveBack();
    service_.metrics.CountCall("GetStream", status.code());
    admitted_.reset();
  }
  void End(const Status& status) {
    if (ended_) return;
    ended_ = true;
    Leave(status);
    Finish(GrpcStatusOf(status));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) broken_ = true;
    writing_ = false;
    Pump();
  }
  void OnCancel() override {
    cancel_->store(true);
    Pump();
  }
  void OnDone() override {
    stream_deadline_.reset();
    const std::shared_ptr<GetStreamCall> last = std::move(self_);
  }

  ServiceContext& service_;
  grpc::CallbackServerContext* const context_;
  const TimePoint deadline_;
  std::unique_ptr<StreamDeadline> stream_deadline_;
  const CancelFlag cancel_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<GetStreamCall> self_;  // until OnDone
  std::unique_ptr<AdmittedCall> admitted_;
  SessionRef session_;
  std::shared_ptr<FrameFeed> feed_;
  std::vector<v1::GetResult> results_;
  Turnstile turnstile_;
  std::atomic<bool> writing_{false};
  std::atomic<bool> broken_{false};
  // Inside the turnstile only.
  bool ended_ = false;
  std::optional<FedFrame> held_;
  std::vector<FrameRange> ranges_;  // what is left of each
  size_t range_ = 0;
  uint64_t charged_ = 0;
  grpc::ByteBuffer buffer_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGetStream(ServiceContext& service,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request) {
  const auto call = std::make_shared<GetStreamCall>(service, context);
  call->Start(request);
  return call.get();
}

}  // namespace terrace::server
