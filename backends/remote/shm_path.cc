#include "backends/remote/shm_path.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "lib/memory/stream_copy.h"

namespace terrace::remote {
namespace {

// What was copied is hashed while it is in the cache.
constexpr uint64_t kWatchedStepBytes = 256 * 1024;
constexpr uint64_t kStreamedStepBytes = uint64_t{4} << 20;
// Places are given back when nothing is left to copy, at the latest so many at once.
constexpr size_t kMaxReleaseBatch = 64;
// Somebody waits for a get; a put that waits gets its turn all the same.
constexpr uint32_t kMaxGetsInRow = 4;

struct GetCopy {
  uint64_t transfer = 0;
  uint64_t frame_offset = 0;
  uint64_t frame_bytes = 0;
  uint64_t generation = 0;
  uint64_t place = 0;
};

struct PutCopy {
  uint64_t transfer = 0;
  uint64_t staging_offset = 0;
  BufferRef frame;
  uint64_t frame_bytes = 0;
  std::function<void(const Status&)> sent;
};

Status MissedPlace() { return NotFoundError("the frame's memory was given to another one"); }

}  // namespace

struct ShmPath::State {
  explicit State(ShmPathOptions given) : options(std::move(given)) {}

  // True: queued; else the job is still the caller's.
  template <typename Job>
  bool Enqueue(std::deque<Job>& queue, Job& job) {
    {
      const std::lock_guard lock(mutex);
      if (closed || gets.size() + puts.size() >= options.max_queued) return false;
      queue.push_back(std::move(job));
    }
    work.notify_one();
    return true;
  }

  void GiveBack(uint64_t place) {
    if (place == 0) return;
    {
      const std::lock_guard lock(mutex);
      if (closed) return;  // the session ends with the path, and with it its places
      released.push_back(place);
    }
    work.notify_one();
  }

  void Run();
  // With the lock held, which is left meanwhile: whether there was something to do.
  bool RunOne(std::unique_lock<std::mutex>& lock);
  void RunGet(const GetCopy& job);
  // False: nothing more is to be copied for the transfer, which was told why.
  bool CopyRange(const GetCopy& job, Bytes frame, const FrameRange& range, bool is_watched);
  Status RunPut(const PutCopy& job);

  const ShmPathOptions options;
  std::mutex mutex;
  std::condition_variable work;
  std::deque<GetCopy> gets;
  std::deque<PutCopy> puts;
  std::vector<uint64_t> released;
  uint32_t gets_in_row = 0;
  bool closed = false;
  std::vector<std::thread> threads;  // of the path's owner
};

void ShmPath::State::Run() {
  std::unique_lock lock(mutex);
  while (true) {
    if (RunOne(lock)) continue;
    if (closed) return;
    work.wait(lock);
  }
}

bool ShmPath::State::RunOne(std::unique_lock<std::mutex>& lock) {
  const bool is_idle = gets.empty() && puts.empty();
  if (released.size() >= kMaxReleaseBatch || (is_idle && !released.empty())) {
    std::vector<uint64_t> places = std::exchange(released, {});
    lock.unlock();
    if (options.release_places) options.release_places(std::move(places));
  } else if (!gets.empty() && (puts.empty() || gets_in_row < kMaxGetsInRow)) {
    ++gets_in_row;
    const GetCopy job = gets.front();
    gets.pop_front();
    lock.unlock();
    RunGet(job);
  } else if (!puts.empty()) {
    gets_in_row = 0;
    PutCopy job = std::move(puts.front());
    puts.pop_front();
    lock.unlock();
    const Status copied = RunPut(job);
    job.frame.Reset();
    job.sent(copied);
    job.sent = nullptr;
  } else {
    return false;
  }
  lock.lock();
  return true;
}

void ShmPath::State::RunGet(const GetCopy& job) {
  // The transfer may have ended meanwhile; its place is given back all the same.
  if (const auto awaited = options.landings->AwaitedOf(job.transfer)) {
    const Result<Bytes> frame = options.mapping->FrameAt(job.frame_offset, job.frame_bytes);
    if (!frame.ok()) {
      options.landings->Fail(job.transfer, frame.status());
    } else if (options.mapping->GenerationBefore(job.frame_offset) != job.generation) {
      options.landings->Fail(job.transfer, MissedPlace());
    } else {
      for (const FrameRange& range : awaited->ranges) {
        if (!CopyRange(job, *frame, range, awaited->is_watched)) break;
      }
    }
  }
  GiveBack(job.place);
}

bool ShmPath::State::CopyRange(const GetCopy& job, Bytes frame, const FrameRange& range, bool is_watched) {
  if (range.frame_offset >= frame.size()) {
    options.landings->Fail(job.transfer,
                           DataLossError("shm: the frame is shorter than what was asked of it"));
    return false;
  }
  // What was asked of a whole frame is as long as its destination.
  const uint64_t length = std::min<uint64_t>(range.length, frame.size() - range.frame_offset);
  Result<LandingTable::Reservation> landing =
      options.landings->Reserve(job.transfer, range.frame_offset, length);
  if (!landing.ok()) return false;  // it has ended
  const MutableBytes target = landing->memory();
  const std::byte* source = frame.data() + range.frame_offset;
  const uint64_t step = is_watched ? kWatchedStepBytes : kStreamedStepBytes;
  for (uint64_t done = 0; done < length; done += step) {
    const uint64_t n = std::min(step, length - done);
    if (is_watched) {
      std::memcpy(target.data() + done, source + done, n);
    } else {
      StreamCopy(target.data() + done, source + done, n);
    }
    if (options.mapping->GenerationAfter(job.frame_offset) != job.generation) {
      options.landings->Fail(job.transfer, MissedPlace());
      return false;
    }
    landing->Landed(n);
  }
  return true;
}

Status ShmPath::State::RunPut(const PutCopy& job) {
  const Result<MutableBytes> staging = options.mapping->StagingAt(job.staging_offset, job.frame_bytes);
  if (!staging.ok()) return staging.status();
  StreamCopy(staging->data(), job.frame.frame().data(), job.frame_bytes);
  return OkStatus();
}

std::shared_ptr<ShmPath> ShmPath::Start(ShmPathOptions options) {
  const uint32_t num_threads = std::clamp(options.threads, 1U, 2U);
  auto state = std::make_shared<State>(std::move(options));
  for (uint32_t i = 0; i < num_threads; ++i) {
    std::thread& thread = state->threads.emplace_back([state] { state->Run(); });
    pthread_setname_np(thread.native_handle(), "terrace-shm");
  }
  return std::shared_ptr<ShmPath>(new ShmPath(std::move(state)));
}

ShmPath::ShmPath(std::shared_ptr<State> state) : state_(std::move(state)) {}

ShmPath::~ShmPath() { Close(); }

Status ShmPath::status() const {
  return state_->options.mapping->connected() ? OkStatus()
                                              : UnavailableError("the server ended the shared memory");
}

void ShmPath::OnGetResult(uint64_t transfer, const v1::GetResult& result) {
  if (result.result().code() != v1::RESULT_CODE_OK) return;
  if (!result.has_place()) {
    state_->options.landings->Fail(transfer, DataLossError("shm: an answer without place"));
    return;
  }
  GetCopy job{.transfer = transfer,
              .frame_offset = result.place().offset(),
              .frame_bytes = result.frame_bytes(),
              .generation = result.place().generation(),
              .place = result.place().place()};
  if (state_->Enqueue(state_->gets, job)) return;
  state_->options.landings->Fail(transfer, ResourceExhaustedError("shm: too many copies wait, or closed"));
  state_->GiveBack(job.place);
}

void ShmPath::SendPut(const v1::PutNeed& need, BufferRef frame, uint64_t frame_bytes,
                      std::function<void(const Status&)> sent) {
  if (!need.staged() && state_->options.unstaged) {
    return state_->options.unstaged->SendPut(need, std::move(frame), frame_bytes, std::move(sent));
  }
  PutCopy job{.transfer = need.transfer(),
              .staging_offset = need.staging_offset(),
              .frame = std::move(frame),
              .frame_bytes = frame_bytes,
              .sent = std::move(sent)};
  if (need.staged() && state_->Enqueue(state_->puts, job)) return;
  job.frame.Reset();
  job.sent(ResourceExhaustedError(need.staged() ? "shm: too many copies wait, or closed"
                                                : "shm: no room in the staging area"));
}

void ShmPath::CancelPut(uint64_t transfer) {
  if (state_->options.unstaged) state_->options.unstaged->CancelPut(transfer);
  std::vector<PutCopy> cancelled;
  {
    const std::lock_guard lock(state_->mutex);
    auto& puts = state_->puts;
    const auto rest = std::stable_partition(
        puts.begin(), puts.end(), [transfer](const PutCopy& put) { return put.transfer != transfer; });
    std::move(rest, puts.end(), std::back_inserter(cancelled));
    puts.erase(rest, puts.end());
  }
  for (PutCopy& put : cancelled) {
    put.frame.Reset();
    put.sent(CancelledError("the put was given up"));
  }
}

void ShmPath::Close() {
  if (state_->options.unstaged) state_->options.unstaged->Close();
  std::deque<GetCopy> gets;
  std::deque<PutCopy> puts;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    gets.swap(state_->gets);
    puts.swap(state_->puts);
    threads.swap(state_->threads);
    state_->released.clear();
  }
  state_->work.notify_all();
  for (const GetCopy& get : gets) state_->options.landings->Fail(get.transfer, CancelledError("shm: closed"));
  for (PutCopy& put : puts) {
    put.frame.Reset();
    put.sent(CancelledError("shm: closed"));
  }
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

struct ShmView::Held {
  std::shared_ptr<ShmPath::State> path;
  uint64_t frame_offset = 0;
  uint64_t generation = 0;
  uint64_t place = 0;
};

ShmView::ShmView() = default;
ShmView::ShmView(ShmView&&) noexcept = default;
ShmView& ShmView::operator=(ShmView&& other) noexcept {
  held_.swap(other.held_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
ShmView::~ShmView() {
  if (held_) held_->path->GiveBack(held_->place);
}

bool ShmView::IsStillValid() const {
  return held_ != nullptr &&
         held_->path->options.mapping->GenerationAfter(held_->frame_offset) == held_->generation;
}

Result<ShmView> ShmPath::View(const v1::GetResult& result) {
  const v1::ShmPlace& place = result.place();
  ShmView view;
  view.held_ = std::make_unique<ShmView::Held>(
      ShmView::Held{state_, place.offset(), place.generation(), place.place()});
  const Result<Bytes> frame = state_->options.mapping->FrameAt(place.offset(), result.frame_bytes());
  if (!frame.ok()) return frame.status();
  view.bytes_ = *frame;
  if (state_->options.mapping->GenerationBefore(place.offset()) != place.generation()) return MissedPlace();
  return view;
}

}  // namespace terrace::remote
