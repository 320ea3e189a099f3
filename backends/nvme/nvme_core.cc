#include "backends/nvme/nvme_core.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// How late a cancel, or a deadline of a clock that is not the system's, may be seen.
constexpr Duration kPollPeriod = std::chrono::milliseconds(5);

bool IsTimed(TimePoint deadline, const CancelFlag& cancel) { return deadline != kNoDeadline || cancel; }

}  // namespace

AlignedPage MakeAlignedPage() {
  auto* page = static_cast<std::byte*>(std::aligned_alloc(kTierPageBytes, kTierPageBytes));
  TERRACE_CHECK(page != nullptr) << "out of memory";
  std::memset(page, 0, kTierPageBytes);
  return AlignedPage(page);
}

NvmeCore::NvmeCore(std::unique_ptr<OpenedStore> store, IoEngineFactory engine_factory)
    : store_(std::move(store)), engine_factory_(std::move(engine_factory)), zero_page_(MakeAlignedPage()) {
  secret_ = std::make_shared<const DirectorySecret>(store_->directory->superblock().secret);
  used_bytes_ = store_->allocator.live_bytes();
}

NvmeCore::~NvmeCore() { Close(kNoDeadline).IgnoreError(); /* a destructor does not fail */ }

Status NvmeCore::Start(const BackendContext& context) {
  TERRACE_ASSIGN_OR_RETURN(engine_, engine_factory_(kMaxRequests));
  context_ = context;
  if (context_.clock == nullptr) context_.clock = Clock::Real();
  if (context_.metrics != nullptr) {
    MetricRegistry& registry = *context_.metrics;
    const MetricLabels labels = {{"backend", "nvme"}};
    metrics_.read_bytes =
        registry.GetCounter("terrace_nvme_read_bytes_total", "Bytes read from segments.", labels);
    metrics_.written_bytes =
        registry.GetCounter("terrace_nvme_written_bytes_total", "Bytes written to segments.", labels);
    metrics_.corrupt_objects = registry.GetCounter(
        "terrace_nvme_corrupt_objects_total", "Objects dropped because what was read is not theirs.", labels);
    metrics_.dropped_records =
        registry.GetCounter("terrace_nvme_dropped_records_total",
                            "Records that a start found broken or without their place.", labels);
    metrics_.orphaned_buffers =
        registry.GetGauge("terrace_nvme_orphaned_buffers",
                          "Buffers of completed operations that the device still has.", labels);
    metrics_.live_objects = registry.GetGauge("terrace_nvme_live_objects", "Objects in the index.", labels);
    metrics_.used_bytes = registry.GetGauge("terrace_nvme_used_bytes", "Bytes of live extents.", labels);
    metrics_.dropped_records->Add(store_->dropped_records);
  }
  transfers_ = std::make_unique<TransferQueue>(
      engine_.get(), TransferLimits{store_->options.request_bytes, store_->options.inflight_bytes});
  for (const std::string& warning : store_->warnings) Log(LogLevel::kWarning, warning);
  UpdateFigures();
  accepting_ = true;
  commits_ = std::make_unique<CommitThread>(store_->manifest.get(),
                                            [this](std::function<void()> work) { Post(std::move(work)); });
  thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

bool NvmeCore::Post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!accepting_) return false;
  ++open_operations_;
  inbox_.push_back(std::move(work));
  engine_->Wake();
  return true;
}

void NvmeCore::Begin() {
  const std::lock_guard lock(mutex_);
  ++open_operations_;
}

void NvmeCore::End() {
  const std::lock_guard lock(mutex_);
  TERRACE_CHECK(open_operations_ > 0);
  if (--open_operations_ == 0) idle_.notify_all();
}

void NvmeCore::Run() {
  pthread_setname_np(pthread_self(), "terrace-nvme");
  std::vector<IoCompletion> completions;
  while (!stopped_) {
    RunInbox();
    CheckTimes();
    transfers_->Pump();
    if (stopped_) break;
    engine_->Wait(TimeToNextCheck(), &completions);
    for (const IoCompletion& completion : completions) transfers_->OnCompletion(completion);
    completions.clear();
  }
}

void NvmeCore::RunInbox() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(inbox_);
  }
  for (std::function<void()>& one : work) {
    one();
    one = nullptr;  // what it captured goes before its end is seen
    End();
  }
}

void NvmeCore::Watch(const ActiveRef& op) {
  Begin();
  watched_.insert(op);
  if (!IsTimed(op->deadline, op->cancel)) return;
  const TimePoint poll = context_.clock->Now() + kPollPeriod;
  next_check_ = std::min({next_check_, op->cancel ? poll : kNoDeadline, op->deadline});
}

void NvmeCore::Unwatch(const ActiveRef& op) {
  watched_.erase(op);
  if (op->orphaned && metrics_.orphaned_buffers) metrics_.orphaned_buffers->Add(-1);
  End();
}

Status NvmeCore::PassedTime(const ActiveOp& op) const {
  if (op.cancel && op.cancel->load(std::memory_order_acquire)) return CancelledError("cancelled");
  if (op.deadline != kNoDeadline && op.deadline <= context_.clock->Now()) {
    return DeadlineExceededError("the deadline passed");
  }
  return OkStatus();
}

void NvmeCore::CheckTimes() {
  if (next_check_ == kNoDeadline) return;
  const TimePoint now = context_.clock->Now();
  if (now < next_check_) return;
  next_check_ = kNoDeadline;
  const std::vector<ActiveRef> ops(watched_.begin(), watched_.end());
  for (const ActiveRef& op : ops) {
    if (op->answered || !IsTimed(op->deadline, op->cancel)) continue;
    const Status passed = PassedTime(*op);
    if (!passed.ok()) {
      Abandon(op, passed);
      continue;
    }
    next_check_ = std::min({next_check_, op->cancel ? now + kPollPeriod : kNoDeadline, op->deadline});
  }
}

std::optional<Duration> NvmeCore::TimeToNextCheck() const {
  if (next_check_ == kNoDeadline) return std::nullopt;
  // Another clock than the system's does not say how long to wait for it.
  if (context_.clock != Clock::Real()) return kPollPeriod;
  return std::max(Duration(0), next_check_ - context_.clock->Now());
}

void NvmeCore::Abandon(const ActiveRef& op, const Status& status) {
  op->answered = true;
  const auto answer = std::exchange(op->answer, nullptr);
  // Of what has not begun, Stop ends the operation here and now, and takes the transfer from it.
  if (const TransferRef transfer = op->transfer; transfer && !transfer->ended) {
    transfers_->Stop(transfer);
    if (!transfer->ended) {
      op->orphaned = true;
      if (metrics_.orphaned_buffers) metrics_.orphaned_buffers->Add(1);
    }
  }
  answer(status);
}

std::string NvmeCore::CancelAll() {
  const std::vector<ActiveRef> ops(watched_.begin(), watched_.end());
  std::string names;
  for (const ActiveRef& op : ops) {
    if (!op->answered) Abandon(op, CancelledError("closed"));
    if (op->buffer) names += (names.empty() ? "" : ", ") + op->id.key.ToHex();
  }
  return names;
}

void NvmeCore::Commit(CommitTask task) {
  Begin();
  task.done = [this, done = std::move(task.done)](const Status& status) {
    done(status);
    End();
  };
  commits_->Enqueue(std::move(task));
}

void NvmeCore::UpdateFigures() {
  used_bytes_.store(store_->allocator.live_bytes(), std::memory_order_relaxed);
  if (metrics_.used_bytes == nullptr) return;
  metrics_.used_bytes->Set(static_cast<int64_t>(store_->allocator.live_bytes()));
  metrics_.live_objects->Set(static_cast<int64_t>(store_->index.size()));
  const uint64_t read = transfers_->bytes_done(IoDirection::kRead);
  const uint64_t written = transfers_->bytes_done(IoDirection::kWrite);
  metrics_.read_bytes->Add(read - std::exchange(reported_read_, read));
  metrics_.written_bytes->Add(written - std::exchange(reported_written_, written));
}

void NvmeCore::Log(LogLevel level, const std::string& message) const {
  if (context_.log != nullptr) context_.log->Log(level, "nvme", message);
}

void NvmeCore::CheckInvariants() {
  std::promise<void> checked;
  const bool posted = Post([&] {
    store_->allocator.CheckInvariants();
    uint64_t indexed = 0;
    for (const auto& [id, placement] : store_->index) {
      TERRACE_CHECK(!placement->retired && placement->id == id);
      for (const Extent& extent : placement->extents) indexed += extent.length;
    }
    TERRACE_CHECK(indexed <= store_->allocator.live_bytes());
    checked.set_value();
  });
  if (posted) checked.get_future().wait();
}

Result<ScanPage> NvmeCore::Scan(std::string_view cursor, size_t limit) {
  const std::shared_lock lock(manifest_mutex_);
  if (!store_->manifest) return FailedPreconditionError("closed");
  return store_->manifest->Scan(cursor, limit);
}

Status NvmeCore::PutRoot(const RootRecord& record) {
  const std::shared_lock lock(manifest_mutex_);
  if (!store_->manifest) return FailedPreconditionError("closed");
  return store_->manifest->PutRoot(record);
}

Result<std::vector<RootRecord>> NvmeCore::ScanRoots() {
  const std::shared_lock lock(manifest_mutex_);
  if (!store_->manifest) return FailedPreconditionError("closed");
  return store_->manifest->ScanRoots();
}

Status NvmeCore::WaitUntilIdle(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [this] { return open_operations_ == 0; };
  if (deadline == kNoDeadline) {
    idle_.wait(lock, idle);
    return OkStatus();
  }
  while (!idle()) {
    if (context_.clock->Now() >= deadline) return DeadlineExceededError("operations are in flight");
    idle_.wait_for(lock, kPollPeriod, idle);
  }
  return OkStatus();
}

Status NvmeCore::Close(TimePoint deadline) {
  const std::lock_guard closing(close_mutex_);
  if (closed_) return OkStatus();
  if (thread_.joinable() && !WaitUntilIdle(deadline).ok()) {
    std::promise<std::string> cancelled;
    if (Post([&] { cancelled.set_value(CancelAll()); })) {
      const std::string names = cancelled.get_future().get();
      // What only waited is gone now; what the device has is not.
      if (!names.empty()) return DeadlineExceededError("the device still has the buffers of " + names);
      TERRACE_RETURN_IF_ERROR(WaitUntilIdle(kNoDeadline));
    }
  }
  closed_ = true;
  return Shutdown();
}

Status NvmeCore::Shutdown() {
  if (thread_.joinable()) {
    Post([this] { stopped_ = true; });
    thread_.join();
    {
      const std::lock_guard lock(mutex_);
      accepting_ = false;
      inbox_.clear();
    }
    commits_.reset();
    transfers_.reset();
    engine_.reset();
  }
  Status status;
  {
    const std::unique_lock lock(manifest_mutex_);
    status = store_->manifest->Close();
    store_->manifest.reset();
  }
  store_->segments.reset();
  store_->directory.reset();
  return status;
}

}  // namespace terrace
