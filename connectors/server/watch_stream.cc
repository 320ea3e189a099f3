#include <grpcpp/server_context.h>

#include <deque>

#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"
#include "connectors/server/turnstile.h"

namespace terrace::server {
namespace {

// What a reader that is slow holds back; the log holds the rest, as far as it reaches.
constexpr size_t kReadAhead = 64;

class WatchStream final : public grpc::ServerWriteReactor<v1::WatchEvent>,
                          public EventReader,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  explicit WatchStream(ServiceContext& service) : service_(service) {}

  void Start(const grpc::CallbackServerContext& context, const v1::WatchRequest& request) {
    self_ = shared_from_this();
    const Status status = Begin(context, request);
    if (!status.ok()) {
      service_.metrics.CountRefusal(StatusCodeName(status.code()));
      return End(status);
    }
    service_.watches.Add(shared_from_this());
    Poll();
  }
  void Poll() override {
    turnstile_.Run([this] {
      bool more = false;
      const Status guarded = RunGuarded(*service_.log, "Watch", [&] { more = Step(); });
      if (guarded.ok()) return more;
      End(guarded);
      return false;
    });
  }
  void Leave() override {
    leaving_ = true;
    Poll();
  }

 private:
  Status Begin(const grpc::CallbackServerContext& context, const v1::WatchRequest& request) {
    Result<std::unique_ptr<AdmittedCall>> admitted = service_.guard.Admit(context, Right::kRead);
    if (!admitted.ok()) return admitted.status();
    admitted_ = std::move(*admitted);
    if (const Status joined = service_.guard.Join(*admitted_, request.session_id()); !joined.ok())
      return joined;
    if (service_.draining.load()) return UnavailableError("the server is draining");
    session_ = admitted_->session;
    log_ = session_->name_space->events;
    if (!log_) return Status(StatusCode::kUnimplemented, "this server keeps no events");
    after_ = request.after() == 0 ? log_->last_sequence() : request.after();
    return OkStatus();
  }

  // Inside the turnstile. False: nothing is to be sent now.
  bool Step() {
    if (ended_ || writing_.load()) return false;
    if (cancelled_.load()) {
      End(CancelledError("the caller has gone"));
    } else if (leaving_.load()) {
      End(UnavailableError("the server is draining"));
    } else if (session_->ended()) {
      End(FailedPreconditionError("the session has ended"));
    } else {
      session_->Touch();
      Send();
    }
    return false;
  }

  void Send() {
    event_.Clear();
    if (ahead_.empty()) ReadMore();
    if (!ahead_.empty() && event_.kind() != v1::EVENT_KIND_MISSED) {
      SetEvent(ahead_.front(), &event_);
      after_ = ahead_.front().sequence;
      ahead_.pop_front();
    }
    if (event_.kind() == v1::EVENT_KIND_UNSPECIFIED) return;
    writing_ = true;
    StartWrite(&event_);
  }

  // Fills `ahead_`, and `event_` where some events are gone already.
  void ReadMore() {
    bool missed = false;
    for (NumberedEvent& event : log_->ReadAfter(after_, kReadAhead, missed))
      ahead_.push_back(std::move(event));
    const uint64_t last = log_->last_sequence();
    // A number that was never given is of another life of the server: that reader missed everything.
    if (!missed && (!ahead_.empty() || after_ <= last)) return;
    after_ = ahead_.empty() ? last : ahead_.front().sequence - 1;
    event_.set_kind(v1::EVENT_KIND_MISSED);
    event_.set_sequence(after_);
  }

  void End(const Status& status) {
    if (ended_) return;
    ended_ = true;
    service_.metrics.CountCall("Watch", status.code());
    admitted_.reset();
    Finish(GrpcStatusOf(status));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) cancelled_ = true;
    writing_ = false;
    Poll();
  }
  void OnCancel() override {
    cancelled_ = true;
    Poll();
  }
  void OnDone() override { const std::shared_ptr<WatchStream> last = std::move(self_); }

  ServiceContext& service_;
  std::shared_ptr<WatchStream> self_;  // until OnDone
  std::unique_ptr<AdmittedCall> admitted_;
  SessionRef session_;
  std::shared_ptr<EventLog> log_;
  Turnstile turnstile_;
  std::atomic<bool> writing_{false};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> leaving_{false};
  // Inside the turnstile only.
  bool ended_ = false;
  uint64_t after_ = 0;
  std::deque<NumberedEvent> ahead_;
  v1::WatchEvent event_;
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchEvent>* StartWatch(ServiceContext& service,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest& request) {
  const auto call = std::make_shared<WatchStream>(service);
  call->Start(*context, request);
  return call.get();
}

}  // namespace terrace::server
