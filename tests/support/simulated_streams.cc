#include "tests/support/simulated_streams.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/host_launcher.h"

namespace terrace::simulated {

std::shared_ptr<Queue> StreamService::AddQueue(bool is_terraces) {
  auto queue = std::make_shared<Queue>(is_terraces);
  std::lock_guard lock(mutex_);
  // Streams that are gone: nobody else has them, and nobody can get them while the lock is held.
  std::erase_if(queues_, [](const auto& old) { return old.use_count() == 1 && old->operations.empty(); });
  queues_.push_back(queue);
  return queue;
}

std::shared_ptr<Queue> StreamService::FindQueue(const void* native) {
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Queue>& queue : queues_) {
    if (queue.get() == native) return queue;
  }
  return nullptr;
}

void* StreamService::HandOut(const std::shared_ptr<Mark>& mark) {
  std::lock_guard lock(mutex_);
  std::erase_if(handed_out_, [](const auto& entry) { return entry.second.expired(); });
  handed_out_[mark.get()] = mark;
  return mark.get();
}

std::shared_ptr<Mark> StreamService::FindMark(const void* native) {
  std::lock_guard lock(mutex_);
  const auto found = handed_out_.find(native);
  return found == handed_out_.end() ? nullptr : found->second.lock();
}

void StreamService::Classify(Queue& queue, CopyDirection direction) const {
  if (!queue.is_terraces || queue.is_classified) return;
  queue.is_classified = true;
  const bool is_to_host = direction == CopyDirection::kToHost;
  queue.lost->waits = is_to_host ? options_.ignore_waits_to_host : options_.ignore_waits_to_device;
  queue.lost->events = is_to_host ? options_.events_lie_to_host : options_.events_lie_to_device;
}

void StreamService::Enqueue(Queue& queue, Operation operation) {
  Status error;
  {
    std::lock_guard lock(mutex_);
    if (operation.MovesBytes()) Classify(queue, operation.direction);
    error = queue.error;
    if (error.ok()) {
      queue.operations.push_back(std::move(operation));
      WakeLocked();
    }
  }
  if (!error.ok() && operation.kind == Kind::kRecord) operation.mark->End(error);
}

Status StreamService::EnqueueCopy(Queue& queue, Operation operation) {
  {
    std::lock_guard lock(mutex_);
    const uint64_t number = ++num_operations_;
    if (refused_from_ != 0 && number >= refused_from_) {
      return UnavailableError("simulated: operation " + std::to_string(number) + " is refused");
    }
    operation.fails = number == failing_;
  }
  Enqueue(queue, std::move(operation));
  return OkStatus();
}

void StreamService::FailAfter(uint64_t operations) {
  std::lock_guard lock(mutex_);
  failing_ = operations == 0 ? 0 : num_operations_ + operations;
}

void StreamService::RefuseAfter(uint64_t operations) {
  std::lock_guard lock(mutex_);
  refused_from_ = operations == 0 ? 0 : num_operations_ + operations;
}

void StreamService::RefuseRecords(uint64_t records) {
  std::lock_guard lock(mutex_);
  refused_records_ = records;
}

Status StreamService::EnqueueRecord(Queue& queue, std::shared_ptr<Mark> mark) {
  {
    std::lock_guard lock(mutex_);
    if (refused_records_ > 0) {
      --refused_records_;
      return UnavailableError("simulated: the event is refused");
    }
  }
  Operation operation;
  operation.kind = Kind::kRecord;
  operation.mark = std::move(mark);
  Enqueue(queue, std::move(operation));
  return OkStatus();
}

void StreamService::Pause() {
  std::unique_lock lock(mutex_);
  is_paused_ = true;
  settled_.wait(lock, [this] { return !is_running_; });
}

void StreamService::Resume() {
  std::lock_guard lock(mutex_);
  is_paused_ = false;
  WakeLocked();
}

void StreamService::Synchronize() {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [this] {
    return !is_running_ && std::all_of(queues_.begin(), queues_.end(),
                                       [](const auto& queue) { return queue->operations.empty(); });
  });
}

void StreamService::Wake() {
  std::lock_guard lock(mutex_);
  WakeLocked();
}

void StreamService::WakeLocked() {
  if (is_asleep_) changed_.notify_one();
}

void StreamService::End() {
  std::lock_guard lock(mutex_);
  is_ending_ = true;
  is_paused_ = false;
  WakeLocked();
}

SimulatedDevice::Counters StreamService::counters() const {
  std::lock_guard lock(mutex_);
  SimulatedDevice::Counters counters = counters_;
  counters.registered_bytes = registered_.total_bytes();
  counters.allocated_bytes = allocated_.total_bytes();
  return counters;
}

std::shared_ptr<Queue> StreamService::PickLocked() {
  if (is_paused_) return nullptr;
  // The k-th candidate replaces the choice with a probability of 1/k: each has the same chance.
  const std::shared_ptr<Queue>* choice = nullptr;
  uint64_t num_candidates = 0;
  for (const std::shared_ptr<Queue>& queue : queues_) {
    if (queue->CanGoOn() && draw_.Below(++num_candidates) == 0) choice = &queue;
  }
  return choice == nullptr ? nullptr : *choice;
}

StreamService::Step StreamService::TakeLocked(Queue& queue) {
  size_t index = 0;
  if (options_.streams_are_unordered) {
    size_t num_free = 0;
    while (num_free < queue.operations.size() && queue.operations[num_free].MovesBytes()) ++num_free;
    if (num_free > 1) index = draw_.Below(num_free);
  }
  Operation& next = queue.operations[index];
  Step step;
  if (next.kind == Kind::kBatch && next.pieces.size() > 1) {
    CopyPiece& piece = next.pieces[draw_.Below(next.pieces.size())];
    step.is_last = false;
    step.fails = next.fails && draw_.Below(next.pieces.size()) == 0;
    step.operation.kind = Kind::kBatch;
    step.operation.direction = next.direction;
    step.operation.pieces = {piece};
    piece = next.pieces.back();
    next.pieces.pop_back();
    return step;
  }
  step.fails = next.fails;
  step.operation = std::move(next);
  queue.operations.erase(queue.operations.begin() + static_cast<ptrdiff_t>(index));
  return step;
}

void StreamService::CountLocked(const Step& step) {
  counters_.pieces += step.num_pieces;
  counters_.copied_bytes += step.bytes;
  counters_.unregistered += step.unregistered;
  if (!step.is_last) return;
  if (step.operation.kind == Kind::kCopy) ++counters_.copies;
  if (step.operation.kind == Kind::kBatch) ++counters_.batches;
  if (step.operation.kind == Kind::kKernel) ++counters_.kernels;
}

bool StreamService::IsKnown(const std::byte* memory, uint64_t bytes) const {
  return options_.refuses_registration || registered_.Contains(memory, bytes) ||
         allocated_.Contains(memory, bytes);
}

void StreamService::WriteGarbage(const CopyPiece& piece) {
  const uint64_t good = draw_.Below(piece.bytes + 1);
  const uint64_t bad = draw_.Below(piece.bytes - good + 1);
  CopyBytes(piece.dst, piece.src, good);
  if (bad == 0) return;
  const std::vector<std::byte> garbage(bad, static_cast<std::byte>(draw_.Below(256)));
  CopyBytes(piece.dst + good, garbage.data(), bad);
}

void StreamService::CopyBytes(std::byte* dst, const std::byte* src, uint64_t bytes) const {
  if (EventsLie()) return CopyUnseen(dst, src, bytes);
  std::memcpy(dst, src, bytes);
}

void StreamService::CopyPieceOf(Step& step, const CopyPiece& piece) {
  if (piece.bytes == 0) return;
  const std::byte* host = step.operation.direction == CopyDirection::kToHost ? piece.dst : piece.src;
  if (step.operation.kind != Kind::kKernel && !IsKnown(host, piece.bytes)) ++step.unregistered;
  if (step.fails) return WriteGarbage(piece);
  ++step.num_pieces;
  step.bytes += piece.bytes;
  CopyBytes(piece.dst, piece.src, piece.bytes);
}

void StreamService::PerformKernel(Step& step) {
  Operation& operation = step.operation;
  operation.kernel.planes = operation.planes.data();
  operation.kernel.blocks = operation.blocks.data();
  const PagedCopyArgs& args = operation.kernel;
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (const PlaneArgs& plane : operation.planes) {
    begin = std::min(begin, plane.payload_offset);
    end = std::max(end, plane.payload_offset + uint64_t{plane.num_heads} * plane.run_bytes * args.num_tokens);
  }
  if (begin < end && !IsKnown(args.payload + begin, end - begin)) ++step.unregistered;
  if (!step.fails && !EventsLie()) {
    step.bytes += PagedCopyBytes(args);
    EmulatedGrid grid;
    grid.num_blocks = static_cast<uint32_t>(1 + draw_.Below(4));
    grid.threads_per_block = 32;
    grid.seed = draw_.Next() | 1;
    RunEmulated(args, grid);
    return;
  }
  std::vector<CopyPiece> pieces;
  ForEachCopyPiece(args, [&pieces](const CopyPiece& piece) { pieces.push_back(piece); });
  const size_t num_good = step.fails && !pieces.empty() ? draw_.Below(pieces.size()) : pieces.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::swap(pieces[i], pieces[i + draw_.Below(pieces.size() - i)]);
    if (i == num_good) return WriteGarbage(pieces[i]);
    CopyBytes(pieces[i].dst, pieces[i].src, pieces[i].bytes);
    step.bytes += pieces[i].bytes;
  }
}

void StreamService::Perform(Step& step) {
  switch (step.operation.kind) {
    case Kind::kRecord:
      step.operation.mark->End(OkStatus());
      break;
    case Kind::kWait:
      break;
    case Kind::kCopy:
    case Kind::kBatch:
      for (const CopyPiece& piece : step.operation.pieces) CopyPieceOf(step, piece);
      break;
    case Kind::kKernel:
      PerformKernel(step);
      break;
    case Kind::kWork:
      step.operation.work();
      step.operation.work = nullptr;  // what it holds may be this device's last reference
      break;
  }
}

// The stream ends in an error: what it had to do is dropped, its events say so.
void StreamService::Break(Queue& queue, std::unique_lock<std::mutex>& lock) {
  const Status error = InternalError("simulated: an operation of the stream failed");
  queue.error = error;
  std::deque<Operation> dropped;
  dropped.swap(queue.operations);
  lock.unlock();
  for (Operation& operation : dropped) {
    if (operation.kind == Kind::kRecord) operation.mark->End(error);
  }
  dropped.clear();
  lock.lock();
}

void StreamService::Run() {
  const uint64_t delay = std::min<uint64_t>(options_.delay_of_256, 255);
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Queue> queue = PickLocked();
    if (queue == nullptr) {
      settled_.notify_all();
      if (is_ending_ && std::all_of(queues_.begin(), queues_.end(),
                                    [](const auto& any) { return any->operations.empty(); })) {
        return;
      }
      is_asleep_ = true;
      changed_.wait(lock);
      is_asleep_ = false;
      continue;
    }
    if (draw_.Below(256) < delay) continue;
    Step step = TakeLocked(*queue);
    is_running_ = true;
    lock.unlock();
    Perform(step);
    lock.lock();
    CountLocked(step);
    if (step.fails) Break(*queue, lock);
    is_running_ = false;
    if (is_paused_) settled_.notify_all();
  }
}

}  // namespace terrace::simulated
