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

AlignedPage MakeAlignedPage(size_t bytes) {
  auto* page = static_cast<std::byte*>(std::aligned_alloc(kTierPageBytes, bytes));
  TERRACE_CHECK(page != nullptr) << "out of memory";
  std::memset(page, 0, bytes);
  return AlignedPage(page);
}

NvmeCore::NvmeCore(std::unique_ptr<OpenedStore> store)
    : store_(std::move(store)), zero_page_(MakeAlignedPage()) {
  secret_ = std::make_shared<const DirectorySecret>(store_->directory->superblock().secret);
  used_bytes_ = store_->allocator.live_bytes();
  usable_bytes_ = store_->data_bytes - store_->allocator.quarantined_bytes();
}

NvmeCore::~NvmeCore() { Close(kNoDeadline).IgnoreError(); /* a destructor does not fail */ }

Status NvmeCore::Start(const BackendContext& context, CoreThreads threads) {
  threads_ = threads;
  TERRACE_ASSIGN_OR_RETURN(engine_, store_->disk->MakeEngine(kMaxRequests));
  context_ = context;
  if (context_.clock == nullptr) context_.clock = Clock::Real();
  health_.emplace(context_.clock);
  if (context_.metrics != nullptr) {
    MetricRegistry& registry = *context_.metrics;
    const MetricLabels labels = {{"backend", "nvme"}};
    metrics_.read_bytes =
        registry.GetCounter("terrace_nvme_read_bytes_total", "Bytes read from segments.", labels);
    metrics_.written_bytes =
        registry.GetCounter("terrace_nvme_written_bytes_total", "Bytes written to segments.", labels);
    metrics_.prepared_bytes = registry.GetCounter(
        "terrace_nvme_prepared_bytes_total", "Bytes of segments written with zeros ahead of use.", labels);
    metrics_.corrupt_objects = registry.GetCounter(
        "terrace_nvme_corrupt_objects_total", "Objects dropped because what was read is not theirs.", labels);
    metrics_.dropped_records =
        registry.GetCounter("terrace_nvme_dropped_records_total",
                            "Records that a start found broken or without their place.", labels);
    metrics_.orphaned_buffers =
        registry.GetGauge("terrace_nvme_orphaned_buffers",
                          "Buffers of completed operations that the device still has.", labels);
    metrics_.live_objects.gauge =
        registry.GetGauge("terrace_nvme_live_objects", "Objects in the index.", labels);
    metrics_.used_bytes.gauge =
        registry.GetGauge("terrace_nvme_used_bytes", "Bytes of live extents.", labels);
    metrics_.quarantined_bytes.gauge =
        registry.GetGauge("terrace_nvme_quarantined_bytes",
                          "Bytes of segments out of use: the device failed there twice.", labels);
    metrics_.degraded.gauge =
        registry.GetGauge("terrace_nvme_degraded", "1: the device fails, and is only probed.", labels);
    metrics_.degraded_refusals =
        registry.GetCounter("terrace_nvme_degraded_refusals_total",
                            "Reads and writes refused without asking a device that fails.", labels);
    metrics_.dropped_records->Add(store_->dropped_records);
    registry
        .GetCounter("terrace_nvme_rebuilt_objects_total",
                    "Objects that a start found in the segments after their manifest was lost.", labels)
        ->Add(store_->rebuilt_objects);
    registry
        .GetCounter("terrace_nvme_unadopted_objects_total",
                    "Tier pages that such a start found and left out: erased, or under a later write.",
                    labels)
        ->Add(store_->unadopted_objects);
  }
  transfers_ = std::make_unique<TransferQueue>(
      engine_.get(), TransferLimits{store_->options.request_bytes, store_->options.inflight_bytes});
  staging_.emplace(store_->options.inflight_bytes);
  PrepareEngine();
  for (const std::string& warning : store_->warnings) Log(LogLevel::kWarning, warning);
  UpdateFigures();
  accepting_ = true;
  const bool own = threads_ == CoreThreads::kOwn;
  commits_ = std::make_unique<CommitThread>(
      store_->manifest.get(), [this](std::span<const ErasedEntry> entries) { return LogErased(entries); },
      [this](std::function<void()> work) { Post(std::move(work)); }, own);
  if (own) thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

void NvmeCore::PrepareEngine() {
  engine_->RegisterMemory(context_.regions);
  for (uint32_t i = 0; i < store_->segments->count(); ++i) {
    if (DiskFile* file = store_->segments->file(i)) engine_->AddFile(file->fd());
  }
  const IoEngineMode mode = engine_->mode();
  const bool is_slower = !mode.fallback.empty() || !store_->is_direct;
  Log(is_slower ? LogLevel::kWarning : LogLevel::kInfo,
      "I/O by " + mode.engine +
          (store_->is_direct ? ", O_DIRECT" : ", through the page cache: the file system has no O_DIRECT") +
          (mode.registered_buffers ? ", registered buffers" : "") +
          (mode.fallback.empty() ? "" : " (" + mode.fallback + ")"));
  if (context_.metrics == nullptr) return;
  const auto yes_no = [](bool is_so) { return std::string(is_so ? "yes" : "no"); };
  metrics_.io_mode =
      context_.metrics->GetGauge("terrace_nvme_io_mode", "Directories whose bytes move in this way.",
                                 {{"backend", "nvme"},
                                  {"mode", mode.engine},
                                  {"direct", yes_no(store_->is_direct)},
                                  {"registered", yes_no(mode.registered_buffers)}});
  metrics_.io_mode->Add(1);
}

bool NvmeCore::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (!accepting_) return false;
    ++open_operations_;
    inbox_.push_back(std::move(work));
    if (!waiting_.exchange(false)) return true;  // it looks here before it waits
    ++waking_;
  }
  // Not under the lock: whoever is woken would wait for it first.
  engine_->Wake();
  --waking_;
  return true;
}

void NvmeCore::Begin() { ++open_operations_; }

void NvmeCore::End() {
  size_t open = open_operations_;
  while (open > 1) {
    if (open_operations_.compare_exchange_weak(open, open - 1)) return;
  }
  // Whoever waits for 0 sees it under the lock, and may destroy this object then.
  const std::lock_guard lock(mutex_);
  TERRACE_CHECK(open_operations_ > 0);
  if (--open_operations_ == 0) idle_.notify_all();
}

void NvmeCore::Run() {
  pthread_setname_np(pthread_self(), "terrace-nvme");
  for (;;) {
    RunInbox();
    CheckTimes();
    transfers_->Pump();
    // Zeros may be on their way that began when everything else had ended.
    if (stopped_ && transfers_->is_idle()) break;
    PrepareRoom();
    transfers_->Pump();
    SendCommits();
    RunCompletions(TimeToWait());
  }
}

bool NvmeCore::Step() {
  const bool ran = RunInbox();
  CheckTimes();
  transfers_->Pump();
  PrepareRoom();
  transfers_->Pump();
  const bool completed = RunCompletions(Duration(0)) > 0;
  SendCommits();
  return commits_->RunGroup() || ran || completed;
}

size_t NvmeCore::RunCompletions(std::optional<Duration> timeout) {
  completions_.clear();
  engine_->Wait(timeout, &completions_);
  waiting_ = false;
  if (!completions_.empty() || transfers_->is_idle()) health_->OnProgress();
  if (completions_.empty()) return 0;
  for (const IoCompletion& completion : completions_) transfers_->OnCompletion(completion);
  // The device goes on while the tier hashes what has arrived.
  transfers_->Pump();
  engine_->Submit();
  transfers_->Report();
  SendCommits();
  return completions_.size();
}

bool NvmeCore::RunInbox() {
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
  return !work.empty();
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

std::optional<Duration> NvmeCore::TimeToWait() {
  const std::lock_guard lock(mutex_);
  if (!inbox_.empty()) return Duration(0);
  waiting_ = true;
  return TimeToNextCheck();
}

void NvmeCore::Abandon(const ActiveRef& op, const Status& status) {
  op->answered = true;
  const auto answer = std::exchange(op->answer, nullptr);
  // Of what has not begun, Stop ends the operation here and now, and takes the transfer from it.
  if (const TransferRef transfer = op->transfer; transfer && !transfer->ended) {
    transfers_->Stop(transfer);
    if (!transfer->ended) {
      op->orphaned = true;
      if (status.code() == StatusCode::kDeadlineExceeded) health_->OnFailure();
      ReportHealth();
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
  new_commits_.push_back(std::move(task));
}

void NvmeCore::SendCommits() {
  if (!new_commits_.empty()) commits_->Enqueue(&new_commits_);
}

RecordWrite NvmeCore::record_write() const {
  switch (store_->options.durability) {
    case Durability::kNone:
      return RecordWrite::kUnlogged;
    case Durability::kFlush:
      return RecordWrite::kLogged;
    case Durability::kSync:
      return RecordWrite::kSynced;
  }
  return RecordWrite::kSynced;
}

void NvmeCore::UpdateFigures() {
  const uint64_t zeroing = room_.zeroing ? room_.zeroing->length : 0;
  const uint64_t used = store_->allocator.live_bytes() - zeroing;
  used_bytes_.store(used, std::memory_order_relaxed);
  usable_bytes_.store(store_->data_bytes - store_->allocator.quarantined_bytes(), std::memory_order_relaxed);
  metrics_.used_bytes.Set(static_cast<int64_t>(used));
  metrics_.quarantined_bytes.Set(static_cast<int64_t>(store_->allocator.quarantined_bytes()));
  metrics_.live_objects.Set(static_cast<int64_t>(store_->index.size()));
  const uint64_t read = transfers_->bytes_done(IoDirection::kRead);
  const uint64_t written = transfers_->bytes_done(IoDirection::kWrite);
  if (metrics_.read_bytes == nullptr) return;
  metrics_.read_bytes->Add(read - std::exchange(reported_read_, read));
  metrics_.written_bytes->Add(written - std::exchange(reported_written_, written));
}

void NvmeCore::Log(LogLevel level, const std::string& message) const {
  if (context_.log != nullptr) context_.log->Log(level, "nvme", message);
}

void NvmeCore::CheckInvariants() {
  std::promise<void> checked;
  const auto check = [&] {
    store_->allocator.CheckInvariants();
    uint64_t indexed = 0;
    for (const PlacementRef& placement : store_->index) {
      TERRACE_CHECK(!placement->retired);
      for (const Extent& extent : placement->extents()) indexed += extent.length;
    }
    TERRACE_CHECK(indexed <= store_->allocator.live_bytes());
    checked.set_value();
  };
  if (threads_ == CoreThreads::kStepped) return check();
  if (Post(check)) checked.get_future().wait();
}

Result<ScanPage> NvmeCore::Scan(std::string_view cursor, size_t limit, ScanDetail detail) {
  const std::shared_lock lock(manifest_mutex_);
  if (!store_->manifest) return FailedPreconditionError("closed");
  return store_->manifest->Scan(cursor, limit, detail);
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
  if (threads_ == CoreThreads::kStepped) {
    // Nobody else gets it done; a device that never answers is the driver's business.
    for (;;) {
      const bool stepped = Step();
      const std::lock_guard lock(mutex_);
      if (open_operations_ == 0) return OkStatus();
      if (!stepped && deadline != kNoDeadline && context_.clock->Now() >= deadline) {
        return DeadlineExceededError("operations are in flight");
      }
    }
  }
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
  closing_ = true;
  if (commits_ && !WaitUntilIdle(deadline).ok()) {
    std::promise<std::string> cancelled;
    if (Post([&] { cancelled.set_value(CancelAll()); })) {
      if (threads_ == CoreThreads::kStepped) Step();
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
  if (commits_) {
    Post([this] { stopped_ = true; });
    if (thread_.joinable()) thread_.join();
    {
      const std::lock_guard lock(mutex_);
      accepting_ = false;
      inbox_.clear();
    }
    while (waking_ > 0) std::this_thread::yield();
    for (PartOfGauge* gauge :
         {&metrics_.live_objects, &metrics_.used_bytes, &metrics_.quarantined_bytes, &metrics_.degraded}) {
      gauge->Set(0);
    }
    commits_.reset();
    transfers_.reset();
    for (uint32_t i = 0; i < store_->segments->count(); ++i) {
      if (DiskFile* file = store_->segments->file(i)) engine_->RemoveFile(file->fd());
    }
    engine_.reset();
    if (metrics_.io_mode != nullptr) metrics_.io_mode->Add(-1);
  }
  Status status;
  {
    const std::unique_lock lock(manifest_mutex_);
    status = store_->manifest->Close();
    store_->manifest.reset();
  }
  store_->erased.reset();
  store_->segments.reset();
  store_->directory.reset();
  store_->disk.reset();
  return status;
}

}  // namespace terrace
