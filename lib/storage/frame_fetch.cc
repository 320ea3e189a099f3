// Frames that are asked for: borrowed from the host tier, or read from a slower one, verified and promoted.
#include "lib/storage/frame_fetch.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace terrace {

FrameStore::State::Batch::Batch(std::shared_ptr<State> s, std::vector<FetchOp> ops, FetchDone d)
    : store(std::move(s)),
      fetched(ops.size()),
      results(ops.size()),
      done(std::move(d)),
      left(ops.size() + 1) {
  const TimePoint latest = store->core->DeadlineIn(store->core->options_.io_deadline);
  for (size_t i = 0; i < ops.size(); ++i) {
    fetched[i].deadline = std::min(ops[i].deadline, latest);
    fetched[i].op = std::move(ops[i]);
  }
}

void FrameStore::State::Batch::Run() {
  std::vector<size_t> reads;
  for (size_t i = 0; i < fetched.size(); ++i) {
    if (Begin(i)) reads.push_back(i);
  }
  Send(reads);
  if (left.fetch_sub(1) == 1) done(std::move(results));
}

void FrameStore::State::Batch::Complete(size_t i, Status status) {
  results[i].status = std::move(status);
  fetched[i].buffer.Reset();
  fetched[i].verifier.reset();
  if (left.fetch_sub(1) == 1) done(std::move(results));
}

// False: no tier from `from_tier` on has it.
bool FrameStore::State::Batch::Find(Fetched& one) {
  ManagerCore& core = *store->core;
  std::lock_guard lock(core.mutex_);
  const IndexEntry* entry = core.index_->Find(one.op.id.key);
  const ObjectPresence* object = entry != nullptr ? entry->Find(one.op.id.part) : nullptr;
  if (object == nullptr || object->tiers == 0) return false;
  one.root = core.roots_.At(entry->root_number);
  if (!one.root) return false;  // nothing says what its frames are
  one.item.id = one.op.id;
  // Where its tokens end is not known of every entry, and does not matter here.
  one.item.payload_tokens = {entry->first_token, entry->first_token};
  one.item.root = one.root.get();
  one.item.meta = {object->frame_bytes(), object->payload_bytes, object->division};
  one.source = core.FindSourceLocked(one.item, one.from_tier);
  return one.source.tier != ManagerCore::kNoTier;
}

bool FrameStore::State::Batch::Begin(size_t i) {
  Fetched& one = fetched[i];
  if (!Find(one)) {
    const bool is_miss = one.failure.ok() || one.failure.code() == StatusCode::kDataLoss;
    Complete(i, is_miss ? NotFoundError("the object is not stored") : one.failure);
    return false;
  }
  results[i].frame_bytes = one.item.meta.frame_bytes;
  if (one.source.borrowed) {
    held_bytes += one.source.borrowed.size_bytes();
    results[i].frame = std::move(one.source.borrowed);
    Complete(i, OkStatus());
    return false;
  }
  if (TakeRoom(one)) return true;
  if (MayWait(one)) {
    std::shared_ptr<RoomQueue> queue;
    {
      std::lock_guard lock(store->mutex);
      if (!store->room_queue) store->room_queue = std::make_shared<RoomQueue>(store->core);
      queue = store->room_queue;
    }
    if (queue->Add(shared_from_this(), i)) return false;
  }
  Complete(i, ResourceExhaustedError("no room in the pool for a frame of " +
                                     std::to_string(one.item.meta.frame_bytes) + " bytes"));
  return false;
}

bool FrameStore::State::Batch::TakeRoom(Fetched& one) {
  const uint64_t bytes = kTierPageBytes + one.item.meta.frame_bytes;
  Result<BufferRef> buffer = store->core->pool_->Allocate(bytes, BufferUse::kLoad);
  if (!buffer.ok()) return false;
  held_bytes += bytes;
  one.buffer = *std::move(buffer);
  one.verifier = std::make_shared<PieceVerifier>(one.buffer.frame());
  return true;
}

// What a batch holds is given back when all of it is done: one that has half the pool would wait for itself.
bool FrameStore::State::Batch::MayWait(const Fetched& one) const {
  const uint64_t bytes = kTierPageBytes + one.item.meta.frame_bytes;
  return bytes <= store->core->pool_->largest_buffer_bytes() &&
         held_bytes.load() + bytes <= store->core->pool_->size_bytes() / 2;
}

void FrameStore::State::Batch::Send(const std::vector<size_t>& reads) {
  ManagerCore& core = *store->core;
  for (size_t t = 0; t < core.tiers_.size(); ++t) {
    std::vector<GetOp> ops;
    auto sent = std::make_shared<std::vector<size_t>>();
    for (const size_t i : reads) {
      Fetched& one = fetched[i];
      if (one.source.tier != t) continue;
      GetOp op;
      op.id = one.op.id;
      op.dst = one.buffer;
      op.deadline = one.deadline;
      op.cancel = one.op.cancel;
      op.on_bytes = [verifier = one.verifier](uint64_t offset, uint64_t n) {
        verifier->MarkPresent(offset, n);
      };
      ops.push_back(std::move(op));
      sent->push_back(i);
    }
    if (ops.empty()) continue;
    core.tiers_[t].backend->Get(std::move(ops),
                                [self = shared_from_this(), sent](std::span<const GetResult> got) {
                                  std::vector<size_t> again;
                                  for (size_t k = 0; k < sent->size(); ++k)
                                    self->OnRead((*sent)[k], got[k], again);
                                  self->Send(again);
                                });
  }
}

void FrameStore::State::Batch::OnRead(size_t i, const GetResult& result, std::vector<size_t>& again) {
  ManagerCore& core = *store->core;
  Fetched& one = fetched[i];
  const StatusCode code = result.status.code();
  // The device may keep the buffer for a while; the loads' share of the pool is free of it.
  if (code == StatusCode::kCancelled || code == StatusCode::kDeadlineExceeded)
    core.pool_->MarkOrphan(one.buffer);
  Status status = result.status;
  if (status.ok()) {
    const Result<FrameHeader> header = one.verifier->Finish(one.item.meta.frame_bytes);
    status = header.ok() ? ManagerCore::CheckIdentity(*header, one.item) : header.status();
  }
  core.FinishRead(one.item, one.source.tier, one.buffer, status, one.source.erasures);
  if (status.ok()) {
    results[i].frame = one.buffer;
    return Complete(i, OkStatus());
  }
  held_bytes -= kTierPageBytes + one.item.meta.frame_bytes;
  one.buffer.Reset();
  const bool is_over = (one.op.cancel && one.op.cancel->load()) || core.clock_->Now() >= one.deadline;
  if (is_over) return Complete(i, std::move(status));
  one.failure = code == StatusCode::kNotFound ? OkStatus() : std::move(status);
  one.from_tier = one.source.tier + 1;
  if (Begin(i)) again.push_back(i);
}

FrameStore::State::RoomQueue::~RoomQueue() {
  if (!thread_.joinable()) return;
  // The thread keeps the queue until its end: it may be the last to let go.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool FrameStore::State::RoomQueue::Add(const std::shared_ptr<Batch>& batch, size_t i) {
  std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) return false;
  if (!is_running_) {
    if (thread_.joinable()) thread_.join();  // past its last look at the queue
    try {
      thread_ = std::thread([self = shared_from_this()] { self->Run(); });
    } catch (const std::system_error&) {
      return false;
    }
    is_running_ = true;
  }
  waiting_.push_back({batch, i});
  is_woken_ = true;
  wake_.notify_one();
  return true;
}

void FrameStore::State::RoomQueue::AskForNotice() {
  {
    std::lock_guard lock(mutex_);
    if (notice_ != 0) return;
  }
  const uint64_t notice = core_->pool_->NotifyOnRoom([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    std::lock_guard lock(self->mutex_);
    self->notice_ = 0;
    self->is_woken_ = true;
    self->wake_.notify_one();
  });
  std::lock_guard lock(mutex_);
  // Called meanwhile: it is asked for once more in the next round.
  if (!is_woken_) notice_ = notice;
}

void FrameStore::State::RoomQueue::Run() {
  while (true) {
    std::deque<Waiting> waiting;
    {
      std::lock_guard lock(mutex_);
      is_woken_ = false;
      waiting.swap(waiting_);
    }
    AskForNotice();  // before the look, so that no room is missed
    waiting = TryAll(std::move(waiting));
    std::unique_lock lock(mutex_);
    waiting_.insert(waiting_.begin(), std::make_move_iterator(waiting.begin()),
                    std::make_move_iterator(waiting.end()));
    waiting.clear();
    if (waiting_.empty()) {
      is_running_ = false;
      const uint64_t notice = std::exchange(notice_, 0);
      lock.unlock();
      if (notice != 0) core_->pool_->CancelNotify(notice);
      return;
    }
    wake_.wait_for(lock, kPollTime, [&] { return is_woken_; });
  }
}

std::deque<FrameStore::State::RoomQueue::Waiting> FrameStore::State::RoomQueue::TryAll(
    std::deque<Waiting> waiting) {
  std::deque<Waiting> rest;
  const TimePoint now = core_->clock_->Now();
  for (Waiting& one : waiting) {
    Fetched& fetched = one.batch->fetched[one.i];
    if (!core_->CheckOpen().ok()) {
      one.batch->Complete(one.i, core_->CheckOpen());
    } else if (fetched.op.cancel && fetched.op.cancel->load()) {
      one.batch->Complete(one.i, CancelledError("the fetch was cancelled"));
    } else if (one.batch->TakeRoom(fetched)) {
      one.batch->Send({one.i});
    } else if (now >= fetched.deadline) {
      one.batch->Complete(one.i, ResourceExhaustedError("no room in the pool until the deadline"));
    } else {
      rest.push_back(std::move(one));
    }
  }
  return rest;
}

void FrameStore::State::Fetch(std::vector<FetchOp> ops, FetchDone done) {
  if (Status status = CheckUsable(); !status.ok()) {
    std::vector<FetchResult> results(ops.size());
    for (FetchResult& result : results) result.status = status;
    return done(std::move(results));
  }
  std::make_shared<Batch>(shared_from_this(), std::move(ops), std::move(done))->Run();
}

}  // namespace terrace
