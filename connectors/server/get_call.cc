#include <atomic>

#include "connectors/server/frame_feed.h"
#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"
#include "connectors/server/turnstile.h"

namespace terrace::server {
namespace {

// One Get: takes frame after frame and puts it on its way, over the bulk sockets or by telling where it lies
// in shared memory. Frames above the limit of bytes in flight wait for those before them.
class GetCall : public std::enable_shared_from_this<GetCall> {
 public:
  using GetExchange = Exchange<v1::GetRequest, v1::GetResponse>;

  GetCall(const GetExchange& exchange, std::vector<WantedObject> wanted)
      : service_(exchange.service),
        response_(exchange.response),
        call_(exchange.call),
        session_(call_->session()),
        shm_(session_->shm()),
        cancel_(call_->cancel()),
        results_(wanted.size()),
        feed_(std::make_shared<FrameFeed>(session_->name_space, std::move(wanted), call_->deadline(),
                                          cancel_)) {}

  void Pump() {
    turnstile_.Run([this] {
      bool more = false;
      if (call_) {
        const CallRef call = call_;
        if (!call->Guarded([&] { more = Step(); })) call_.reset();
      }
      return more;
    });
  }
  void Cancel() {
    for (const WantedObject& want : feed_->wanted()) session_->CancelBulk(want.transfer);
    Pump();
  }

 private:
  // False: something else has to happen first, or all is done.
  bool Step() {
    if (!held_) {
      // Nobody else holds the call while it waits for frames of a slower tier.
      held_ = feed_->Take([self = shared_from_this()] { self->Pump(); });
      if (!held_) {
        if (feed_->finished()) Finish();
        return false;
      }
    }
    if (!Deliver(*held_)) return false;
    held_.reset();
    return true;
  }

  // False: it has to wait.
  bool Deliver(FedFrame& fed) {
    v1::GetResult& result = results_[fed.index];
    Status status = fed.fetched.status;
    if (status.ok() && cancel_->load()) status = CancelledError("the caller has gone");
    result.set_frame_bytes(fed.fetched.frame_bytes);
    if (status.ok()) {
      if (shm_) {
        status = Place(fed, result);
      } else {
        bool waits = false;
        status = Send(fed, result, waits);
        if (waits) return false;
      }
    }
    SetResult(status, result.mutable_result());
    return true;
  }

  Status Place(const FedFrame& fed, v1::GetResult& result) {
    const auto place = session_->name_space->store->Locate(fed.fetched.frame);
    if (!place) return UnavailableError("the frame does not lie in shared memory: use GetStream");
    const uint64_t number = shm_->AddPlace(fed.fetched.frame, kMaxLease);
    if (number == 0) return ResourceExhaustedError("the session holds as many places as it may");
    result.mutable_place()->set_offset(place->frame_offset);
    result.mutable_place()->set_generation(place->generation);
    result.mutable_place()->set_place(number);
    result.mutable_place()->set_lease_ms(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(kMaxLease).count()));
    service_.metrics.AddBytes(ByteDirection::kOut, "shm", session_->tenant->name, fed.bytes);
    return OkStatus();
  }

  Status Send(const FedFrame& fed, v1::GetResult& result, bool& waits) {
    if (!session_->TakeBytes(fed.bytes)) {
      waits = num_sending_.load() > 0;
      if (!waits) service_.metrics.CountRefusal("bytes_in_flight");
      return ResourceExhaustedError("more bytes in flight than the tenant may have");
    }
    ++num_sending_;
    ++service_.bulk_sends;
    const WantedObject& want = feed_->wanted()[fed.index];
    // A whole frame is a range too: its buffer may be longer.
    std::vector<FrameRange> ranges = want.ranges;
    if (ranges.empty()) ranges.push_back({0, fed.fetched.frame_bytes, 0});
    const Status status = session_->SendBulk(
        want.transfer, fed.fetched.frame, std::move(ranges),
        [self = shared_from_this(), bytes = fed.bytes](const Status& sent) { self->Sent(bytes, sent); });
    if (status.ok()) {
      result.set_sent_bytes(fed.bytes);
    } else {
      session_->GiveBytes(fed.bytes);
      --num_sending_;
      --service_.bulk_sends;
    }
    return status;
  }

  void Sent(uint64_t bytes, const Status& status) {
    session_->GiveBytes(bytes);
    --num_sending_;
    --service_.bulk_sends;
    if (status.ok()) service_.metrics.AddBytes(ByteDirection::kOut, "bulk", session_->tenant->name, bytes);
    Pump();
  }

  // The bytes may be under way for long after the answer; the call is not.
  void Finish() {
    for (v1::GetResult& result : results_) *response_.add_results() = std::move(result);
    const CallRef call = std::move(call_);
    call->End(OkStatus());
  }

  ServiceContext& service_;
  v1::GetResponse& response_;
  CallRef call_;  // null after the answer; touched inside the turnstile only
  const SessionRef session_;
  const std::shared_ptr<ShmArea> shm_;
  const CancelFlag cancel_;
  Turnstile turnstile_;
  std::vector<v1::GetResult> results_;
  const std::shared_ptr<FrameFeed> feed_;
  std::optional<FedFrame> held_;
  std::atomic<size_t> num_sending_{0};
};

}  // namespace

void Get(const Exchange<v1::GetRequest, v1::GetResponse>& exchange) {
  Result<std::vector<WantedObject>> wanted = WantedOf(exchange.request);
  if (!wanted.ok()) return exchange.call->End(wanted.status());
  const SessionRef session = exchange.call->session();
  if (!session->shm() && !session->has_bulk()) {
    return exchange.call->End(
        FailedPreconditionError("the session has neither bulk sockets nor shared memory"));
  }
  if (exchange.service.draining.load()) {
    for (size_t i = 0; i < wanted->size(); ++i) {
      SetResult(NotFoundError("draining"), exchange.response.add_results()->mutable_result());
    }
    return exchange.call->End(OkStatus());
  }
  const auto get = std::make_shared<GetCall>(exchange, std::move(*wanted));
  exchange.call->OnCancelled([weak = std::weak_ptr(get)] {
    if (const auto cancelled = weak.lock()) cancelled->Cancel();
  });
  get->Pump();
}

}  // namespace terrace::server
