#include "backends/remote/get_stream.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "backends/remote/wire_values.h"
#include "lib/wire/part_message.h"

namespace terrace::remote {
namespace {

// Copied and reported in steps that are hashed while they are in the cache.
constexpr size_t kStepBytes = size_t{256} << 10;
constexpr uint64_t kMaxPartBytes = uint64_t{8} << 20;

class GetStreamReactor final : public GetStreamCall,
                               public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GetStreamReactor(const v1::GetRequest& request, Options options)
      : options_(std::move(options)),
        context_(options_.channel->MakeContext(options_.limit)),
        parts_left_(options_.most_bytes / kFrameAlignment + static_cast<uint64_t>(options_.num_objects) + 1) {
    const std::string text = request.SerializeAsString();
    const grpc::Slice slice(text);
    request_ = grpc::ByteBuffer(&slice, 1);
  }

  void Begin(std::shared_ptr<GetStreamReactor> self) {
    self_ = std::move(self);
    options_.channel->generic->PrepareBidiStreamingCall(context_.get(), "/terrace.v1.Cache/GetStream", {},
                                                        this);
    StartWriteLast(&request_, {});
    StartRead(&part_);
    StartCall();
  }

  void Cancel() override { context_->TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (Status status = TakePart(); !status.ok()) {
      fault_ = std::move(status);
      context_->TryCancel();
      return;
    }
    part_.Clear();
    StartRead(&part_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<GetStreamReactor> self = std::move(self_);
    const bool is_taken = !context_->GetServerInitialMetadata().empty();
    Status ended = fault_.ok() ? FromGrpc(status) : fault_;
    if (ended.ok() && !has_results_) ended = DataLossError("a stream that ends without results");
    const auto on_end = std::move(options_.on_end);
    options_.on_results = nullptr;
    on_end(ended, is_taken);
  }

 private:
  Status TakePart() {
    if (has_results_) return DataLossError("a part after the results");
    if (parts_left_-- == 0) return DataLossError("more parts than the objects have pages");
    std::vector<grpc::Slice> slices;
    if (!part_.Dump(&slices).ok()) return InternalError("gRPC gave no bytes");
    std::vector<Bytes> bytes;
    bytes.reserve(slices.size());
    for (const grpc::Slice& slice : slices)
      bytes.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
    Result<PartMessage> part = DecodePart(PartKind::kGet, bytes, kMaxPartBytes);
    if (!part.ok()) return part.status();
    return part->has_results ? TakeResults(slices) : TakeData(*part);
  }

  Status TakeResults(const std::vector<grpc::Slice>& slices) {
    std::string text;
    for (const grpc::Slice& slice : slices)
      text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    v1::GetPart results;
    if (!results.ParseFromString(text)) return DataLossError("results that do not parse");
    if (results.results_size() != options_.num_objects)
      return DataLossError(std::to_string(results.results_size()) + " results of " +
                           std::to_string(options_.num_objects) + " objects");
    has_results_ = true;
    options_.on_results(results);
    return OkStatus();
  }

  Status TakeData(const PartMessage& part) {
    if (part.data_bytes == 0) return DataLossError("a part without data and results");
    received_bytes_ += part.data_bytes;
    if (received_bytes_ > options_.most_bytes) return DataLossError("more bytes than were asked for");
    Result<LandingTable::Reservation> place =
        options_.landings->Reserve(part.transfer, part.offset, part.data_bytes);
    // Of an operation that has ended meanwhile: dropped.
    if (!place.ok()) return place.status().code() == StatusCode::kNotFound ? OkStatus() : place.status();
    std::byte* to = place->memory().data();
    for (Bytes from : part.data) {
      while (!from.empty()) {
        const size_t n = std::min(kStepBytes, from.size());
        std::copy_n(from.data(), n, to);
        place->Landed(n);
        to += n;
        from = from.subspan(n);
      }
    }
    return OkStatus();
  }

  Options options_;
  const std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer part_;
  uint64_t parts_left_;
  uint64_t received_bytes_ = 0;
  bool has_results_ = false;
  Status fault_;
  std::shared_ptr<GetStreamReactor> self_;
};

}  // namespace

std::shared_ptr<GetStreamCall> GetStreamCall::Start(const v1::GetRequest& request, Options options) {
  auto call = std::make_shared<GetStreamReactor>(request, std::move(options));
  call->Begin(call);
  return call;
}

}  // namespace terrace::remote
