// ServerCall: one unary call on a link, from the session that it waits for to the answer: deadline, cancel,
// a session that the server forgot, and the one place where calls are tried again.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "backends/remote/server_link.h"
#include "backends/remote/wire_values.h"

namespace terrace::remote {

struct CallOptions {
  TimePoint deadline = kNoDeadline;
  // Sent again after UNAVAILABLE where the server did not begin to answer.
  bool is_idempotent = true;
  // Whether a deadline that passes speaks against the server: not where it waits for others.
  bool counts_deadline = true;
  // The session that the call belongs to: no other will do, and it is not waited for.
  SessionRef session;
};

template <typename Request, typename Response>
class ServerCall : public Cancellable, public std::enable_shared_from_this<ServerCall<Request, Response>> {
 public:
  using Stub = v1::Cache::StubInterface::async_interface;
  using Method = void (Stub::*)(grpc::ClientContext*, const Request*, Response*,
                                std::function<void(grpc::Status)>);
  // The response is the caller's to take. `session` is null where none was had.
  using Done = std::function<void(const Status&, const SessionRef& session, Response& response)>;

  // `done` once: on a thread of gRPC or the timers, or inside the call where the server is given up.
  static std::shared_ptr<ServerCall> Start(std::shared_ptr<ServerLink> link, Method method, Request request,
                                           CallOptions options, Done done) {
    auto call = std::shared_ptr<ServerCall>(
        new ServerCall(std::move(link), method, std::move(request), std::move(options), std::move(done)));
    call->ticket_ = call->link_->environment().operations->Enter(call);
    call->Attempt();
    return call;
  }

  void Cancel() override {
    std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    if (context_) context_->TryCancel();
  }

 private:
  ServerCall(std::shared_ptr<ServerLink> link, Method method, Request request, CallOptions options, Done done)
      : link_(std::move(link)),
        method_(method),
        request_(std::move(request)),
        options_(std::move(options)),
        done_(std::move(done)) {
    options_.deadline = link_->environment().DeadlineOf(options_.deadline);
  }

  void Attempt() {
    if (options_.session) return Send(options_.session);
    link_->WithSession(options_.deadline,
                       [self = this->shared_from_this()](const Status& status, const SessionRef& session) {
                         if (status.ok()) return self->Send(session);
                         self->OnEnd(status, false);
                       });
  }

  void Send(const SessionRef& session) {
    LinkEnvironment& environment = link_->environment();
    const Duration limit = options_.deadline - environment.clock->Now();
    if (limit <= Duration::zero())
      return Finish(DeadlineExceededError("no time was left to ask " + link_->name()));
    session_ = session;
    request_.set_session_id(session->id);
    response_.Clear();
    given_ = limit;
    const std::shared_ptr<LinkChannel> channel = link_->channel();
    std::unique_ptr<grpc::ClientContext> context = channel->MakeContext(limit);
    grpc::ClientContext* started = context.get();
    {
      std::lock_guard lock(mutex_);
      if (is_cancelled_) context->TryCancel();
      context_ = std::move(context);
    }
    link_->metrics().calls->Add();
    (channel->stub->async()->*method_)(
        started, &request_, &response_, [self = this->shared_from_this(), channel](grpc::Status status) {
          // Headers say that the server had begun to answer.
          const bool is_taken = !self->context_->GetServerInitialMetadata().empty();
          self->OnAnswer(FromGrpc(status), is_taken);
        });
  }

  void OnAnswer(const Status& status, bool is_taken) {
    if (status.code() != StatusCode::kDeadlineExceeded || options_.counts_deadline)
      link_->Record(status, given_);
    if (status.code() == StatusCode::kFailedPrecondition && !options_.session && !has_reopened_) {
      has_reopened_ = true;
      link_->Forget(session_);
      return Attempt();
    }
    OnEnd(status, is_taken);
  }

  void OnEnd(const Status& status, bool is_taken) {
    LinkEnvironment& environment = link_->environment();
    const bool may_retry = status.code() == StatusCode::kUnavailable && options_.is_idempotent && !is_taken &&
                           tries_ < environment.options.retries && !link_->is_down() && !is_cancelled();
    const Duration pause = may_retry ? RetryPause(tries_) : Duration::zero();
    if (!may_retry || environment.clock->Now() + pause >= options_.deadline) return Finish(status);
    ++tries_;
    link_->metrics().retries->Add();
    environment.timers->After(pause, [self = this->shared_from_this()] { self->Attempt(); });
  }

  bool is_cancelled() {
    std::lock_guard lock(mutex_);
    return is_cancelled_;
  }

  void Finish(const Status& status) {
    if (!status.ok()) link_->metrics().call_failures->Add();
    const Done done = std::move(done_);
    done(status, session_, response_);
    ticket_.reset();
  }

  const std::shared_ptr<ServerLink> link_;
  const Method method_;
  Request request_;
  Response response_;
  CallOptions options_;
  Done done_;
  OperationRegistry::Ticket ticket_;
  SessionRef session_;
  Duration given_{};
  uint32_t tries_ = 0;
  bool has_reopened_ = false;

  std::mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_;
  bool is_cancelled_ = false;
};

}  // namespace terrace::remote
