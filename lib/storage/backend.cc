// The non-virtual half of Backend: checks, measures, and the promise of one completion per batch.
#include "terrace/backend.h"

#include <algorithm>
#include <exception>
#include <type_traits>

#include "lib/storage/backend_batch.h"

namespace terrace {
namespace {

constexpr double kSecondsBounds[] = {10e-6, 30e-6,  100e-6, 300e-6, 1e-3, 3e-3, 10e-3,
                                     30e-3, 100e-3, 300e-3, 1.0,    3.0,  10.0};

bool Aligned(uint64_t bytes) { return bytes % kFrameAlignment == 0; }

Status CheckTime(TimePoint deadline, const CancelFlag& cancel, TimePoint now) {
  if (cancel && cancel->load(std::memory_order_acquire)) return CancelledError("cancelled before it began");
  if (deadline != kNoDeadline && deadline <= now)
    return DeadlineExceededError("the deadline passed before it began");
  return OkStatus();
}

Status CheckFrame(const BufferRef& buffer, std::string_view field) {
  if (!buffer) return InvalidArgumentError(std::string(field) + " is empty");
  if (buffer.size_bytes() < kTierPageBytes + kFrameAlignment) {
    return InvalidArgumentError(std::string(field) + " has " + std::to_string(buffer.size_bytes()) +
                                " bytes, a tier page and a frame have 8192 at least");
  }
  return OkStatus();
}

std::string RangeText(const FrameRange& range) {
  return "range {frame_offset " + std::to_string(range.frame_offset) + ", length " +
         std::to_string(range.length) + ", dst_offset " + std::to_string(range.dst_offset) + "}";
}

Status CheckGet(const GetOp& op) {
  if (Status status = CheckFrame(op.dst, "dst"); !status.ok()) return status;
  const uint64_t dst_bytes = op.dst.size_bytes() - kTierPageBytes;
  std::vector<std::pair<uint64_t, uint64_t>> landings;
  landings.reserve(op.ranges.size());
  for (const FrameRange& range : op.ranges) {
    if (!Aligned(range.frame_offset) || !Aligned(range.length) || !Aligned(range.dst_offset) ||
        range.length == 0) {
      return InvalidArgumentError(RangeText(range) + ": multiples of 4096 and a length above 0 are needed");
    }
    if (range.length > dst_bytes || range.dst_offset > dst_bytes - range.length) {
      return InvalidArgumentError(RangeText(range) + " is not within dst of " + std::to_string(dst_bytes) +
                                  " frame bytes");
    }
    if (range.frame_offset > UINT64_MAX - range.length)
      return InvalidArgumentError(RangeText(range) + " overflows");
    landings.emplace_back(range.dst_offset, range.dst_offset + range.length);
  }
  std::sort(landings.begin(), landings.end());
  for (size_t i = 1; i < landings.size(); ++i) {
    if (landings[i].first < landings[i - 1].second) {
      return InvalidArgumentError("two ranges land on dst_offset " + std::to_string(landings[i].first));
    }
  }
  return OkStatus();
}

Status CheckPut(const PutOp& op) {
  if (Status status = CheckFrame(op.frame, "frame"); !status.ok()) return status;
  const uint64_t bytes = op.meta.frame_bytes;
  const uint64_t room = op.frame.size_bytes() - kTierPageBytes;
  if (bytes == 0 || !Aligned(bytes) || bytes > room) {
    return InvalidArgumentError("meta.frame_bytes = " + std::to_string(bytes) +
                                ", allowed: a multiple of 4096 up to the buffer's " + std::to_string(room));
  }
  if (op.meta.content && op.meta.content->tokens.size() > kMaxTokensPerChunk) {
    return InvalidArgumentError("meta.content has " + std::to_string(op.meta.content->tokens.size()) +
                                " tokens, allowed 0..4096");
  }
  return OkStatus();
}

uint64_t AskedBytes(const GetOp& op) {
  uint64_t bytes = 0;
  for (const FrameRange& range : op.ranges) bytes += range.length;
  return bytes;
}

// For what the checks refuse as a whole. Callers may leave `done` empty.
template <typename Answer>
void Refuse(const std::function<void(Answer)>& done, const std::type_identity_t<Answer>& answer) {
  if (done) done(answer);
}

// Runs a Do* call. An outside backend may throw; it then answers for the batch with what it threw.
template <typename Call, typename Batch>
void Guarded(Call&& call, Batch& batch) {
  try {
    call();
  } catch (const std::exception& error) {
    batch.Fail(std::string("the backend threw: ") + error.what());
  } catch (...) {
    batch.Fail("the backend threw");
  }
}

// The same for a call that answers by returning, with a Status or a Result.
template <typename Call>
auto GuardedAnswer(Counter* violations, Call&& call) -> decltype(call()) {
  std::string why = "the backend threw";
  try {
    return call();
  } catch (const std::exception& error) {
    why.append(": ").append(error.what());
  } catch (...) {
  }
  if (violations) violations->Add();
  return InternalError(why);
}

// One operation's Status as a batch of one.
std::shared_ptr<BackendBatch<Status>> SingleBatch(StatusDone done, Counter* violations) {
  auto each = [done = std::move(done)](std::span<const Status> answers) {
    if (done) done(answers[0]);
  };
  return std::make_shared<BackendBatch<Status>>(std::vector<Status>(1), std::vector<size_t>{0},
                                                std::move(each), nullptr, violations);
}

}  // namespace

struct Backend::Measures {
  struct Call {
    Counter* ops;
    Counter* bytes;
    Counter* errors;
    Histogram* seconds;
  };

  Measures(MetricRegistry& registry, const std::string& name, Clock* clock_in) : clock(clock_in) {
    const MetricLabels labels = {{"backend", name}};
    auto call = [&](const std::string& what) {
      const std::string prefix = "terrace_backend_" + what;
      return Call{
          registry.GetCounter(prefix + "_ops_total", "Operations of " + what + " calls.", labels),
          registry.GetCounter(prefix + "_bytes_total", "Frame bytes moved by " + what + " calls.", labels),
          registry.GetCounter(prefix + "_errors_total", "Operations of " + what + " calls that failed.",
                              labels),
          registry.GetHistogram(prefix + "_seconds", "Duration of a batch of " + what + " operations.",
                                kSecondsBounds, labels)};
    };
    get = call("get");
    put = call("put");
    erase = call("erase");
    get_misses = registry.GetCounter("terrace_backend_get_misses_total", "Reads of absent objects.", labels);
    put_existing =
        registry.GetCounter("terrace_backend_put_existing_total", "Writes of present objects.", labels);
    put_refused =
        registry.GetCounter("terrace_backend_put_refused_total", "Writes refused for want of room.", labels);
    borrows = registry.GetCounter("terrace_backend_borrow_ops_total", "Published buffers asked for.", labels);
    borrow_misses =
        registry.GetCounter("terrace_backend_borrow_misses_total", "Those that were absent.", labels);
    violations =
        registry.GetCounter("terrace_backend_violations_total",
                            "Completions given twice, never, or with a wrong number of results.", labels);
  }

  void End(const Call& call, size_t ops, TimePoint begin) const {
    call.ops->Add(ops);
    call.seconds->Observe(std::chrono::duration<double>(clock->Now() - begin).count());
  }
  void EndGet(std::span<const GetResult> results, std::span<const uint64_t> asked, TimePoint begin) const {
    for (size_t i = 0; i < results.size(); ++i) {
      const GetResult& result = results[i];
      if (result.status.ok())
        get.bytes->Add(asked[i] != 0 ? asked[i] : result.frame_bytes);
      else if (result.status.code() == StatusCode::kNotFound)
        get_misses->Add();
      else
        get.errors->Add();
    }
    End(get, results.size(), begin);
  }
  void EndPut(std::span<const Status> results, std::span<const uint64_t> bytes, TimePoint begin) const {
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].ok())
        put.bytes->Add(bytes[i]);
      else if (results[i].code() == StatusCode::kAlreadyExists)
        put_existing->Add();
      else if (results[i].code() == StatusCode::kResourceExhausted)
        put_refused->Add();
      else
        put.errors->Add();
    }
    End(put, results.size(), begin);
  }
  void EndErase(std::span<const Status> results, TimePoint begin) const {
    for (const Status& result : results) {
      if (!result.ok() && result.code() != StatusCode::kNotFound) erase.errors->Add();
    }
    End(erase, results.size(), begin);
  }

  // Null where nothing is measured.
  static Counter* Violations(const std::shared_ptr<Measures>& measures) {
    return measures ? measures->violations : nullptr;
  }

  Clock* clock;
  Call get;
  Call put;
  Call erase;
  Counter* get_misses;
  Counter* put_existing;
  Counter* put_refused;
  Counter* borrows;
  Counter* borrow_misses;
  Counter* violations;
};

Status Backend::Ready() const {
  if (!attached_.load(std::memory_order_acquire)) return FailedPreconditionError(name_ + ": not attached");
  if (closed_.load(std::memory_order_acquire)) return FailedPreconditionError(name_ + ": closed");
  return OkStatus();
}

Status Backend::Attach(const BackendContext& context) {
  if (!context.clock || !context.metrics || !context.log) {
    return InvalidArgumentError(name_ + ": context needs clock, metrics and log");
  }
  if (closed_) return FailedPreconditionError(name_ + ": closed");
  if (attaching_.exchange(true)) return FailedPreconditionError(name_ + ": attached before");
  context_ = context;
  Status status = GuardedAnswer(nullptr, [&] { return DoAttach(context_); });
  if (!status.ok()) {
    attaching_ = false;
    return status;
  }
  if (measured_) measures_ = std::make_shared<Measures>(*context.metrics, name_, context.clock);
  attached_.store(true, std::memory_order_release);
  return OkStatus();
}

void Backend::Get(std::vector<GetOp> ops, GetDone done) {
  const Status ready = Ready();
  std::vector<GetResult> results(ops.size());
  if (!ready.ok() || ops.empty()) {
    for (GetResult& result : results) result.status = ready;
    return Refuse<std::span<const GetResult>>(done, results);
  }
  const TimePoint begin = context_.clock->Now();
  std::vector<uint64_t> asked(ops.size());
  std::vector<size_t> passed;
  for (size_t i = 0; i < ops.size(); ++i) {
    results[i].status = CheckGet(ops[i]);
    if (results[i].status.ok()) results[i].status = CheckTime(ops[i].deadline, ops[i].cancel, begin);
    if (!results[i].status.ok()) continue;
    asked[i] = AskedBytes(ops[i]);
    if (passed.size() != i) ops[passed.size()] = std::move(ops[i]);
    passed.push_back(i);
  }
  const size_t num_passed = passed.size();
  ops.resize(num_passed);
  BackendBatch<GetResult>::Observe observe;
  if (measures_) {
    observe = [measures = measures_, asked = std::move(asked), begin](std::span<const GetResult> answers) {
      measures->EndGet(answers, asked, begin);
    };
  }
  auto batch =
      std::make_shared<BackendBatch<GetResult>>(std::move(results), std::move(passed), std::move(done),
                                                std::move(observe), Measures::Violations(measures_));
  if (num_passed == 0) return batch->Complete({});
  Guarded(
      [&] {
        DoGet(std::move(ops), [batch](std::span<const GetResult> answers) { batch->Complete(answers); });
      },
      *batch);
}

void Backend::Put(std::vector<PutOp> ops, PutDone done) {
  const Status ready = Ready();
  std::vector<Status> results(ops.size());
  if (!ready.ok() || ops.empty()) {
    std::fill(results.begin(), results.end(), ready);
    return Refuse<std::span<const Status>>(done, results);
  }
  const TimePoint begin = context_.clock->Now();
  std::vector<uint64_t> bytes(ops.size());
  std::vector<size_t> passed;
  for (size_t i = 0; i < ops.size(); ++i) {
    results[i] = CheckPut(ops[i]);
    if (results[i].ok()) results[i] = CheckTime(ops[i].deadline, ops[i].cancel, begin);
    if (!results[i].ok()) continue;
    bytes[i] = ops[i].meta.frame_bytes;
    if (passed.size() != i) ops[passed.size()] = std::move(ops[i]);
    passed.push_back(i);
  }
  const size_t num_passed = passed.size();
  ops.resize(num_passed);
  BackendBatch<Status>::Observe observe;
  if (measures_) {
    observe = [measures = measures_, bytes = std::move(bytes), begin](std::span<const Status> answers) {
      measures->EndPut(answers, bytes, begin);
    };
  }
  auto batch = std::make_shared<BackendBatch<Status>>(std::move(results), std::move(passed), std::move(done),
                                                      std::move(observe), Measures::Violations(measures_));
  if (num_passed == 0) return batch->Complete({});
  Guarded(
      [&] { DoPut(std::move(ops), [batch](std::span<const Status> answers) { batch->Complete(answers); }); },
      *batch);
}

void Backend::Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  Status ready = Ready();
  if (ready.ok() && mode != EraseMode::kEvict && mode != EraseMode::kErase) {
    ready =
        InvalidArgumentError("mode = " + std::to_string(static_cast<int>(mode)) + ", allowed kEvict, kErase");
  }
  std::vector<Status> results(ids.size());
  if (!ready.ok() || ids.empty()) {
    std::fill(results.begin(), results.end(), ready);
    return Refuse<std::span<const Status>>(done, results);
  }
  std::vector<size_t> passed(ids.size());
  for (size_t i = 0; i < passed.size(); ++i) passed[i] = i;
  BackendBatch<Status>::Observe observe;
  if (measures_) {
    observe = [measures = measures_, begin = context_.clock->Now()](std::span<const Status> answers) {
      measures->EndErase(answers, begin);
    };
  }
  auto batch = std::make_shared<BackendBatch<Status>>(std::move(results), std::move(passed), std::move(done),
                                                      std::move(observe), Measures::Violations(measures_));
  Guarded(
      [&] {
        DoErase(std::move(ids), mode, [batch](std::span<const Status> answers) { batch->Complete(answers); });
      },
      *batch);
}

void Backend::Clear(StatusDone done) {
  if (const Status ready = Ready(); !ready.ok()) return Refuse<const Status&>(done, ready);
  auto batch = SingleBatch(std::move(done), Measures::Violations(measures_));
  Guarded([&] { DoClear([batch](const Status& status) { batch->Complete({&status, 1}); }); }, *batch);
}

void Backend::Flush(StatusDone done) {
  if (const Status ready = Ready(); !ready.ok()) return Refuse<const Status&>(done, ready);
  auto batch = SingleBatch(std::move(done), Measures::Violations(measures_));
  Guarded([&] { DoFlush([batch](const Status& status) { batch->Complete({&status, 1}); }); }, *batch);
}

std::vector<BufferRef> Backend::Borrow(std::span<const ObjectId> ids) {
  if (!Ready().ok()) return std::vector<BufferRef>(ids.size());
  Result<std::vector<BufferRef>> borrowed = GuardedAnswer(
      Measures::Violations(measures_), [&]() -> Result<std::vector<BufferRef>> { return DoBorrow(ids); });
  // What a backend throws on is a miss.
  std::vector<BufferRef> buffers = borrowed.ok() ? *std::move(borrowed) : std::vector<BufferRef>();
  buffers.resize(ids.size());
  if (measures_) {
    measures_->borrows->Add(ids.size());
    measures_->borrow_misses->Add(
        std::count_if(buffers.begin(), buffers.end(), [](const BufferRef& buffer) { return !buffer; }));
  }
  return buffers;
}

Result<ScanPage> Backend::Scan(std::string_view cursor, size_t limit, ScanDetail detail) {
  if (Status ready = Ready(); !ready.ok()) return ready;
  if (limit == 0) return InvalidArgumentError("limit = 0, allowed 1 and more");
  return GuardedAnswer(Measures::Violations(measures_), [&] { return DoScan(cursor, limit, detail); });
}

Status Backend::PutRoot(const RootRecord& record) {
  if (Status ready = Ready(); !ready.ok()) return ready;
  return GuardedAnswer(Measures::Violations(measures_), [&] { return DoPutRoot(record); });
}

Result<std::vector<RootRecord>> Backend::ScanRoots() {
  if (Status ready = Ready(); !ready.ok()) return ready;
  return GuardedAnswer(Measures::Violations(measures_), [&] { return DoScanRoots(); });
}

void Backend::Match(PrefixQuery query, MatchDone done) {
  Status status = Ready();
  if (status.ok() && !capabilities().supports_match)
    status = UnimplementedError(name_ + " answers no prefix queries");
  if (status.ok() && (query.tokens_per_chunk == 0 || query.tokens_per_chunk > kMaxTokensPerChunk)) {
    status = InvalidArgumentError("tokens_per_chunk = " + std::to_string(query.tokens_per_chunk) +
                                  ", allowed 1..4096");
  }
  if (!status.ok() || !done) return Refuse<const PrefixMatch&>(done, PrefixMatch{status});
  auto answered = std::make_shared<std::atomic<bool>>(false);
  const MatchDone once = [answered, done = std::move(done)](const PrefixMatch& match) {
    if (!answered->exchange(true)) done(match);
  };
  status = GuardedAnswer(Measures::Violations(measures_), [&] {
    DoMatch(std::move(query), once);
    return OkStatus();
  });
  if (!status.ok()) once(PrefixMatch{status});
}

void Backend::Release(std::string_view lease_token) {
  if (!Ready().ok() || !capabilities().supports_match) return;
  // A lease that stays runs out.
  GuardedAnswer(Measures::Violations(measures_), [&] {
    DoRelease(lease_token);
    return OkStatus();
  }).IgnoreError();
}

Status Backend::Close(TimePoint deadline) {
  // The second call passes too: an earlier one may have left orphans behind.
  closed_ = true;
  if (!attached_.load(std::memory_order_acquire)) return OkStatus();
  return GuardedAnswer(Measures::Violations(measures_), [&] { return DoClose(deadline); });
}

std::vector<BufferRef> Backend::DoBorrow(std::span<const ObjectId> ids) {
  return std::vector<BufferRef>(ids.size());
}
void Backend::DoMatch(PrefixQuery, MatchDone done) {
  done(PrefixMatch{UnimplementedError(name_ + " answers no prefix queries")});
}
void Backend::DoRelease(std::string_view) {}

}  // namespace terrace
