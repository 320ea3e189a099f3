#include "backends/remote/server_link.h"

#include <random>
#include <utility>

#include "backends/remote/server_call.h"
#include "backends/remote/wire_values.h"

namespace terrace::remote {
namespace {

constexpr size_t kMaxWaiters = 16384;
constexpr size_t kMaxReleases = 8192;
constexpr Duration kReleasePause = std::chrono::milliseconds(5);
constexpr Duration kMaxRenewPause = std::chrono::seconds(5);
// A call that had less time says little about the server when it ran out.
constexpr Duration kPatience = std::chrono::seconds(1);
constexpr size_t kRootsPerCall = 256;

uint64_t RandomWord() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Whether the server itself has answered, with whatever.
bool IsAnswer(const Status& status) {
  return status.code() != StatusCode::kUnavailable && status.code() != StatusCode::kDeadlineExceeded &&
         status.code() != StatusCode::kCancelled;
}

}  // namespace

Duration RetryPause(uint32_t tries) {
  thread_local std::minstd_rand random(std::random_device{}());
  const int64_t base = int64_t{10'000} << tries;
  return std::chrono::microseconds(base + std::uniform_int_distribution<int64_t>(0, base)(random));
}

ServerLink::ServerLink(ServerAddress address, uint64_t serial, std::shared_ptr<LinkEnvironment> environment)
    : address_(std::move(address)),
      serial_(serial),
      environment_(std::move(environment)),
      metrics_(*environment_->metrics, address_.text),
      channel_(MakeLinkChannel(address_, *environment_)),
      breaker_(environment_->options.breaker_failures, environment_->options.breaker_pause, RandomWord()),
      next_transfer_(RandomWord()) {}

void ServerLink::Log(LogLevel level, const std::string& message) const {
  environment_->log->Log(level, "remote", address_.text + ": " + message);
}

void ServerLink::WithSession(TimePoint deadline, SessionDone done) {
  if (is_down()) return done(DownStatus(), nullptr);
  SessionRef session;
  SessionRef lost;
  Status refused;
  bool must_open = false;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kOpen && !session_->path->status().ok()) {
      lost = std::exchange(session_, nullptr);
      state_ = State::kIdle;
    }
    if (state_ == State::kOpen) {
      session = session_;
    } else if (state_ == State::kClosed) {
      refused = CancelledError(name() + ": closed");
    } else if (waiters_.size() >= kMaxWaiters) {
      refused = ResourceExhaustedError(name() + ": 16384 operations wait for a session already");
    } else {
      number = next_waiter_++;
      waiters_.push_back({number, std::move(done)});
      must_open = state_ == State::kIdle;
      state_ = State::kOpening;
    }
  }
  lost.reset();
  if (session) return done(OkStatus(), session);
  if (!refused.ok()) return done(refused, nullptr);
  if (deadline != kNoDeadline) {
    environment_->timers->At(deadline, [weak = weak_from_this(), number] {
      if (const auto self = weak.lock()) self->ExpireWaiter(number);
    });
  }
  if (must_open) StartOpening();
}

void ServerLink::ExpireWaiter(uint64_t number) {
  SessionDone done;
  {
    std::lock_guard lock(mutex_);
    const auto waiter =
        std::find_if(waiters_.begin(), waiters_.end(), [&](const Waiter& w) { return w.number == number; });
    if (waiter == waiters_.end()) return;
    done = std::move(waiter->done);
    waiters_.erase(waiter);
  }
  done(DeadlineExceededError("no session with " + name() + " before the deadline"), nullptr);
}

void ServerLink::FinishOpening(const Status& status, SessionRef session) {
  std::list<Waiter> waiters;
  bool must_renew = false;
  Status answer = status;
  {
    std::lock_guard lock(mutex_);
    waiters.swap(waiters_);
    if (state_ == State::kClosed) {
      answer = CancelledError(name() + ": closed");
    } else {
      state_ = status.ok() ? State::kOpen : State::kIdle;
      session_ = status.ok() ? session : nullptr;
      must_renew = status.ok() && !std::exchange(is_renewing_, true);
    }
  }
  if (answer.ok()) {
    max_batch_ = session->max_batch;
    metrics_.sessions->Add();
    if (breaker_.is_open()) {
      breaker_.ProbeSucceeded();
      metrics_.breaker_open->Set(0);
      Log(LogLevel::kInfo, "answers again");
    } else {
      breaker_.RecordSuccess();
    }
    if (must_renew) Renew();
    SendReleases();
  } else if (answer.code() != StatusCode::kCancelled) {
    metrics_.session_failures->Add();
    metrics_.SetPath("");
    OnFailedOpening(answer);
  }
  for (Waiter& waiter : waiters) waiter.done(answer, answer.ok() ? session : nullptr);
}

void ServerLink::TellFirstNews() {
  if (!has_told_.exchange(true)) environment_->news->Tell();
}

void ServerLink::Connect() {
  WithSession(environment_->DeadlineOf(kNoDeadline), [](const Status&, const SessionRef&) {});
}

void ServerLink::OnFailedOpening(const Status& why) {
  TellFirstNews();
  if (!breaker_.is_open()) return OnFailure(breaker_.RecordFailure(), why);
  ProbeAfter(breaker_.ProbeFailed());
}

void ServerLink::ProbeAfter(Duration pause) {
  if (is_probe_due_.exchange(true)) return;
  environment_->timers->After(pause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Probe();
  });
}

// `opened_for`: the breaker has opened just now.
void ServerLink::OnFailure(std::optional<Duration> opened_for, const Status& why) {
  if (!opened_for) return;
  metrics_.breaker_openings->Add();
  metrics_.breaker_open->Set(1);
  Log(LogLevel::kWarning, "is given up for now: " + why.ToString());
  SessionRef dropped;
  {
    std::lock_guard lock(mutex_);
    dropped = std::exchange(session_, nullptr);
    if (state_ == State::kOpen) state_ = State::kIdle;
  }
  dropped.reset();
  ProbeAfter(*opened_for);
}

void ServerLink::Probe() {
  is_probe_due_ = false;
  if (!breaker_.BeginProbe()) return;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kIdle) return;  // an attempt is under way, and ends the probe; or it is closed
    state_ = State::kOpening;
  }
  StartOpening();
}

void ServerLink::Record(const Status& status, Duration given) {
  if (IsAnswer(status)) return breaker_.RecordSuccess();
  if (status.code() == StatusCode::kCancelled) return;
  if (status.code() == StatusCode::kUnavailable ||
      given >= std::min(kPatience, environment_->options.operation_deadline)) {
    return OnFailure(breaker_.RecordFailure(), status);
  }
  Suspect();
}

void ServerLink::Suspect() {
  if (is_down() || is_suspected_.exchange(true)) return;
  SessionRef session;
  {
    std::lock_guard lock(mutex_);
    session = session_;
  }
  if (!session) {
    is_suspected_ = false;
    return;
  }
  CallOptions options{.deadline = environment_->clock->Now() + environment_->options.connect_deadline,
                      .is_idempotent = false,
                      .counts_deadline = false,
                      .session = session};
  using Call = ServerCall<v1::StatsRequest, v1::StatsResponse>;
  Call::Start(shared_from_this(), &Call::Stub::Stats, {}, std::move(options),
              [self = shared_from_this()](const Status& status, const SessionRef&, v1::StatsResponse&) {
                self->is_suspected_ = false;
                if (status.code() == StatusCode::kDeadlineExceeded)
                  self->OnFailure(self->breaker_.Trip(), UnavailableError("does not answer"));
              });
}

void ServerLink::Forget(const SessionRef& session) {
  if (!session) return;
  session->is_forgotten = true;
  std::lock_guard lock(mutex_);
  if (session_ != session || state_ != State::kOpen) return;
  session_ = nullptr;  // `session` is held by the caller: nothing ends under the lock
  state_ = State::kIdle;
}

void ServerLink::SendRoots(const SessionRef& session, TimePoint deadline, StatusDone done) {
  size_t first = 0;
  {
    std::lock_guard lock(mutex_);
    if (roots_server_ != session->server_id) {
      roots_server_ = session->server_id;
      roots_sent_ = 0;
    }
    first = roots_sent_;
  }
  const std::vector<RootRecord> records = environment_->roots->From(first, kRootsPerCall);
  if (records.empty()) return done(OkStatus());
  v1::PutRootsRequest request;
  for (const RootRecord& record : records) SetRoot(record, request.add_roots());
  using Call = ServerCall<v1::PutRootsRequest, v1::PutRootsResponse>;
  Call::Start(shared_from_this(), &Call::Stub::PutRoots, std::move(request),
              {.deadline = deadline, .session = session},
              [self = shared_from_this(), session, deadline, done = std::move(done), first,
               n = records.size()](const Status& status, const SessionRef&, v1::PutRootsResponse& response) {
                if (!status.ok() && status.code() != StatusCode::kPermissionDenied) return done(status);
                self->OnRootsAnswer(session, first + n, response);
                self->SendRoots(session, deadline, done);
              });
}

// A refused root is not sent again: puts under it fail, one by one, and say why.
void ServerLink::OnRootsAnswer(const SessionRef& session, size_t sent, const v1::PutRootsResponse& response) {
  for (const v1::Result& result : response.results()) {
    const Status status = FromResult(result);
    if (status.ok() || status.code() == StatusCode::kAlreadyExists) continue;
    metrics_.roots_refused->Add();
    Log(LogLevel::kWarning, "refuses a root: " + status.ToString());
  }
  std::lock_guard lock(mutex_);
  if (roots_server_ == session->server_id) roots_sent_ = std::max(roots_sent_, sent);
}

void ServerLink::SendRootsSoon() {
  SessionRef session;
  {
    std::lock_guard lock(mutex_);
    session = session_;
  }
  if (!session || is_down()) return;
  // Where it fails the next put sends them.
  SendRoots(session, environment_->DeadlineOf(kNoDeadline), [](const Status&) {});
}

void ServerLink::Release(std::string lease) {
  bool is_first = false;
  bool is_full = false;
  {
    std::lock_guard lock(mutex_);
    is_full = releases_.size() >= kMaxReleases;
    if (!is_full) {
      releases_.push_back(std::move(lease));
      is_first = releases_.size() == 1;
    }
  }
  if (is_full) return metrics_.leases_dropped->Add();
  if (!is_first) return;
  environment_->timers->After(kReleasePause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->SendReleases();
  });
}

void ServerLink::ReleasePlaces(std::vector<uint64_t> places) {
  v1::ReleaseRequest request;
  for (const uint64_t place : places) request.add_places(place);
  StartRelease(std::move(request));
}

void ServerLink::SendReleases() {
  v1::ReleaseRequest request;
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kOpening) return;  // FinishOpening sends them
    for (std::string& lease : releases_) request.add_leases(std::move(lease));
    releases_.clear();
  }
  if (request.leases_size() > 0) StartRelease(std::move(request));
}

void ServerLink::StartRelease(v1::ReleaseRequest request) {
  const auto n = static_cast<uint64_t>(request.leases_size());
  SessionRef session;
  {
    std::lock_guard lock(mutex_);
    session = session_;
  }
  // Without a session the leases are gone with it.
  if (!session || is_down()) return metrics_.leases_dropped->Add(n);
  using Call = ServerCall<v1::ReleaseRequest, v1::ReleaseResponse>;
  Call::Start(shared_from_this(), &Call::Stub::Release, std::move(request), {.session = session},
              [self = shared_from_this(), n](const Status& status, const SessionRef&, v1::ReleaseResponse&) {
                if (!status.ok()) self->metrics_.leases_dropped->Add(n);
              });
}

void ServerLink::Renew() {
  SessionRef session;
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kClosed) return;
    session = session_;
    if (!session) {
      is_renewing_ = false;  // begins again with the next session
      return;
    }
  }
  const Duration pause = std::min(kMaxRenewPause, session->ttl / 3);
  session.reset();
  RefreshStats(environment_->DeadlineOf(kNoDeadline), [weak = weak_from_this(), pause](const Status&) {
    const auto self = weak.lock();
    if (!self) return;
    self->environment_->timers->After(pause, [weak] {
      if (const auto link = weak.lock()) link->Renew();
    });
  });
}

void ServerLink::RefreshStats(TimePoint deadline, StatusDone done) {
  using Call = ServerCall<v1::StatsRequest, v1::StatsResponse>;
  Call::Start(shared_from_this(), &Call::Stub::Stats, {}, {.deadline = deadline},
              [self = shared_from_this(), done = std::move(done)](const Status& status, const SessionRef&,
                                                                  v1::StatsResponse& stats) {
                if (status.ok()) self->TakeStats(stats);
                done(status);
              });
}

// Frames of a faster tier lie in the slower ones too, or will: the largest tier's figures are the server's.
void ServerLink::TakeStats(const v1::StatsResponse& stats) {
  uint64_t capacity = 0;
  uint64_t used = 0;
  for (const v1::TierStats& tier : stats.tiers()) {
    if (tier.capacity_bytes() <= capacity) continue;
    capacity = tier.capacity_bytes();
    used = tier.used_bytes();
  }
  capacity_bytes_ = capacity;
  used_bytes_ = used;
  TellFirstNews();
}

void ServerLink::OnPathLost(const Status& why) {
  if (why.code() == StatusCode::kDataLoss) metrics_.violations->Add();
  Log(LogLevel::kWarning, "the data path is lost: " + why.ToString());
}

void ServerLink::SayPath(const std::string& path, const std::string& why_not) {
  metrics_.SetPath(path);
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(last_path_, path) == path) return;
  }
  Log(why_not.empty() ? LogLevel::kInfo : LogLevel::kWarning,
      "bytes move by " + path + (why_not.empty() ? "" : ": " + why_not));
}

void ServerLink::Close() {
  std::list<Waiter> waiters;
  SessionRef session;
  {
    std::lock_guard lock(mutex_);
    state_ = State::kClosed;
    waiters.swap(waiters_);
    session = std::exchange(session_, nullptr);
  }
  for (Waiter& waiter : waiters) waiter.done(CancelledError(name() + ": closed"), nullptr);
}

}  // namespace terrace::remote
