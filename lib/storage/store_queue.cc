#include <utility>

#include "lib/storage/store_run.h"

namespace terrace {

void StoreQueue::Begin(std::shared_ptr<StoreRun> run) {
  {
    std::lock_guard lock(mutex_);
    runs_.push_back(std::move(run));
  }
  Pump();
}

void StoreQueue::Pump() {
  // The next one's first chunk may hang on this one's last, which is known from when it is enqueued.
  while (const std::shared_ptr<StoreRun> run = NextToEnqueue()) {
    bool is_enqueued = true;
    try {
      is_enqueued = run->Enqueue(*this);
    } catch (...) {  // must not stop the others
      exceptions_->Add();
      run->End(InternalError("the store threw"));
      run->Settle();
    }
    if (!is_enqueued) break;
    NoteEnqueued(*run);
  }
  while (const std::shared_ptr<StoreRun> run = First()) {
    run->PublishReady();
    if (!run->IsOver()) break;
    PopFirst(*run);
  }
}

std::shared_ptr<StoreRun> StoreQueue::NextToEnqueue() const {
  std::lock_guard lock(mutex_);
  return num_enqueued_ < runs_.size() ? runs_[num_enqueued_] : nullptr;
}

std::shared_ptr<StoreRun> StoreQueue::First() const {
  std::lock_guard lock(mutex_);
  return runs_.empty() ? nullptr : runs_.front();
}

bool StoreQueue::IsFirst(const StoreRun& run) const {
  std::lock_guard lock(mutex_);
  return !runs_.empty() && runs_.front().get() == &run;
}

// Another thread may have dropped all of them meanwhile.
void StoreQueue::NoteEnqueued(const StoreRun& run) {
  std::lock_guard lock(mutex_);
  if (num_enqueued_ < runs_.size() && runs_[num_enqueued_].get() == &run) ++num_enqueued_;
}

void StoreQueue::PopFirst(const StoreRun& run) {
  std::lock_guard lock(mutex_);
  if (runs_.empty() || runs_.front().get() != &run) return;
  runs_.pop_front();  // not its end: the caller holds it
  --num_enqueued_;
}

void StoreQueue::DropAll() {
  std::deque<std::shared_ptr<StoreRun>> dropped;  // ends outside the lock
  std::lock_guard lock(mutex_);
  num_enqueued_ = 0;
  dropped.swap(runs_);
}

bool StoreQueue::HasRoom(uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  return copies_in_flight_ == 0 ||
         (copies_in_flight_ < kMaxCopies && bytes_in_flight_ + bytes <= window_bytes_);
}

void StoreQueue::Take(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  bytes_in_flight_ += bytes;
  ++copies_in_flight_;
}

void StoreQueue::GiveBack(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  bytes_in_flight_ -= bytes;
  --copies_in_flight_;
}

}  // namespace terrace
