// StreamDeadline: ends a stream whose caller named no deadline, so that nobody holds frames or a place among
// the tenant's calls for ever.
//
// Threads: every call from every thread.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <mutex>

#include "connectors/server/deadline_queue.h"

namespace terrace::server {

class StreamDeadline {
 public:
  StreamDeadline(std::shared_ptr<DeadlineQueue> queue, grpc::CallbackServerContext* context, TimePoint at)
      : queue_(std::move(queue)), held_(std::make_shared<Held>(context)) {
    handle_ = queue_->Add(at, [held = held_] {
      const std::lock_guard lock(held->mutex);
      if (held->context) held->context->TryCancel();
    });
  }
  // The stream is over, and its context with it.
  ~StreamDeadline() {
    queue_->Remove(handle_);
    const std::lock_guard lock(held_->mutex);
    held_->context = nullptr;
  }
  StreamDeadline(const StreamDeadline&) = delete;
  StreamDeadline& operator=(const StreamDeadline&) = delete;

 private:
  struct Held {
    explicit Held(grpc::CallbackServerContext* stream) : context(stream) {}
    std::mutex mutex;
    grpc::CallbackServerContext* context;
  };
  const std::shared_ptr<DeadlineQueue> queue_;
  const std::shared_ptr<Held> held_;
  DeadlineQueue::Handle handle_;
};

}  // namespace terrace::server
