#include "backends/remote/put_batch.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "backends/remote/server_call.h"

namespace terrace::remote {
namespace {

class PutBatch final : public Cancellable, public std::enable_shared_from_this<PutBatch> {
 public:
  PutBatch(std::shared_ptr<ServerLink> link, CommitOrder order, PutDone done)
      : link_(std::move(link)), order_(std::move(order)), done_(std::move(done)) {}

  void Start(std::vector<PutOp> ops) {
    LinkEnvironment& environment = link_->environment();
    self_ = shared_from_this();
    ticket_ = environment.operations->Enter(weak_from_this());
    num_open_ = ops.size();
    for (PutOp& op : ops) {
      Item item{.op = std::move(op)};
      item.deadline = environment.DeadlineOf(item.op.deadline);
      last_deadline_ = std::max(last_deadline_, item.deadline);
      has_cancels_ |= item.op.cancel != nullptr;
      items_.push_back(std::move(item));
    }
    if (link_->is_down()) return EndSoon(link_->DownStatus());
    for (Item& item : items_) {
      item.lent = environment.ledger->Lend(item.op.frame, BufferLedger::Use::kPut, item.op.meta.frame_bytes);
      item.op.frame.Reset();
      item.is_refused = !item.lent;
    }
    // Refusals and expiry end on the timers' thread, not inside the call.
    environment.timers->Post([self = shared_from_this()] {
      self->EndRefused();
      self->Watch();
    });
    link_->WithSession(
        last_deadline_, [self = shared_from_this()](const Status& status, const SessionRef& session) {
          if (!status.ok()) return self->EndSoon(status);
          self->link_->SendRoots(session, self->last_deadline_, [self, session](const Status& sent) {
            if (!sent.ok()) return self->EndSoon(sent);
            self->StartGroups();
          });
        });
  }

  void Cancel() override { EndAll(CancelledError("closed")); }

 private:
  struct Item {
    PutOp op;
    BufferRef lent;  // empty: refused, or given to the path
    TimePoint deadline;
    bool is_refused = false;  // over the ledger's limit
    bool has_ended = false;
    bool is_sending = false;
    bool is_abandoned = false;  // the server is to be told once it is no longer sent
    uint64_t transfer = 0;
    SessionRef session;
    Status result;
  };
  // Items [first, first + count) are begun and committed together.
  struct Group {
    size_t first = 0;
    size_t count = 0;
    std::vector<size_t> needed;  // items, in the order of the commit
  };
  using GroupRef = std::shared_ptr<Group>;

  void EndSoon(const Status& status) {
    link_->environment().timers->Post([self = shared_from_this(), status] { self->EndAll(status); });
  }

  void EndRefused() {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!items_[i].is_refused) continue;
      link_->metrics().puts_refused->Add();
      End(i, ResourceExhaustedError("inflight_bytes of puts are on their way"));
    }
  }

  void StartGroups() {
    for (size_t first = 0; first < items_.size(); first += link_->max_batch()) {
      auto group = std::make_shared<Group>();
      group->first = first;
      group->count = std::min(link_->max_batch(), items_.size() - first);
      Begin(group);
    }
  }

  void Begin(const GroupRef& group) {
    v1::BeginPutRequest request;
    // What has ended by now is not begun: the group is made of the rest.
    std::vector<size_t> begun;
    {
      std::lock_guard lock(mutex_);
      for (size_t i = group->first; i < group->first + group->count; ++i) {
        if (items_[i].has_ended || !items_[i].lent) continue;
        SetPutObject(items_[i].op.id, items_[i].op.meta, request.add_objects());
        begun.push_back(i);
      }
    }
    if (begun.empty()) return;
    using Call = ServerCall<v1::BeginPutRequest, v1::BeginPutResponse>;
    Call::Start(link_, &Call::Stub::BeginPut, std::move(request), {.deadline = last_deadline_},
                [self = shared_from_this(), group, begun](const Status& status, const SessionRef& session,
                                                          v1::BeginPutResponse& response) {
                  self->OnNeeds(group, begun, status, session, response);
                });
  }

  void OnNeeds(const GroupRef& group, const std::vector<size_t>& begun, const Status& status,
               const SessionRef& session, const v1::BeginPutResponse& response) {
    Status wrong = status;
    if (wrong.ok() && response.needs_size() != static_cast<int>(begun.size())) {
      link_->metrics().violations->Add();
      wrong = DataLossError(std::to_string(response.needs_size()) + " answers of " +
                            std::to_string(begun.size()) + " puts");
    }
    v1::CommitPutRequest commit;
    std::vector<std::pair<v1::PutNeed, BufferRef>> sends;
    for (size_t k = 0; k < begun.size(); ++k) {
      const size_t i = begun[k];
      if (!wrong.ok()) {
        EndSoonAt(i, wrong);
        continue;
      }
      const v1::PutNeed& need = response.needs(static_cast<int>(k));
      if (const Status needed = FromResult(need.result()); !needed.ok()) {
        EndSoonAt(i, needed);
        continue;
      }
      std::lock_guard lock(mutex_);
      Item& item = items_[i];
      item.transfer = need.transfer();
      item.session = session;
      if (item.has_ended) {
        item.is_abandoned = true;
        abandoned_.push_back(item.transfer);
        continue;
      }
      item.is_sending = true;
      group->needed.push_back(i);
      commit.add_transfers(need.transfer());
      sends.emplace_back(need, std::move(item.lent));
    }
    Abandon(session);
    if (sends.empty()) return;
    const auto unsent = std::make_shared<std::atomic<size_t>>(sends.size());
    const bool commits_after_sent = session->path->commits_after_sent();
    std::function<void()> commit_now = [self = shared_from_this(), group, session,
                                        commit = std::move(commit)] {
      self->order_(self->ParentsOf(*group),
                   [self, group, session, commit] { self->Commit(group, session, commit); });
    };
    for (size_t k = 0; k < sends.size(); ++k) {
      const size_t i = group->needed[k];
      session->path->SendPut(sends[k].first, std::move(sends[k].second), items_[i].op.meta.frame_bytes,
                             [self = shared_from_this(), i, unsent,
                              commit_last = commits_after_sent ? commit_now : nullptr](const Status& sent) {
                               self->OnSent(i, sent);
                               if (--*unsent == 0 && commit_last) commit_last();
                             });
    }
    if (!commits_after_sent) commit_now();
  }

  std::vector<ObjectId> ParentsOf(const Group& group) const {
    std::vector<ObjectId> parents;
    for (const size_t i : group.needed) {
      const PutOp& op = items_[i].op;
      if (op.meta.first_token > 0) parents.push_back({op.meta.parent, op.id.part});
    }
    // Of those in this batch the server knows the order.
    std::erase_if(parents, [this](const ObjectId& parent) {
      return std::any_of(items_.begin(), items_.end(),
                         [&](const Item& item) { return item.op.id == parent; });
    });
    return parents;
  }

  void Commit(const GroupRef& group, const SessionRef& session, v1::CommitPutRequest commit) {
    using Call = ServerCall<v1::CommitPutRequest, v1::CommitPutResponse>;
    // The server waits for bytes there: the deadline speaks against neither.
    Call::Start(
        link_, &Call::Stub::CommitPut, std::move(commit),
        {.deadline = last_deadline_, .is_idempotent = false, .counts_deadline = false, .session = session},
        [self = shared_from_this(), group](const Status& status, const SessionRef&,
                                           v1::CommitPutResponse& response) {
          self->OnCommitted(*group, status, response);
        });
  }

  void OnCommitted(const Group& group, const Status& status, const v1::CommitPutResponse& response) {
    Status wrong = status;
    if (wrong.ok() && response.results_size() != static_cast<int>(group.needed.size())) {
      link_->metrics().violations->Add();
      wrong = DataLossError(std::to_string(response.results_size()) + " results of " +
                            std::to_string(group.needed.size()) + " commits");
    }
    for (size_t k = 0; k < group.needed.size(); ++k) {
      const Status result = wrong.ok() ? FromResult(response.results(static_cast<int>(k))) : wrong;
      if (result.ok()) link_->AddUsed(items_[group.needed[k]].op.meta.frame_bytes);
      End(group.needed[k], result, wrong.ok());
    }
  }

  void OnSent(size_t i, const Status& sent) {
    SessionRef session;
    {
      std::lock_guard lock(mutex_);
      Item& item = items_[i];
      item.is_sending = false;
      session = item.session;
      // Without all of its bytes the transfer would keep the commit waiting.
      if (!sent.ok()) item.is_abandoned = true;
      if (item.is_abandoned) abandoned_.push_back(item.transfer);
    }
    Abandon(session);
    if (!sent.ok()) EndSoonAt(i, sent);
  }

  void Abandon(const SessionRef& session) {
    v1::CommitPutRequest request;
    {
      std::lock_guard lock(mutex_);
      for (const uint64_t transfer : abandoned_) request.add_abandoned(transfer);
      abandoned_.clear();
    }
    if (request.abandoned_size() == 0) return;
    using Call = ServerCall<v1::CommitPutRequest, v1::CommitPutResponse>;
    // Where it fails the server drops them after a while.
    Call::Start(link_, &Call::Stub::CommitPut, std::move(request),
                {.is_idempotent = false, .session = session},
                [](const Status&, const SessionRef&, v1::CommitPutResponse&) {});
  }

  void EndSoonAt(size_t i, const Status& status) {
    link_->environment().timers->Post([self = shared_from_this(), i, status] { self->End(i, status); });
  }

  // `is_settled`: the server has said what came of the transfer, and keeps nothing of it.
  void End(size_t i, const Status& status, bool is_settled = false) {
    BufferRef unsent;
    SessionRef session;
    bool is_batch_over = false;
    uint64_t transfer = 0;
    {
      std::lock_guard lock(mutex_);
      Item& item = items_[i];
      if (item.has_ended) return;
      item.has_ended = true;
      item.result = status;
      unsent = std::move(item.lent);
      if (item.is_sending) {
        item.is_abandoned = !is_settled;  // OnSent tells the server
        transfer = item.transfer;
        if (!status.ok()) session = item.session;
      }
      is_batch_over = --num_open_ == 0;
    }
    unsent.Reset();
    if (session) session->path->CancelPut(transfer);
    if (is_batch_over) Finish();
  }

  void EndAll(const Status& status) {
    for (size_t i = 0; i < items_.size(); ++i) End(i, status);
  }

  void Watch() {
    const TimePoint now = link_->environment().clock->Now();
    TimePoint next = kNoDeadline;
    for (size_t i = 0; i < items_.size(); ++i) {
      {
        std::lock_guard lock(mutex_);
        if (items_[i].has_ended) continue;
      }
      const Item& item = items_[i];
      if (item.op.cancel && item.op.cancel->load(std::memory_order_acquire)) {
        link_->metrics().cancelled->Add();
        End(i, CancelledError("cancelled by its caller"));
      } else if (item.deadline <= now) {
        link_->metrics().expired->Add();
        End(i, DeadlineExceededError("not stored before the deadline"));
      } else {
        next = std::min(next, item.deadline);
      }
    }
    if (next == kNoDeadline) return;
    if (has_cancels_) next = std::min(next, now + kCancelPoll);
    link_->environment().timers->At(next, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Watch();
    });
  }

  void Finish() {
    const auto self = std::move(self_);
    std::vector<Status> results;
    results.reserve(items_.size());
    for (const Item& item : items_) results.push_back(item.result);
    const PutDone done = std::move(done_);
    done(results);
    ticket_.reset();
  }

  const std::shared_ptr<ServerLink> link_;
  const CommitOrder order_;
  PutDone done_;
  OperationRegistry::Ticket ticket_;
  std::shared_ptr<PutBatch> self_;  // until the end: bytes that are awaited hold nobody
  TimePoint last_deadline_ = TimePoint::min();
  bool has_cancels_ = false;

  std::mutex mutex_;
  std::vector<Item> items_;  // as many as at the start; op.meta, op.id, op.cancel and deadline do not change
  std::vector<uint64_t> abandoned_;
  size_t num_open_ = 0;
};

}  // namespace

void StartPut(std::shared_ptr<ServerLink> link, std::vector<PutOp> ops, CommitOrder order, PutDone done) {
  std::make_shared<PutBatch>(std::move(link), std::move(order), std::move(done))->Start(std::move(ops));
}

}  // namespace terrace::remote
