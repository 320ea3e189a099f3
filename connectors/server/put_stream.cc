#include <grpcpp/server_context.h>

#include <algorithm>
#include <cstring>

#include "connectors/server/service_calls.h"
#include "connectors/server/stream_deadline.h"
#include "lib/wire/part_message.h"

namespace terrace::server {
namespace {

// So much is copied between two reports: it is hashed while it is in the cache.
constexpr size_t kStepBytes = size_t{256} << 10;

class PutStreamCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                            public std::enable_shared_from_this<PutStreamCall> {
 public:
  PutStreamCall(ServiceContext& service, grpc::CallbackServerContext* context)
      : service_(service),
        context_(context),
        stream_deadline_(
            std::make_unique<StreamDeadline>(service.sessions.deadlines(), context, DeadlineOf(*context))) {}

  void Start(grpc::ByteBuffer* response) {
    self_ = shared_from_this();
    const grpc::Slice empty;  // PutStreamResponse has no fields
    *response = grpc::ByteBuffer(&empty, 1);
    Result<std::unique_ptr<AdmittedCall>> admitted = service_.guard.Admit(*context_, Right::kWrite);
    if (!admitted.ok()) {
      service_.metrics.CountRefusal(StatusCodeName(admitted.status().code()));
      return End(admitted.status());
    }
    admitted_ = std::move(*admitted);
    StartRead(&buffer_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      const bool cancelled = cancelled_.load() || context_->IsCancelled();
      return End(cancelled ? CancelledError("the caller has gone") : OkStatus());
    }
    Status status;
    const Status guarded = RunGuarded(*service_.log, "PutStream", [&] { status = TakePart(); });
    if (!guarded.ok()) status = guarded;
    buffer_.Clear();
    if (!status.ok()) return End(status);
    StartRead(&buffer_);
  }

  Status TakePart() {
    std::vector<grpc::Slice> slices;
    if (!buffer_.Dump(&slices).ok()) return InternalError("gRPC gives no slices");
    std::vector<Bytes> bytes;
    for (const grpc::Slice& slice : slices) {
      bytes.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    }
    const Result<PartMessage> part = DecodePart(PartKind::kPut, bytes, service_.options.max_message_bytes);
    if (!part.ok()) return InvalidArgumentError(std::string(part.status().message()));
    if (!session_ || !part->session_id.empty()) {
      if (const Status joined = service_.guard.Join(*admitted_, part->session_id); !joined.ok())
        return joined;
      if (session_ && session_ != admitted_->session) {
        return InvalidArgumentError("session_id: another one than in the first part");
      }
      session_ = admitted_->session;
    }
    session_->Touch();
    return part->data_bytes == 0 ? OkStatus() : Land(*part);
  }

  Status Land(const PartMessage& part) {
    Result<LandingTable::Reservation> reserved =
        session_->landings->Reserve(part.transfer, part.offset, part.data_bytes);
    if (reserved.status().code() == StatusCode::kNotFound) return OkStatus();  // dropped meanwhile
    if (!reserved.ok()) {
      session_->landings->Fail(part.transfer, reserved.status());
      return InvalidArgumentError("a part does not lie where its transfer lacks bytes: " +
                                  std::string(reserved.status().message()));
    }
    if (begun_.insert(part.transfer).second && begun_.size() > Session::kMaxTransfers) begun_.clear();
    session_->NoteStreamed(part.transfer, part.data_bytes);
    std::byte* to = reserved->memory().data();
    size_t unreported = 0;
    for (const Bytes& slice : part.data) {
      for (size_t at = 0; at < slice.size();) {
        const size_t n = std::min(slice.size() - at, kStepBytes - unreported);
        std::memcpy(to, slice.data() + at, n);
        to += n;
        at += n;
        unreported += n;
        if (unreported == kStepBytes) {
          reserved->Landed(unreported);
          unreported = 0;
        }
      }
    }
    if (unreported > 0) reserved->Landed(unreported);
    return OkStatus();
  }

  void End(const Status& status) {
    // What was on this stream is lost, and comes on no other.
    if (!status.ok() && session_) {
      for (const uint64_t transfer : begun_) session_->landings->Fail(transfer, status);
    }
    service_.metrics.CountCall("PutStream", status.code());
    admitted_.reset();
    Finish(GrpcStatusOf(status));
  }

  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    stream_deadline_.reset();
    const std::shared_ptr<PutStreamCall> last = std::move(self_);
  }

  ServiceContext& service_;
  grpc::CallbackServerContext* const context_;
  std::unique_ptr<StreamDeadline> stream_deadline_;
  std::shared_ptr<PutStreamCall> self_;  // until OnDone
  std::unique_ptr<AdmittedCall> admitted_;
  SessionRef session_;
  absl::flat_hash_set<uint64_t> begun_;  // transfers that this stream brought bytes of
  std::atomic<bool> cancelled_{false};
  grpc::ByteBuffer buffer_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartPutStream(ServiceContext& service,
                                                          grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response) {
  const auto call = std::make_shared<PutStreamCall>(service, context);
  call->Start(response);
  return call.get();
}

}  // namespace terrace::server
