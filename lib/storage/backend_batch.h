// BackendBatch: one batch of a backend's public call between the caller and Do*. It holds the results of the
// operations that the checks refused, fills in what the backend answers for the others, and completes the
// caller exactly once, whatever an implementation does: a second answer is counted and dropped, a wrong
// number of answers or none at all (the callback was destroyed) is kInternal for each operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "terrace/backend.h"
#include "terrace/metrics.h"

namespace terrace {

inline Status& StatusOf(Status& status) { return status; }
inline Status& StatusOf(GetResult& result) { return result.status; }

template <typename Answer>
class BackendBatch {
 public:
  using Done = std::function<void(std::span<const Answer>)>;
  // Called once with all answers before the caller is.
  using Observe = std::function<void(std::span<const Answer>)>;

  // `answers`: refusals in their places. `passed`: the places that the backend answers for, in its order.
  // `violations` counts broken promises of the backend; may be null.
  BackendBatch(std::vector<Answer> answers, std::vector<size_t> passed, Done done, Observe observe,
               Counter* violations)
      : answers_(std::move(answers)),
        passed_(std::move(passed)),
        done_(std::move(done)),
        observe_(std::move(observe)),
        violations_(violations) {}
  BackendBatch(const BackendBatch&) = delete;
  BackendBatch& operator=(const BackendBatch&) = delete;
  ~BackendBatch() {
    if (!completed_) Fail("the backend dropped the completion");
  }

  void Complete(std::span<const Answer> from_backend) {
    if (from_backend.size() != passed_.size()) {
      Fail("the backend answered " + std::to_string(from_backend.size()) + " of " +
           std::to_string(passed_.size()) + " operations");
      return;
    }
    if (!Begin()) return;
    for (size_t i = 0; i < passed_.size(); ++i) answers_[passed_[i]] = from_backend[i];
    End();
  }

  // Every operation that was passed on fails with kInternal.
  void Fail(const std::string& why) {
    if (violations_) violations_->Add();
    if (!Begin()) return;
    for (const size_t place : passed_) StatusOf(answers_[place]) = InternalError(why);
    End();
  }

 private:
  bool Begin() {
    if (!completed_.exchange(true)) return true;
    if (violations_) violations_->Add();
    return false;
  }
  void End() {
    if (observe_) observe_(answers_);
    if (done_) done_(answers_);
    done_ = nullptr;  // what the caller captured goes now, not when the backend drops its callback
  }

  std::vector<Answer> answers_;
  const std::vector<size_t> passed_;
  Done done_;
  const Observe observe_;
  Counter* const violations_;
  std::atomic<bool> completed_{false};
};

}  // namespace terrace
