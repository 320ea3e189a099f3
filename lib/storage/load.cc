// Load: objects of a lease, host tier first, others read into pool buffers, verified and promoted; handed out
// in prefix order through a window.
#include <algorithm>
#include <map>

#include "lib/base/check.h"
#include "lib/codec/piece_codec.h"
#include "lib/storage/load_state.h"

namespace terrace {
namespace {

// The frame is whole and right; is it the one that was asked for?
Status CheckIdentity(const FrameHeader& header, const LeaseItem& item) {
  const ObjectMeta& meta = item.meta;
  if (header.key != item.id.key || header.part != item.id.part)
    return DataLossError("frame of another object");
  if (header.root != meta.root || header.parent != meta.parent || header.first_token != meta.first_token) {
    return DataLossError("frame of another prefix");
  }
  if (header.content != *meta.content) return DataLossError("frame of other tokens or items");
  if (header.division != meta.division) return DataLossError("frame of another division into shards");
  if (header.payload_bytes != meta.payload_bytes) return DataLossError("payload of another length");
  if (header.codec != Codec::kRaw || header.cipher != 0 || header.stored_bytes != header.payload_bytes) {
    return DataLossError("frame in a codec that this build does not read");
  }
  return OkStatus();
}

// Tokens before which no boundary of this lease can be computed from: a full group can stop after each chunk,
// a window group once its window lies in what is loaded, a state only where it was taken.
uint64_t FirstWholeToken(const Lease::State& lease) {
  std::map<ObjectPart, const LeaseItem*> first;
  for (const LeaseItem& item : lease.items) first.try_emplace(item.id.part, &item);
  const uint64_t chunk = lease.root->spec.tokens_per_chunk;
  uint64_t token = 0;
  for (const auto& [part, item] : first) {
    const GroupSpec& group = lease.root->spec.groups[part.group];
    if (group.rule == Retention::kState) token = std::max(token, item->payload_tokens.end);
    if (group.rule == Retention::kWindow && item->chunk_index > 0) {
      token = std::max(token, (item->chunk_index + (group.window_tokens + chunk - 1) / chunk) * chunk);
    }
  }
  return token;
}

}  // namespace

BufferRef ManagerCore::BorrowFromHost(const ObjectId& id) {
  std::vector<BufferRef> found = tiers_[0].backend->Borrow({&id, 1});
  return found.empty() ? BufferRef() : std::move(found[0]);
}

ObjectPresence* ManagerCore::FindLeased(const LeaseItem& item) {
  IndexEntry* entry = index_.Find(item.id.key);
  ObjectPresence* object = entry != nullptr ? entry->Find(item.id.part) : nullptr;
  if (object == nullptr || object->frame_bytes != item.meta.frame_bytes ||
      object->payload_bytes != item.meta.payload_bytes || object->division != item.meta.division) {
    return nullptr;
  }
  return object;
}

size_t ManagerCore::NextTierWith(const LeaseItem& item, size_t from_tier) {
  const ObjectPresence* object = FindLeased(item);
  if (object == nullptr) return kNoTier;
  for (size_t t = from_tier; t < tiers_.size(); ++t) {
    if (object->tiers & TierBit(t)) return t;
  }
  return kNoTier;
}

void ManagerCore::FinishRead(const LeaseItem& item, size_t tier, const BufferRef& buffer,
                             const Status& status, uint64_t erasures) {
  if (status.ok()) {
    std::lock_guard lock(mutex_);
    tiers_[tier].hits->Add();
    IndexEntry* entry = index_.Find(item.id.key);
    const ObjectPresence* object = FindLeased(item);
    // Erased meanwhile (and perhaps stored anew): the caller's bytes are right, but nothing comes back into a
    // tier.
    const bool still_there = object != nullptr && (object->tiers & TierBit(tier)) && erasures == erasures_;
    if (!still_there || !HasHostTier() || (object->tiers & TierBit(0)) || closing_) return;
    if (PutInHost(item.id, buffer, item.meta)) {
      SetPresent(*entry, *entry->Find(item.id.part), 0);  // found anew: making room may have moved it
      TouchUpwards(*entry, item.id.part, 0);
    }
    return;
  }
  tiers_[tier].load_failures->Add();
  if (status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound) {
    if (status.code() == StatusCode::kDataLoss) {
      tiers_[tier].corrupt->Add();
      log_->Log(LogLevel::kWarning, tiers_[tier].name,
                "an object was found wrong and dropped: " + status.ToString());
    }
    DropCorrupt(item, tier);
  }
}

void ManagerCore::DropCorrupt(const LeaseItem& item, size_t tier) {
  const ObjectId& id = item.id;
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    IndexEntry* entry = index_.Find(id.key);
    const ObjectPresence* object = FindLeased(item);
    if (object == nullptr || !(object->tiers & TierBit(tier))) return;
    EvictObject(*entry, id.part, tier, evictions);
    CascadeUnreachable(id.key, id.part, evictions);
    RemoveIfEmpty(entry);
  }
  SendEvictions(std::move(evictions));
}

LoadHandle ManagerCore::Load(const Lease& lease, TokenRange range, const LoadSink& sink,
                             LoadOrder /*order*/) {
  auto state = std::make_shared<LoadHandle::State>();
  state->core = shared_from_this();
  state->lease = lease.state();
  state->begin_token = range.begin;
  state->report.recompute_from = range.begin;
  state->memory.assign(sink.memory.begin(), sink.memory.end());
  const auto refuse = [&](Status status) {
    state->failed_at = 0;
    state->failure = std::move(status);
    state->report.status = state->failure;
    return LoadHandle(std::move(state));
  };
  if (Status status = CheckNotForked(); !status.ok()) return refuse(std::move(status));
  if (!state->lease) {
    return range.begin == range.end ? LoadHandle(std::move(state))
                                    : refuse(InvalidArgumentError("an empty lease"));
  }
  const uint64_t chunk = state->lease->root->spec.tokens_per_chunk;
  if (range.begin % chunk != 0 || range.begin > range.end || range.end > state->lease->matched_tokens) {
    return refuse(InvalidArgumentError("token range [" + std::to_string(range.begin) + ", " +
                                       std::to_string(range.end) + "); allowed: from a multiple of " +
                                       std::to_string(chunk) + " to at most the match (" +
                                       std::to_string(state->lease->matched_tokens) + ")"));
  }
  for (const LeaseItem& item : state->lease->items) {
    if (item.matched_tokens.begin < range.begin || item.matched_tokens.begin >= range.end) continue;
    state->items.push_back(item);
    TokenRange& matched = state->items.back().matched_tokens;
    matched.end = std::min(matched.end, range.end);
  }
  if (!state->memory.empty()) {
    bool fits = state->memory.size() == state->items.size();
    for (size_t i = 0; fits && i < state->items.size(); ++i) {
      fits = state->memory[i].size() == state->items[i].meta.payload_bytes;
    }
    if (!fits)
      return refuse(
          InvalidArgumentError("the sink's memory is not one range per object, each of the payload's size"));
  }
  state->slots.resize(state->items.size());
  state->window_bytes =
      options_.load_window_bytes != 0 ? options_.load_window_bytes : pool_->size_bytes() / 2;
  state->first_whole_token = FirstWholeToken(*state->lease);
  {
    std::lock_guard lock(mutex_);
    if (Status status = CheckOpen(); !status.ok()) return refuse(std::move(status));
  }
  state->Pump();
  return LoadHandle(std::move(state));
}

void LoadHandle::State::Pump() {
  std::unique_lock lock(mutex);
  // One thread starts items, so that they start in order and one that finds no room can be taken back.
  pump_again = true;
  if (is_pumping) return;
  is_pumping = true;
  while (std::exchange(pump_again, false)) {
    while (next_start < items.size() && failed_at == SIZE_MAX) {
      const uint64_t bytes = ResidentBytes(items[next_start]);
      if (resident_bytes > 0 && resident_bytes + bytes > window_bytes) break;
      resident_bytes += bytes;
      is_parked = false;
      const size_t index = next_start++;
      slots[index].phase = Slot::Phase::kReading;
      lock.unlock();
      const bool started = Start(index, 0, true);
      lock.lock();
      if (!started) break;
    }
  }
  is_pumping = false;
}

bool LoadHandle::State::Start(size_t index, size_t from_tier, bool may_wait) {
  const LeaseItem& item = items[index];
  size_t tier;
  uint64_t erasures;
  BufferRef borrowed;
  {
    std::lock_guard lock(core->mutex_);
    erasures = core->erasures_;
    tier = core->NextTierWith(item, from_tier);
    if (tier == 0 && core->HasHostTier()) {
      borrowed = core->BorrowFromHost(item.id);
      core->tiers_[0].hits->Add();
    }
  }
  if (tier == ManagerCore::kNoTier) {
    Fail(index, NotFoundError("the chunk left every tier after the lookup"));
    return true;
  }
  if (borrowed) {
    Result<uint32_t> header_bytes = PeekHeaderBytes(borrowed.frame());
    TERRACE_CHECK(header_bytes.ok()) << "a published frame lost its header";
    Ready(index, std::move(borrowed), *header_bytes);
    return true;
  }
  if (tier == 0 && core->HasHostTier()) return Start(index, 1, may_wait);
  Result<BufferRef> buffer = core->pool_->Allocate(kTierPageBytes + item.meta.frame_bytes);
  if (buffer.ok()) {
    ReadFrom(index, tier, *std::move(buffer), erasures);
    return true;
  }
  if (!may_wait || kTierPageBytes + item.meta.frame_bytes > core->pool_->size_bytes()) {
    Fail(index, buffer.status());
    return true;
  }
  std::lock_guard lock(mutex);
  resident_bytes -= ResidentBytes(item);
  next_start = index;
  slots[index].phase = Slot::Phase::kWaiting;
  is_parked = true;
  changed.notify_all();
  return false;
}

void LoadHandle::State::ReadFrom(size_t index, size_t tier, BufferRef buffer, uint64_t erasures) {
  const LeaseItem& item = items[index];
  auto verifier = std::make_shared<PieceVerifier>(buffer.frame());
  GetOp op;
  op.id = item.id;
  op.dst = buffer;
  op.deadline =
      core->clock_->Now() + std::chrono::duration_cast<TimePoint::duration>(core->options_.io_deadline);
  op.cancel = cancel;
  op.on_bytes = [verifier](uint64_t offset, uint64_t n) { verifier->MarkPresent(offset, n); };
  std::vector<GetOp> ops;
  ops.push_back(std::move(op));
  core->tiers_[tier].backend->Get(std::move(ops), [self = shared_from_this(), index, tier, buffer, verifier,
                                                   erasures](std::span<const GetResult> results) {
    const LeaseItem& asked = self->items[index];
    Status status = results[0].status;
    uint32_t header_bytes = 0;
    if (status.ok()) {
      Result<FrameHeader> header = verifier->Finish(asked.meta.frame_bytes);
      status = header.ok() ? CheckIdentity(*header, asked) : header.status();
      if (status.ok()) header_bytes = header->header_bytes;
    }
    self->core->FinishRead(asked, tier, buffer, status, erasures);
    if (status.ok()) {
      self->Ready(index, buffer, header_bytes);
    } else if (tier + 1 < self->core->tiers_.size() && !self->cancel->load()) {
      self->Start(index, tier + 1, false);
    } else {
      self->Fail(index, status);
    }
  });
}

void LoadHandle::State::Ready(size_t index, BufferRef buffer, uint32_t header_bytes) {
  std::lock_guard lock(mutex);
  Slot& slot = slots[index];
  if (index >= failed_at) {
    resident_bytes -= ResidentBytes(items[index]);
    return;
  }
  slot.buffer = std::move(buffer);
  slot.header_bytes = header_bytes;
  slot.phase = Slot::Phase::kReady;
  changed.notify_all();
}

void LoadHandle::State::EndAt(size_t index, Status why, std::vector<BufferRef>* dropped) {
  for (size_t i = index; i < slots.size(); ++i) {
    if (slots[i].phase != Slot::Phase::kReady) continue;
    resident_bytes -= ResidentBytes(items[i]);
    dropped->push_back(std::move(slots[i].buffer));
    slots[i].phase = Slot::Phase::kWaiting;
  }
  failed_at = index;
  failure = std::move(why);
  report.status = failure;
  changed.notify_all();
}

void LoadHandle::State::Fail(size_t index, Status status) {
  std::vector<BufferRef> dropped;  // released after the lock
  std::lock_guard lock(mutex);
  resident_bytes -= ResidentBytes(items[index]);
  if (index >= failed_at) return;
  EndAt(index, std::move(status), &dropped);
}

// The parked item never got room.
void LoadHandle::State::GiveUp(size_t parked) {
  std::vector<BufferRef> dropped;
  std::lock_guard lock(mutex);
  if (next_start != parked || failed_at != SIZE_MAX) return;
  EndAt(parked, ResourceExhaustedError("no room in the pool for the next chunk"), &dropped);
}

void LoadHandle::State::ReleaseBytes(uint64_t bytes) {
  {
    std::lock_guard lock(mutex);
    resident_bytes -= bytes;
  }
  Pump();
}

void LoadHandle::State::CountTaken(size_t index) {
  const LeaseItem& item = items[index];
  ++report.loaded_objects;
  report.loaded_bytes += item.meta.payload_bytes;
  const bool chunk_is_whole = index + 1 == items.size() || items[index + 1].chunk_index != item.chunk_index;
  if (!chunk_is_whole || item.matched_tokens.end < first_whole_token) return;
  report.recompute_from = item.matched_tokens.end;
  report.loaded_tokens = item.matched_tokens.end - begin_token;
}

void LoadHandle::State::Cancel(Status why) {
  cancel->store(true);
  std::vector<BufferRef> dropped;
  std::lock_guard lock(mutex);
  if (next_take >= items.size() || failed_at <= next_take) return;
  EndAt(next_take, std::move(why), &dropped);
}

}  // namespace terrace
