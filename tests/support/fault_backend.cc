#include "tests/support/fault_backend.h"

namespace terrace {
namespace {

bool AnyLate(const FaultOptions& options) {
  for (const FaultRates& rates : {options.get, options.put, options.erase, options.clear, options.flush}) {
    if (rates.late > 0) return true;
  }
  return false;
}

// What is left of a batch after its refused operations: `place[i]` is where the base's i-th answer belongs.
template <typename Answer>
struct Merge {
  std::vector<Answer> answers;
  std::vector<size_t> place;
};

}  // namespace

FaultBackend::FaultBackend(std::unique_ptr<Backend> base, FaultOptions options)
    : BackendWrapper(std::move(base)), delays_(AnyLate(options)), options_(options), random_(options.seed) {
  if (delays_) thread_ = std::thread([this] { RunDelayed(); });
}

FaultBackend::~FaultBackend() {
  // A base that still works completes into this object; Close ends that. Nothing is left to report it to.
  base().Close().IgnoreError();
  StopDelayed();
}

void FaultBackend::SetOptions(const FaultOptions& options) {
  std::lock_guard lock(mutex_);
  options_ = options;
}

FaultOptions FaultBackend::options() const {
  std::lock_guard lock(mutex_);
  return options_;
}

FaultCounts FaultBackend::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

Capabilities FaultBackend::DoCapabilities() const {
  Capabilities capabilities = BackendWrapper::DoCapabilities();
  capabilities.completes_inline = capabilities.completes_inline && !delays_;
  return capabilities;
}

bool FaultBackend::Draw(double probability) {
  if (probability <= 0) return false;
  std::lock_guard lock(mutex_);
  return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

FaultBackend::Fault FaultBackend::DrawFault(const FaultRates& rates) {
  const std::pair<Fault, double> kinds[] = {{Fault::kError, rates.error},
                                            {Fault::kErrorAfter, rates.error_after},
                                            {Fault::kNotFound, rates.not_found},
                                            {Fault::kCorrupt, rates.corrupt}};
  for (const auto& [fault, probability] : kinds) {
    if (!Draw(probability)) continue;
    std::lock_guard lock(mutex_);
    if (fault == Fault::kError) ++counts_.errors;
    if (fault == Fault::kErrorAfter) ++counts_.errors_after;
    if (fault == Fault::kNotFound) ++counts_.not_found;
    return fault;  // kCorrupt is counted when the bit is flipped
  }
  return Fault::kNone;
}

Status FaultBackend::InjectedError(std::string_view call) const {
  return Status(options().error, "injected into " + std::string(call));
}

// Flips one bit of the first bytes that the base reports, before anyone else sees them.
void FaultBackend::CorruptOnce(GetOp& op) {
  uint64_t where;
  {
    std::lock_guard lock(mutex_);
    where = random_();
  }
  auto flipped = std::make_shared<std::atomic<bool>>(false);
  op.on_bytes = [this, where, flipped, dst = op.dst, next = std::move(op.on_bytes)](uint64_t offset,
                                                                                    uint64_t n) {
    if (!flipped->exchange(true)) {
      dst.mutable_frame()[offset + where % n] ^= std::byte(1 << (where >> 32) % 8);
      std::lock_guard lock(mutex_);
      ++counts_.corrupt;
    }
    if (next) next(offset, n);
  };
}

void FaultBackend::DoGet(std::vector<GetOp> ops, GetDone done) {
  const FaultRates rates = options().get;
  const bool late = Draw(rates.late);
  Merge<GetResult> merge;
  merge.answers.resize(ops.size());
  std::vector<GetOp> passed;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Fault fault = DrawFault(rates);
    if (fault == Fault::kError) {
      merge.answers[i].status = InjectedError("Get");
    } else if (fault == Fault::kNotFound) {
      merge.answers[i].status = NotFoundError("injected into Get");
    } else {
      if (fault == Fault::kCorrupt) CorruptOnce(ops[i]);
      passed.push_back(std::move(ops[i]));
      merge.place.push_back(i);
    }
  }
  auto finish = [this, late, merge = std::move(merge),
                 done = std::move(done)](std::span<const GetResult> answers) {
    std::vector<GetResult> all = merge.answers;
    for (size_t i = 0; i < answers.size(); ++i) all[merge.place[i]] = answers[i];
    Complete(late, [all = std::move(all), done] { done(all); });
  };
  if (passed.empty()) return finish({});
  base().Get(std::move(passed), std::move(finish));
}

void FaultBackend::DoPut(std::vector<PutOp> ops, PutDone done) {
  const FaultRates rates = options().put;
  const bool late = Draw(rates.late);
  Merge<Status> merge;
  merge.answers.resize(ops.size());
  std::vector<bool> failed_after(ops.size());
  std::vector<PutOp> passed;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Fault fault = DrawFault(rates);
    if (fault == Fault::kError) {
      merge.answers[i] = InjectedError("Put");
      continue;
    }
    failed_after[i] = fault == Fault::kErrorAfter;
    passed.push_back(std::move(ops[i]));
    merge.place.push_back(i);
  }
  auto finish = [this, late, merge = std::move(merge), failed_after = std::move(failed_after),
                 done = std::move(done)](std::span<const Status> answers) {
    std::vector<Status> all = merge.answers;
    for (size_t i = 0; i < answers.size(); ++i) {
      const size_t place = merge.place[i];
      all[place] = failed_after[place] ? InjectedError("Put, after it was done") : answers[i];
    }
    Complete(late, [all = std::move(all), done] { done(all); });
  };
  if (passed.empty()) return finish({});
  base().Put(std::move(passed), std::move(finish));
}

void FaultBackend::DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  const FaultRates rates = options().erase;
  const bool late = Draw(rates.late);
  Merge<Status> merge;
  merge.answers.resize(ids.size());
  std::vector<bool> failed_after(ids.size());
  std::vector<ObjectId> passed;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Fault fault = DrawFault(rates);
    if (fault == Fault::kError) {
      merge.answers[i] = InjectedError("Erase");
      continue;
    }
    failed_after[i] = fault == Fault::kErrorAfter;
    passed.push_back(ids[i]);
    merge.place.push_back(i);
  }
  auto finish = [this, late, merge = std::move(merge), failed_after = std::move(failed_after),
                 done = std::move(done)](std::span<const Status> answers) {
    std::vector<Status> all = merge.answers;
    for (size_t i = 0; i < answers.size(); ++i) {
      const size_t place = merge.place[i];
      all[place] = failed_after[place] ? InjectedError("Erase, after it was done") : answers[i];
    }
    Complete(late, [all = std::move(all), done] { done(all); });
  };
  if (passed.empty()) return finish({});
  base().Erase(std::move(passed), mode, std::move(finish));
}

void FaultBackend::SingleCall(const FaultRates& rates, std::string_view name,
                              std::function<void(StatusDone)> call, StatusDone done) {
  const bool late = Draw(rates.late);
  const Fault fault = DrawFault(rates);
  auto finish = [this, late, done = std::move(done)](const Status& status) {
    Complete(late, [status, done] { done(status); });
  };
  if (fault == Fault::kError) return finish(InjectedError(name));
  call([this, fault, finish = std::move(finish), text = std::string(name)](const Status& status) {
    finish(fault == Fault::kErrorAfter ? InjectedError(text + ", after it was done") : status);
  });
}

void FaultBackend::DoClear(StatusDone done) {
  SingleCall(
      options().clear, "Clear", [this](StatusDone inner) { base().Clear(std::move(inner)); },
      std::move(done));
}

void FaultBackend::DoFlush(StatusDone done) {
  SingleCall(
      options().flush, "Flush", [this](StatusDone inner) { base().Flush(std::move(inner)); },
      std::move(done));
}

std::vector<BufferRef> FaultBackend::DoBorrow(std::span<const ObjectId> ids) {
  std::vector<BufferRef> buffers = BackendWrapper::DoBorrow(ids);
  const FaultRates rates{.not_found = options().borrow.not_found};
  for (BufferRef& buffer : buffers) {
    if (buffer && DrawFault(rates) == Fault::kNotFound) buffer.Reset();
  }
  return buffers;
}

Result<ScanPage> FaultBackend::DoScan(std::string_view cursor, size_t limit, ScanDetail detail) {
  const FaultRates rates{.error = options().scan.error};
  if (DrawFault(rates) == Fault::kError) return InjectedError("Scan");
  return BackendWrapper::DoScan(cursor, limit, detail);
}

Status FaultBackend::DoClose(TimePoint deadline) {
  const Status status = BackendWrapper::DoClose(deadline);
  StopDelayed();  // runs what is held back: Close leaves nothing in flight
  return status;
}

void FaultBackend::Complete(bool late, Work work) {
  if (!delays_) return work();
  bool held = false;
  {
    std::lock_guard lock(mutex_);
    if (late) ++counts_.late;
    if (!stopping_) {
      const TimePoint due = Clock::Real()->Now() + (late ? options_.late_by : Duration(0));
      delayed_.emplace(due, std::move(work));
      held = true;
    }
  }
  if (!held) return work();
  wake_.notify_one();
}

void FaultBackend::RunDelayed() {
  std::unique_lock lock(mutex_);
  while (!stopping_ || !delayed_.empty()) {
    if (delayed_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const TimePoint due = delayed_.begin()->first;
    if (!stopping_ && due > Clock::Real()->Now()) {
      wake_.wait_until(lock, due);
      continue;
    }
    Work work = std::move(delayed_.begin()->second);
    delayed_.erase(delayed_.begin());
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

void FaultBackend::StopDelayed() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace terrace
