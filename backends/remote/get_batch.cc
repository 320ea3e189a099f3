#include "backends/remote/get_batch.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "backends/remote/get_stream.h"
#include "backends/remote/get_transfer.h"
#include "backends/remote/server_call.h"

namespace terrace::remote {
namespace {

constexpr uint64_t kMaxBytesPerCall = uint64_t{128} << 20;
constexpr size_t kCallsAtOnce = 2;

class GetBatch final : public Cancellable, public std::enable_shared_from_this<GetBatch> {
 public:
  GetBatch(std::shared_ptr<ServerLink> link, GetDone done) : link_(std::move(link)), done_(std::move(done)) {}

  void Start(std::vector<GetOp> ops) {
    LinkEnvironment& environment = link_->environment();
    self_ = shared_from_this();
    ticket_ = environment.operations->Enter(weak_from_this());
    for (GetOp& op : ops) {
      const TimePoint deadline = environment.DeadlineOf(op.deadline);
      last_deadline_ = std::max(last_deadline_, deadline);
      has_cancels_ |= op.cancel != nullptr;
      transfers_.push_back(std::make_unique<GetTransfer>(std::move(op), deadline));
    }
    num_open_ = transfers_.size();
    is_closed_.resize(transfers_.size());
    call_of_.resize(transfers_.size());
    if (link_->is_down()) {
      environment.timers->Post([self = shared_from_this()] { self->EndAll(self->link_->DownStatus()); });
      return;
    }
    Watch();
    for (size_t i = 0; i < kCallsAtOnce; ++i) StartNextCall();
  }

  void Cancel() override { EndAll(CancelledError("closed")); }

 private:
  // Objects [first, first + numbers.size()), asked for together.
  struct Call {
    size_t first = 0;
    size_t count = 0;
    std::vector<uint64_t> numbers;  // of transfers; empty before the session is there
    SessionRef session;
    std::shared_ptr<GetStreamCall> stream;
    std::shared_ptr<Cancellable> unary;
    TimePoint sent_at;
    uint32_t tries = 0;
    bool has_reopened = false;
    bool is_answered = false;
    bool is_recorded = false;  // for the breaker
    size_t num_open = 0;
  };
  using CallRef = std::shared_ptr<Call>;

  void StartNextCall() {
    auto call = std::make_shared<Call>();
    {
      std::lock_guard lock(mutex_);
      call->first = next_;
      uint64_t bytes = 0;
      while (next_ < transfers_.size() && call->count < link_->max_batch()) {
        const uint64_t more = transfers_[next_]->most_bytes();
        if (call->count > 0 && bytes + more > kMaxBytesPerCall) break;
        bytes += more;
        call_of_[next_] = call;
        call->num_open += is_closed_[next_] ? 0 : 1;
        ++call->count;
        ++next_;
      }
      if (call->count == 0) return;
    }
    if (call->num_open == 0) return StartNextCall();
    Attempt(call);
  }

  void Attempt(const CallRef& call) {
    link_->WithSession(last_deadline_,
                       [self = shared_from_this(), call](const Status& status, const SessionRef& session) {
                         if (!status.ok()) return self->OnNoSession(call, status);
                         self->Send(call, session);
                       });
  }

  // May come inside the call of Start.
  void OnNoSession(const CallRef& call, const Status& status) {
    link_->environment().timers->Post([self = shared_from_this(), call, status] {
      if (!self->Retry(call, status)) self->EndObjects(call, status);
    });
  }

  void Send(const CallRef& call, const SessionRef& session) {
    v1::GetRequest request;
    uint64_t most_bytes = 0;
    {
      std::lock_guard lock(mutex_);
      call->session = session;
      call->sent_at = link_->environment().clock->Now();
      call->is_recorded = false;
      call->numbers.clear();
      for (size_t i = 0; i < call->count; ++i) call->numbers.push_back(link_->NextTransfer());
    }
    request.set_session_id(session->id);
    for (size_t i = 0; i < call->count; ++i) {
      GetTransfer& transfer = *transfers_[call->first + i];
      transfer.FillRequest(call->numbers[i], request.add_objects());
      most_bytes += transfer.most_bytes();
      AddLanding(call, i);
    }
    const Duration limit = last_deadline_ - link_->environment().clock->Now();
    if (limit <= Duration::zero()) return;  // Watch ends the objects
    if (session->path->uses_streams()) {
      link_->metrics().calls->Add();
      GetStreamCall::Options options{
          .channel = link_->channel(),
          .landings = session->landings,
          .most_bytes = most_bytes,
          .num_objects = static_cast<int>(call->count),
          .limit = limit,
          .on_results = [self = shared_from_this(),
                         call](const v1::GetPart& part) { self->OnResults(call, part.results()); },
          .on_end = [self = shared_from_this(), call](
                        const Status& status, bool is_taken) { self->OnStreamEnd(call, status, is_taken); }};
      SetRunning(call, GetStreamCall::Start(request, std::move(options)), nullptr);
      return;
    }
    using Unary = ServerCall<v1::GetRequest, v1::GetResponse>;
    SetRunning(call, nullptr,
               Unary::Start(link_, &Unary::Stub::Get, std::move(request),
                            {.deadline = last_deadline_,
                             .is_idempotent = false,
                             .counts_deadline = false,
                             .session = session},
                            [self = shared_from_this(), call](const Status& status, const SessionRef&,
                                                              v1::GetResponse& response) {
                              self->OnUnaryEnd(call, status, response);
                            }));
  }

  void AddLanding(const CallRef& call, size_t i) {
    GetTransfer& transfer = *transfers_[call->first + i];
    BufferRef dst = transfer.destination();
    if (!dst) return;
    BufferRef lent =
        link_->environment().ledger->Lend(std::move(dst), BufferLedger::Use::kGet, transfer.most_bytes());
    Landing landing = transfer.MakeLanding(std::move(lent));
    const uint64_t number = call->numbers[i];
    landing.on_bytes = [weak = weak_from_this(), call, i](uint64_t offset, uint64_t n) {
      const auto self = weak.lock();
      if (!self) return;
      if (auto end = self->transfers_[call->first + i]->OnBytes(offset, n)) self->EndObject(call, i, *end);
    };
    landing.on_end = [weak = weak_from_this(), call, i](const Status& status) {
      // After the last byte of all that could come only the answer is missing.
      if (status.ok()) return;
      if (const auto self = weak.lock()) self->EndObject(call, i, status);
    };
    const Status added = call->session->landings->Add(number, std::move(landing));
    if (!added.ok()) return EndObject(call, i, added);
    // It may have ended meanwhile, before there was a landing to drop.
    if (transfer.has_ended()) call->session->landings->Drop(number);
  }

  void SetRunning(const CallRef& call, std::shared_ptr<GetStreamCall> stream,
                  std::shared_ptr<Cancellable> unary) {
    bool is_over = false;
    {
      std::lock_guard lock(mutex_);
      call->stream = stream;
      call->unary = unary;
      is_over = call->num_open == 0;  // ended before it was known here
    }
    if (is_over) CancelCall(call);
  }

  template <typename Results>
  void OnResults(const CallRef& call, const Results& results) {
    {
      std::lock_guard lock(mutex_);
      call->is_answered = true;
    }
    for (size_t i = 0; i < call->count; ++i) {
      const v1::GetResult& result = results.Get(static_cast<int>(i));
      if (result.result().code() == v1::RESULT_CODE_OK)
        call->session->path->OnGetResult(call->numbers[i], result);
      const auto end = transfers_[call->first + i]->OnAnswer(result);
      if (!end) continue;
      if (end->code() == StatusCode::kDataLoss) link_->metrics().violations->Add();
      EndObject(call, i, *end);
    }
  }

  void OnStreamEnd(const CallRef& call, const Status& status, bool is_taken) {
    if (status.code() == StatusCode::kDataLoss) link_->metrics().violations->Add();
    RecordOnce(call, status);
    // All bytes came in the stream: what has none by now gets none.
    const Status end = status.ok() ? DataLossError("a result without all of its bytes") : status;
    if (!is_taken && Retry(call, status)) return;
    EndObjects(call, end);
  }

  void RecordOnce(const CallRef& call, const Status& status) {
    Duration given{};
    {
      std::lock_guard lock(mutex_);
      if (!call->session || std::exchange(call->is_recorded, true)) return;
      given = link_->environment().clock->Now() - call->sent_at;
    }
    link_->Record(status, given);
  }

  void OnUnaryEnd(const CallRef& call, const Status& status, const v1::GetResponse& response) {
    if (!status.ok()) {
      if (!Retry(call, status)) EndObjects(call, status);
      return;
    }
    if (response.results_size() != static_cast<int>(call->count)) {
      link_->metrics().violations->Add();
      return EndObjects(call, DataLossError(std::to_string(response.results_size()) + " results of " +
                                            std::to_string(call->count) + " objects"));
    }
    OnResults(call, response.results());
  }

  // Whether the call is sent again: the server knew no session, or took nothing.
  bool Retry(const CallRef& call, const Status& status) {
    const bool is_forgotten = status.code() == StatusCode::kFailedPrecondition && !call->has_reopened;
    const bool is_away = status.code() == StatusCode::kUnavailable && !link_->is_down() &&
                         call->tries < link_->environment().options.retries;
    if (!is_forgotten && !is_away) return false;
    for (size_t i = 0; i < call->count; ++i) {
      const GetTransfer& transfer = *transfers_[call->first + i];
      if (!transfer.has_ended() && !transfer.is_untouched()) return false;
    }
    DropLandings(call);
    for (size_t i = 0; i < call->count; ++i) {
      const GetTransfer& transfer = *transfers_[call->first + i];
      if (!transfer.has_ended() && transfer.is_lent()) return false;
    }
    if (is_forgotten) {
      call->has_reopened = true;
      link_->Forget(call->session);
      Attempt(call);
      return true;
    }
    link_->metrics().retries->Add();
    link_->environment().timers->After(RetryPause(call->tries++),
                                       [self = shared_from_this(), call] { self->Attempt(call); });
    return true;
  }

  void DropLandings(const CallRef& call) {
    if (!call->session) return;
    for (const uint64_t number : call->numbers) call->session->landings->Drop(number);
  }

  void EndObjects(const CallRef& call, const Status& status) {
    for (size_t i = 0; i < call->count; ++i) EndObject(call, i, status);
  }

  void EndObject(const CallRef& call, size_t i, const Status& status) { EndAt(call->first + i, status); }

  void EndAt(size_t at, const Status& status) {
    if (!transfers_[at]->End(status)) return;
    CallRef call;
    SessionRef session;
    uint64_t number = 0;
    bool is_call_over = false;
    bool is_batch_over = false;
    {
      std::lock_guard lock(mutex_);
      is_closed_[at] = true;
      call = call_of_[at];
      if (call) session = call->session;
      if (session) number = call->numbers[at - call->first];
    }
    // Before it counts as closed: Finish says what is lent still.
    if (session) session->landings->Drop(number);
    {
      std::lock_guard lock(mutex_);
      is_batch_over = --num_open_ == 0;
      if (call) is_call_over = --call->num_open == 0;
    }
    if (is_call_over) EndCall(call);
    if (is_batch_over) Finish();
  }

  void EndCall(const CallRef& call) {
    CancelCall(call);
    StartNextCall();
  }

  void CancelCall(const CallRef& call) {
    std::shared_ptr<GetStreamCall> stream;
    std::shared_ptr<Cancellable> unary;
    {
      std::lock_guard lock(mutex_);
      stream.swap(call->stream);
      unary.swap(call->unary);
      if (call->is_answered) return;  // it ends by itself
    }
    if (stream) stream->Cancel();
    if (unary) unary->Cancel();
  }

  // Ends what its deadline or its caller ends, and comes again.
  void Watch() {
    const TimePoint now = link_->environment().clock->Now();
    TimePoint next = kNoDeadline;
    for (size_t i = 0; i < transfers_.size(); ++i) {
      const GetTransfer& transfer = *transfers_[i];
      if (transfer.has_ended()) continue;
      if (transfer.is_cancelled()) {
        link_->metrics().cancelled->Add();
        EndAt(i, CancelledError("cancelled by its caller"));
      } else if (transfer.deadline() <= now) {
        link_->metrics().expired->Add();
        const Status late = DeadlineExceededError("not here before the deadline");
        if (const CallRef call = CallOf(i)) RecordOnce(call, late);
        EndAt(i, late);
      } else {
        next = std::min(next, transfer.deadline());
      }
    }
    if (next == kNoDeadline) return;
    if (has_cancels_) next = std::min(next, now + kCancelPoll);
    link_->environment().timers->At(next, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Watch();
    });
  }

  CallRef CallOf(size_t at) {
    std::lock_guard lock(mutex_);
    return call_of_[at];
  }

  void EndAll(const Status& status) {
    for (size_t i = 0; i < transfers_.size(); ++i) EndAt(i, status);
  }

  void Finish() {
    const auto self = std::move(self_);
    std::vector<GetResult> results;
    results.reserve(transfers_.size());
    for (const auto& transfer : transfers_) {
      results.push_back(transfer->result());
      Status& status = results.back().status;
      // Either would say that another server may fill the destination.
      const bool may_be_elsewhere =
          status.code() == StatusCode::kNotFound || status.code() == StatusCode::kUnavailable;
      if (may_be_elsewhere && transfer->is_lent())
        status = DeadlineExceededError(std::string(status.message()) + "; the server still sends it");
    }
    const GetDone done = std::move(done_);
    done(results);
    ticket_.reset();
  }

  const std::shared_ptr<ServerLink> link_;
  GetDone done_;
  OperationRegistry::Ticket ticket_;
  std::shared_ptr<GetBatch> self_;                       // until the end: bytes that are awaited hold nobody
  std::vector<std::unique_ptr<GetTransfer>> transfers_;  // not changed after Start
  TimePoint last_deadline_ = TimePoint::min();
  bool has_cancels_ = false;

  std::mutex mutex_;
  std::vector<CallRef> call_of_;  // by object; null before a call asks for it
  std::vector<bool> is_closed_;
  size_t next_ = 0;      // the first object that no call has asked for
  size_t num_open_ = 0;  // objects that have not ended
};

}  // namespace

void StartGet(std::shared_ptr<ServerLink> link, std::vector<GetOp> ops, GetDone done) {
  std::make_shared<GetBatch>(std::move(link), std::move(done))->Start(std::move(ops));
}

}  // namespace terrace::remote
