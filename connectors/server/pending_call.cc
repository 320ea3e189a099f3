#include "connectors/server/pending_call.h"

#include <grpcpp/server_context.h>

namespace terrace::server {

// Lives from the call's start to OnDone, which comes after Finish.
class PendingCall::Reactor final : public grpc::ServerUnaryReactor {
 public:
  explicit Reactor(CancelFlag cancel) : cancel_(std::move(cancel)) {}

  void OnCancelled(std::function<void()> callback) {
    {
      const std::lock_guard lock(mutex_);
      if (!cancelled_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }

 private:
  void OnCancel() override {
    cancel_->store(true);
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      callback.swap(callback_);
    }
    if (callback) callback();
  }
  void OnDone() override { delete this; }

  const CancelFlag cancel_;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::function<void()> callback_;
};

grpc::Status GrpcStatusOf(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

TimePoint DeadlineOf(const grpc::CallbackServerContext& context) {
  const TimePoint now = Clock::Real()->Now();
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return left < kMaxCallTime ? now + std::chrono::duration_cast<Duration>(left) : now + kMaxCallTime;
}

PendingCall::PendingCall(ServiceContext& service, grpc::CallbackServerContext* context, std::string method)
    : service_(service),
      method_(std::move(method)),
      context_(context),
      deadline_(DeadlineOf(*context)),
      reactor_(new Reactor(cancel_)) {}

PendingCall::~PendingCall() { End(InternalError("the call was dropped")); }

grpc::ServerUnaryReactor* PendingCall::reactor() const { return reactor_; }

bool PendingCall::Admit(Right right, const std::string* session_id) {
  Result<std::unique_ptr<AdmittedCall>> admitted = service_.guard.Admit(*context_, right);
  Status status = admitted.status();
  if (status.ok()) {
    admitted_ = std::move(*admitted);
    if (session_id) status = service_.guard.Join(*admitted_, *session_id);
  }
  if (status.ok()) return true;
  service_.metrics.CountRefusal(StatusCodeName(status.code()));
  End(status);
  return false;
}

void PendingCall::End(const Status& status) {
  if (ended_.exchange(true)) return;
  service_.metrics.CountCall(method_, status.code());
  // Before the answer: who has it may be counted on to be no longer in flight.
  admitted_.reset();
  reactor_->Finish(GrpcStatusOf(status));
}

void PendingCall::OnCancelled(std::function<void()> callback) { reactor_->OnCancelled(std::move(callback)); }

bool PendingCall::Guarded(const std::function<void()>& step) {
  const Status status = RunGuarded(*service_.log, method_, step);
  if (!status.ok()) End(status);
  return status.ok();
}

}  // namespace terrace::server
