#include "backends/remote/operation_registry.h"

#include <vector>

#include "lib/base/wait_until.h"

namespace terrace::remote {

OperationRegistry::Ticket OperationRegistry::Enter(std::weak_ptr<Cancellable> operation) {
  uint64_t number;
  {
    std::lock_guard lock(mutex_);
    number = next_number_++;
    operations_.emplace(number, std::move(operation));
  }
  return Ticket(nullptr, [self = shared_from_this(), number](void*) { self->Leave(number); });
}

void OperationRegistry::CancelAll() {
  std::vector<std::shared_ptr<Cancellable>> operations;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, weak] : operations_) {
      if (auto operation = weak.lock()) operations.push_back(std::move(operation));
    }
  }
  for (const auto& operation : operations) operation->Cancel();
}

bool OperationRegistry::AwaitNone(TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  const auto none = [&] { return operations_.empty(); };
  return WaitUntil(left_, lock, deadline, none);
}

size_t OperationRegistry::size() const {
  std::lock_guard lock(mutex_);
  return operations_.size();
}

void OperationRegistry::Leave(uint64_t number) {
  std::lock_guard lock(mutex_);
  operations_.erase(number);
  left_.notify_all();
}

}  // namespace terrace::remote
