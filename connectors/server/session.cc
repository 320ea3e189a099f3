#include <algorithm>
#include <deque>

#include "connectors/server/session_table.h"

namespace terrace::server {

// Lock order: a session's mutex, then the deadline queue's. Landing table, store, connections and callbacks
// are called without it.
struct Session::State {
  // One TakeWhole.
  struct Wait {
    std::vector<Status> arrived;
    std::vector<PutTransfer> taken;
    std::vector<uint64_t> awaited;  // numbers of the transfers that are not settled; 0: settled
    size_t num_missing = 0;
    CommitDone done;
    std::optional<DeadlineQueue::Handle> deadline;
  };
  struct Held {
    PutTransfer put;
    bool whole = false;
    Status failed;  // not OK: no more bytes come
    std::shared_ptr<Wait> wait;
    size_t place = 0;  // in the wait
  };

  struct WaitingSend {
    uint64_t transfer = 0;
    BufferRef frame;
    std::vector<FrameRange> ranges;
    std::function<void(const Status&)> sent;
  };

  explicit State(SessionSupport given) : support(std::move(given)) {
    if (!support.use) support.use = std::make_shared<TenantUse>();
    if (!support.deadlines) support.deadlines = std::make_shared<DeadlineQueue>();
    last_use = support.clock->Now().time_since_epoch().count();
  }

  // Under the lock: puts what came of a transfer into its wait. True: the wait is over.
  static bool Settle(Wait& wait, size_t place, Status status, PutTransfer put) {
    wait.arrived[place] = std::move(status);
    wait.taken[place] = std::move(put);
    wait.awaited[place] = 0;
    return --wait.num_missing == 0;
  }
  // Without the lock, by the one who settled the last.
  void Complete(const std::shared_ptr<Wait>& wait) {
    if (wait->deadline) support.deadlines->Remove(*wait->deadline);
    wait->done(std::move(wait->arrived), std::move(wait->taken));
  }
  void TransferEnded(uint64_t number, const Status& status);
  // The transfer with its memory, after its wait was told `why`.
  std::optional<PutTransfer> Extract(uint64_t number, const Status& why);
  void Expire(const std::shared_ptr<Wait>& wait, LandingTable& landings);

  SessionSupport support;
  mutable std::mutex mutex;
  bool ended = false;
  uint64_t last_number = 0;
  absl::flat_hash_map<uint64_t, Held> transfers;
  absl::flat_hash_set<std::string> leases;
  std::deque<std::string> lease_order;
  std::vector<std::shared_ptr<BulkConnection>> bulk;
  size_t bulk_expected = 0;
  std::vector<WaitingSend> waiting_sends;  // empty unless a connection is expected
  std::shared_ptr<ShmArea> shm;
  std::atomic<int64_t> last_use{0};
};

void Session::State::TransferEnded(uint64_t number, const Status& status) {
  std::shared_ptr<Wait> over;
  PutTransfer dropped;  // its memory goes back without the lock
  {
    const std::lock_guard lock(mutex);
    const auto found = transfers.find(number);
    if (found == transfers.end()) return;
    Held& held = found->second;
    if (held.wait) {
      const std::shared_ptr<Wait> wait = held.wait;
      PutTransfer put = std::move(held.put);
      const size_t place = held.place;
      transfers.erase(found);
      if (!status.ok()) std::swap(put, dropped);
      if (Settle(*wait, place, status, std::move(put))) over = wait;
    } else if (status.ok()) {
      held.whole = true;
    } else {
      held.failed = status;
      dropped.frame = std::move(held.put.frame);
      dropped.charge = std::move(held.put.charge);
    }
  }
  if (over) Complete(over);
}

std::optional<PutTransfer> Session::State::Extract(uint64_t number, const Status& why) {
  std::shared_ptr<Wait> over;
  std::optional<PutTransfer> put;
  {
    const std::lock_guard lock(mutex);
    const auto found = transfers.find(number);
    if (found == transfers.end()) return std::nullopt;
    put = std::move(found->second.put);
    const std::shared_ptr<Wait> wait = found->second.wait;
    const size_t place = found->second.place;
    transfers.erase(found);
    if (wait && Settle(*wait, place, why, PutTransfer{})) over = wait;
  }
  if (over) Complete(over);
  return put;
}

void Session::State::Expire(const std::shared_ptr<Wait>& wait, LandingTable& landings) {
  std::vector<uint64_t> late;
  {
    const std::lock_guard lock(mutex);
    for (const uint64_t number : wait->awaited) {
      if (number != 0) late.push_back(number);
    }
  }
  for (const uint64_t number : late) {
    landings.Drop(number);
    Extract(number, DeadlineExceededError("not all bytes came in time"));
  }
}

Session::Session(SessionId session_id, TenantRef session_tenant, NamespaceRef session_store,
                 SessionSupport support)
    : id(session_id),
      tenant(std::move(session_tenant)),
      name_space(std::move(session_store)),
      landings(std::make_shared<LandingTable>()),
      state_(std::make_shared<State>(std::move(support))) {}

Session::~Session() { End(); }

uint64_t Session::AddTransfer(PutTransfer transfer) {
  const std::shared_ptr<ShmArea> area = transfer.staging_offset ? shm() : nullptr;
  transfer.charge =
      std::shared_ptr<void>(nullptr, [use = state_->support.use, bytes = transfer.meta.frame_bytes, area,
                                      offset = transfer.staging_offset.value_or(0)](void*) {
        use->GiveBytes(bytes);
        if (area) area->FreeStaging(offset);
      });
  transfer.drop_at = state_->support.clock->Now() + state_->support.transfer_ttl;
  const bool staged = transfer.staging_offset.has_value();
  Landing landing;
  landing.memory = transfer.frame->bytes();
  landing.ranges = {FrameRange{0, transfer.meta.frame_bytes, 0}};
  // What a late receiver still writes to is charged until it has let go.
  landing.keep = std::make_shared<std::pair<std::shared_ptr<ArrivingFrame>, std::shared_ptr<void>>>(
      transfer.frame, transfer.charge);
  landing.on_bytes = [frame = transfer.frame](uint64_t offset, uint64_t n) { frame->MarkPresent(offset, n); };
  uint64_t number = 0;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ended || state_->transfers.size() >= kMaxTransfers) return 0;
    number = ++state_->last_number;
    State::Held held;
    held.put = std::move(transfer);
    held.whole = staged;
    state_->transfers.emplace(number, std::move(held));
  }
  if (staged) return number;  // copied out at commit
  landing.on_end = [weak = std::weak_ptr<State>(state_), number](const Status& status) {
    if (const auto state = weak.lock()) state->TransferEnded(number, status);
  };
  if (const Status status = landings->Add(number, std::move(landing)); !status.ok()) {
    state_->Extract(number, status);
    return 0;
  }
  // An end in between would not have seen the landing.
  if (ended()) landings->Drop(number);
  return number;
}

void Session::NoteStreamed(uint64_t transfer, uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->transfers.find(transfer);
  if (found != state_->transfers.end()) found->second.put.streamed_bytes += bytes;
}

void Session::TakeWhole(std::vector<uint64_t> transfers, TimePoint deadline, CommitDone done) {
  const auto wait = std::make_shared<State::Wait>();
  wait->arrived.resize(transfers.size());
  wait->taken.resize(transfers.size());
  wait->awaited.resize(transfers.size());
  wait->done = std::move(done);
  bool over = false;
  {
    const std::lock_guard lock(state_->mutex);
    for (size_t i = 0; i < transfers.size(); ++i) {
      const auto found = state_->transfers.find(transfers[i]);
      if (found == state_->transfers.end()) {
        wait->arrived[i] = NotFoundError("no such transfer");
      } else if (found->second.wait) {
        wait->arrived[i] = FailedPreconditionError("the transfer is being committed already");
      } else if (found->second.whole || !found->second.failed.ok()) {
        wait->arrived[i] = found->second.failed;
        if (found->second.whole) wait->taken[i] = std::move(found->second.put);
        state_->transfers.erase(found);
      } else {
        found->second.wait = wait;
        found->second.place = i;
        wait->awaited[i] = transfers[i];
        ++wait->num_missing;
      }
    }
    over = wait->num_missing == 0;
    if (!over && deadline != kNoDeadline) {
      wait->deadline = state_->support.deadlines->Add(
          deadline, [weak = std::weak_ptr<State>(state_), weak_wait = std::weak_ptr<State::Wait>(wait),
                     table = landings] {
            const auto state = weak.lock();
            const auto late = weak_wait.lock();
            if (state && late) state->Expire(late, *table);
          });
    }
  }
  if (over) state_->Complete(wait);
}

void Session::DropTransfer(uint64_t transfer) {
  landings->Drop(transfer);
  state_->Extract(transfer, CancelledError("the transfer was dropped"));
}

void Session::DropLate(TimePoint now) {
  std::vector<uint64_t> late;
  {
    const std::lock_guard lock(state_->mutex);
    for (const auto& [number, held] : state_->transfers) {
      if (held.put.drop_at <= now) late.push_back(number);
    }
  }
  for (const uint64_t number : late) {
    landings->Drop(number);
    state_->Extract(number, DeadlineExceededError("the transfer was not committed in time"));
  }
}

void Session::AddLease(std::string lease) {
  std::vector<std::string> release;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ended) {
      release.push_back(std::move(lease));
    } else if (state_->leases.insert(lease).second) {
      state_->lease_order.push_back(std::move(lease));
      while (state_->lease_order.size() > kMaxLeases) {  // those released before stand there still
        std::string oldest = std::move(state_->lease_order.front());
        state_->lease_order.pop_front();
        if (state_->leases.erase(oldest) > 0) release.push_back(std::move(oldest));
      }
    }
  }
  for (const std::string& lapsed : release) name_space->store->Release(lapsed);
}

void Session::ReleaseLease(const std::string& lease) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->leases.erase(lease) == 0) return;
  }
  name_space->store->Release(lease);
}

void Session::ExpectBulk() {
  const std::lock_guard lock(state_->mutex);
  ++state_->bulk_expected;
}

void Session::BulkFailed() {
  std::vector<State::WaitingSend> waiting;
  {
    const std::lock_guard lock(state_->mutex);
    if (--state_->bulk_expected == 0 && state_->bulk.empty()) waiting.swap(state_->waiting_sends);
  }
  for (const State::WaitingSend& send : waiting) {
    if (send.sent) send.sent(UnavailableError("the bulk connection failed"));
  }
}

void Session::AddBulk(std::shared_ptr<BulkConnection> connection) {
  std::vector<State::WaitingSend> waiting;
  bool ended = false;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->bulk_expected > 0) --state_->bulk_expected;
    ended = state_->ended;
    if (!ended) {
      state_->bulk.push_back(connection);
      waiting.swap(state_->waiting_sends);
    }
  }
  if (ended) return connection->Close();
  for (State::WaitingSend& send : waiting) {
    connection->Send(send.transfer, std::move(send.frame), std::move(send.ranges), std::move(send.sent));
  }
}

void Session::RemoveBulk(const BulkConnection* connection) {
  std::shared_ptr<BulkConnection> removed;
  const std::lock_guard lock(state_->mutex);
  const auto found = std::find_if(state_->bulk.begin(), state_->bulk.end(),
                                  [connection](const auto& held) { return held.get() == connection; });
  if (found == state_->bulk.end()) return;
  removed = std::move(*found);
  state_->bulk.erase(found);
}

bool Session::has_bulk() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->bulk.empty() || state_->bulk_expected > 0;
}

Status Session::SendBulk(uint64_t transfer, BufferRef frame, std::vector<FrameRange> ranges,
                         std::function<void(const Status&)> sent) {
  std::vector<std::shared_ptr<BulkConnection>> open;
  {
    const std::lock_guard lock(state_->mutex);
    open = state_->bulk;
    if (open.empty() && state_->bulk_expected > 0) {
      if (state_->ended || state_->waiting_sends.size() >= kMaxTransfers) {
        return ResourceExhaustedError("too many sends wait for the bulk connection");
      }
      state_->waiting_sends.push_back({transfer, std::move(frame), std::move(ranges), std::move(sent)});
      return OkStatus();
    }
  }
  if (open.empty()) return FailedPreconditionError("the session has no bulk connection");
  const auto idlest = std::min_element(open.begin(), open.end(), [](const auto& a, const auto& b) {
    return a->queued_bytes() < b->queued_bytes();
  });
  (*idlest)->Send(transfer, std::move(frame), std::move(ranges), std::move(sent));
  return OkStatus();
}

void Session::CancelBulk(uint64_t transfer) {
  std::vector<std::shared_ptr<BulkConnection>> open;
  {
    const std::lock_guard lock(state_->mutex);
    open = state_->bulk;
  }
  for (const auto& connection : open) connection->CancelSend(transfer);
}

void Session::SetShm(std::shared_ptr<ShmArea> area) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->ended) state_->shm.swap(area);
}

std::shared_ptr<ShmArea> Session::shm() const {
  const std::lock_guard lock(state_->mutex);
  return state_->shm;
}

bool Session::TakeBytes(uint64_t bytes) {
  return state_->support.use->TakeBytes(tenant->limits, bytes, state_->support.clock->Now()).ok();
}

void Session::GiveBytes(uint64_t bytes) { state_->support.use->GiveBytes(bytes); }

size_t Session::num_transfers() const {
  const std::lock_guard lock(state_->mutex);
  return state_->transfers.size();
}

void Session::Touch() { state_->last_use = state_->support.clock->Now().time_since_epoch().count(); }

TimePoint Session::last_use() const { return TimePoint(TimePoint::duration(state_->last_use.load())); }

bool Session::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended;
}

void Session::End() {
  std::vector<uint64_t> numbers;
  std::vector<std::shared_ptr<BulkConnection>> bulk;
  absl::flat_hash_set<std::string> leases;
  std::shared_ptr<ShmArea> area;
  std::vector<State::WaitingSend> waiting;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ended) return;
    state_->ended = true;
    for (const auto& [number, held] : state_->transfers) numbers.push_back(number);
    bulk.swap(state_->bulk);
    leases.swap(state_->leases);
    area.swap(state_->shm);
    waiting.swap(state_->waiting_sends);
  }
  for (const State::WaitingSend& send : waiting) {
    if (send.sent) send.sent(CancelledError("the session has ended"));
  }
  for (const uint64_t number : numbers) {
    landings->Drop(number);
    state_->Extract(number, CancelledError("the session has ended"));
  }
  for (const auto& connection : bulk) connection->Close();
  for (const std::string& lease : leases) name_space->store->Release(lease);
}

}  // namespace terrace::server
