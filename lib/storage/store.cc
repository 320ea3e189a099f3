// Store: Prepare claims what is absent and hands out buffers, Commit seals and publishes them on the
// executor.
#include <algorithm>
#include <cstring>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/codec/piece_codec.h"
#include "lib/storage/asked.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

std::vector<uint64_t> LayerBytes(const KvSpec& spec, ObjectPart part, uint64_t num_tokens) {
  std::vector<uint64_t> bytes;
  if (spec.payload_form != PayloadForm::kCanonical) return bytes;
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const uint64_t n = spec.LayerBytesPerToken(layer, part) * spec.PayloadTokens(part, num_tokens);
    if (n > 0) bytes.push_back(n);
  }
  return bytes;
}

ChunkContent ContentOf(const PromptSlice& slice) {
  ChunkContent content;
  content.tokens.assign(slice.tokens().begin(), slice.tokens().end());
  for (const Item& item : slice.items()) content.items.push_back({item.position - slice.begin(), item.bytes});
  return content;
}

}  // namespace

Status ManagerCore::CheckRange(const RootState& root, const TokenView& prompt, TokenRange range) {
  const uint64_t chunk = root.spec.tokens_per_chunk;
  if (range.begin % chunk == 0 && range.begin <= range.end && range.end <= prompt.tokens.size())
    return OkStatus();
  return InvalidArgumentError("token range [" + std::to_string(range.begin) + ", " +
                              std::to_string(range.end) + "); allowed: from a multiple of " +
                              std::to_string(chunk) + " to at most " + std::to_string(prompt.tokens.size()));
}

// The key of a partial chunk that ends inside the prompt, or of the prompt's own tail.
ChunkKey ManagerCore::KeyOfTail(const Asked& asked, const TokenView& prompt, TokenRange tokens) const {
  const uint64_t i = tokens.begin / asked.root->spec.tokens_per_chunk;
  return TokenHasher::KeyOf(asked.ParentOf(i), SliceContent(prompt, tokens));
}

Result<PrepareResult> ManagerCore::Prepare(uint64_t request_id, const ChunkKey& root_key,
                                           const TokenView& prompt, TokenRange range,
                                           const PayloadSizes& sizes, std::span<const ObjectPart> parts) {
  RequestTracer tracer(traces_, TraceKind::kStore);
  TERRACE_ASSIGN_OR_RETURN(Asked asked, Ask(request_id, root_key, prompt, parts));
  if (Status status = CheckRange(*asked.root, prompt, range); !status.ok()) {
    KeepAsked(request_id, asked);
    return status;
  }
  tracer.Step("hash");
  const uint64_t chunk = asked.root->spec.tokens_per_chunk;
  PrepareResult out;
  for (uint64_t begin = range.begin; begin < range.end && out.status.ok(); begin += chunk) {
    const TokenRange tokens{begin, std::min(begin + chunk, range.end)};
    const bool is_full = tokens.end - tokens.begin == chunk;
    const ChunkKey key = is_full ? asked.request->keys[begin / chunk] : KeyOfTail(asked, prompt, tokens);
    const PromptSlice content(prompt, tokens);
    for (const ObjectPart part : asked.parts) {
      out.status = PrepareOne(
          {*asked.root, {key, part}, asked.ParentOf(begin / chunk), tokens, content, asked.root->division},
          sizes, out);
      if (!out.status.ok()) break;
    }
  }
  tracer.Step("allocate");
  if (RequestTrace* trace = tracer.trace()) {
    trace->request_id = request_id;
    trace->root = root_key;
    trace->tokens = prompt.tokens.size();
    trace->planned_tokens = range.end - range.begin;
    if (!out.chunks.empty()) trace->done_tokens = out.chunks.back().tokens.end - range.begin;
    for (PreparedChunk& prepared : out.chunks) {
      if (prepared.writable) trace->bytes += prepared.writable->payload().size();
    }
    trace->outcome = out.status.code();
    trace->why_not = out.status.ok() ? "" : out.status.ToString();
  }
  KeepAsked(request_id, asked);
  return out;
}

// What the caller's callback throws ends the call as a Status.
Result<uint64_t> ManagerCore::AskSize(const PayloadSizes& sizes, TokenRange tokens, ObjectPart part) {
  std::string why = "the size callback threw";
  try {
    return sizes(tokens, part);
  } catch (const std::exception& error) {
    why.append(": ").append(error.what());
  } catch (...) {
  }
  callback_exceptions_->Add();
  return InternalError(why);
}

Status ManagerCore::PrepareOne(const StoreRequest& request, const PayloadSizes& sizes, PrepareResult& out) {
  PreparedChunk prepared{.id = request.id, .tokens = request.tokens};
  uint64_t store_id;
  Claim claim;
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return FailedPreconditionError("the manager is closed");
    store_id = next_id_++;
    claim = ClaimStore(request, store_id, evictions);
  }
  SendEvictions(std::move(evictions));
  if (claim == Claim::kNoParent) {
    return FailedPreconditionError("the chunk before token " + std::to_string(request.tokens.begin) +
                                   " is neither stored nor being stored");
  }
  if (claim == Claim::kPresent) {
    for (size_t t = 0; t < tiers_.size(); ++t) PumpWrites(t);
    prepared.present = true;
    out.chunks.push_back(std::move(prepared));
    return OkStatus();
  }
  auto chunk = std::make_unique<WritableChunk::State>();  // from here on its end gives the claim back
  chunk->core = shared_from_this();
  chunk->id = request.id;
  chunk->tokens = request.tokens;
  chunk->store_id = store_id;
  TERRACE_ASSIGN_OR_RETURN(const uint64_t payload_bytes, AskSize(sizes, request.tokens, request.id.part));
  FrameHeader& header = chunk->header;
  header.root = request.root.root;
  header.parent = request.parent;
  header.key = request.id.key;
  header.part = request.id.part;
  header.division = request.division;
  header.first_token = request.tokens.begin;
  header.content = ContentOf(request.content);
  header.payload_bytes = payload_bytes;
  header.stored_bytes = payload_bytes;
  const KvSpec& spec = request.root.spec;
  const uint64_t num_tokens = request.tokens.end - request.tokens.begin;
  if (spec.payload_form == PayloadForm::kCanonical &&
      payload_bytes != spec.PayloadBytes(request.id.part, static_cast<uint32_t>(num_tokens))) {
    return InvalidArgumentError(
        "a canonical payload of " + std::to_string(num_tokens) + " tokens is " +
        std::to_string(payload_bytes) + " bytes; allowed: " +
        std::to_string(spec.PayloadBytes(request.id.part, static_cast<uint32_t>(num_tokens))));
  }
  // The payload's end may overflow no sum below, whatever the caller's callback says.
  if (payload_bytes > (uint64_t{1} << 40)) return InvalidArgumentError("a payload above 1 TiB");
  header.pieces = PlanPieces(payload_bytes, LayerBytes(spec, request.id.part, num_tokens));
  Result<BufferRef> buffer = AllocateFrame(header);
  if (!buffer.ok()) {
    if (buffer.status().code() == StatusCode::kResourceExhausted) DropCounter("pool_full")->Add();
    return buffer.status();
  }
  chunk->buffer = *std::move(buffer);
  prepared.writable = WritableChunk(std::move(chunk));
  out.chunks.push_back(std::move(prepared));
  return OkStatus();
}

Result<BufferRef> ManagerCore::AllocateFrame(FrameHeader& header) {
  TERRACE_ASSIGN_OR_RETURN(header.header_bytes, HeaderBytes(header));
  header.frame_bytes = header.header_bytes + RoundUp(header.stored_bytes, kFrameAlignment);
  return pool_->Allocate(kTierPageBytes + header.frame_bytes, BufferUse::kStore);
}

ManagerCore::Claim ManagerCore::ClaimStore(const StoreRequest& request, uint64_t store_id,
                                           Evictions& evictions) {
  const ObjectPart part = request.id.part;
  if (IndexEntry* entry = index_->Find(request.id.key)) {
    const ObjectPresence* object = entry->Find(part);
    if (object != nullptr && object->is_storing) return Claim::kPresent;
    if (object != nullptr && (object->tiers | object->writing) != 0) {
      if (object->division == request.division || object->writing != 0) {
        CompleteTiers(*entry, *object);
        return Claim::kPresent;
      }
      // Of another division into shards, with what hangs below: of no use to who stores now.
      for (size_t t = 0; t < tiers_.size(); ++t) EvictObject(*entry, part, t, Unless::kNothing, evictions);
      CascadeUnreachable(*entry, part, evictions);
    }
  }
  const bool needs_parent = roots_.NeedsParent(request.root.number, part.group, request.tokens.begin);
  if (needs_parent && !IsReachableFrom(index_->Find(request.parent), part, 0, true) &&
      !IsSeenRemotely({request.parent, part}, 0)) {
    RemoveIfEmpty(request.id.key);  // of another division, evicted above
    return Claim::kNoParent;
  }
  IndexEntry* entry = index_->Find(request.id.key);
  if (entry == nullptr || entry->is_placeholder() || !entry->content) {
    entry = &index_->Add({.key = request.id.key,
                          .parent = request.parent,
                          .root_number = request.root.number,
                          .first_token = static_cast<uint32_t>(request.tokens.begin)},
                         PackedContent::Make(request.content));
  }
  index_->Change(*entry, [&](IndexEntry& e) { e.FindOrAdd(part).is_storing = true; });
  storing_[request.id] = store_id;
  return Claim::kClaimed;
}

bool ManagerCore::IsStoredBy(const ObjectId& id, uint64_t store_id) const {
  const auto it = storing_.find(id);
  return it != storing_.end() && it->second == store_id;
}

void ManagerCore::EndStoring(IndexEntry& entry, ObjectPart part) {
  storing_.erase({entry.key, part});
  index_->Change(entry, [&](IndexEntry& e) { e.Find(part)->is_storing = false; });
}

// An object that lies in the host tier alone (its write failed, or found no room) is offered to the lower
// tiers again.
void ManagerCore::CompleteTiers(IndexEntry& entry, const ObjectPresence& object) {
  if (!HasHostTier() || !(object.tiers & TierBit(0))) return;
  bool is_complete = true;
  for (size_t t = 1; t < tiers_.size(); ++t) {
    is_complete &= tiers_[t].answers_itself || ((object.tiers | object.writing) & TierBit(t)) != 0 ||
                   !ParentReachable(entry, object.part, t, true);
  }
  if (is_complete) return;
  const BufferRef buffer = BorrowFromHost({entry.key, object.part});
  if (!buffer) return;
  Result<FrameHeader> header = ParseFrameHeader(buffer.frame());
  TERRACE_CHECK(header.ok()) << "a published frame lost its header";
  auto content = std::make_shared<const ChunkContent>(std::move(header->content));
  EnqueueWrites(entry, object.part, buffer, MetaOf(entry, object, std::move(content)), next_id_++);
}

void ManagerCore::Abandon(const ObjectId& id, uint64_t store_id) {
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    if (!IsStoredBy(id, store_id)) return;  // erased meanwhile
    IndexEntry* entry = index_->Find(id.key);
    EndStoring(*entry, id.part);
    CascadeUnreachable(*entry, id.part, evictions);  // a child may have been committed before it
    RemoveIfEmpty(id.key);
  }
  SendEvictions(std::move(evictions));
}

bool ManagerCore::IsStoredOrComing(const ObjectId& id) const {
  std::lock_guard lock(mutex_);
  return IsReachableFrom(index_->Find(id.key), id.part, 0, true) || IsSeenRemotely(id, 0);
}

void ManagerCore::Commit(std::vector<WritableChunk> chunks) {
  if (IsForkedChild()) return;
  for (WritableChunk& chunk : chunks) {
    if (!chunk.state() || chunk.state()->core.get() != this) continue;
    std::unique_ptr<WritableChunk::State> state = std::move(chunk.state());
    if (CheckOpen().ok()) PostPublish(std::move(state), 0);
  }
}

void ManagerCore::PostPublish(std::shared_ptr<WritableChunk::State> chunk, uint64_t ticket) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    // What a Flush waits for that came after the Store was called, and before its copy.
    chunk->ticket = ticket != 0 ? ticket : next_id_++;
    tickets_.insert(chunk->ticket);
  }
  auto end = std::make_shared<TicketEnd>(shared_from_this(), chunk->ticket);
  strand_->Post([core = shared_from_this(), chunk = std::move(chunk), end = std::move(end)] {
    core->SealAndPublish(*chunk);
  });
}

void ManagerCore::SealAndPublish(WritableChunk::State& chunk) {
  FrameHeader& header = chunk.header;
  const MutableBytes frame = chunk.buffer.mutable_frame();
  const MutableBytes payload = frame.subspan(header.header_bytes, header.payload_bytes);
  SealRawPieces(payload, header.pieces);
  const MutableBytes padding = frame.subspan(header.header_bytes + header.payload_bytes,
                                             header.frame_bytes - header.header_bytes - header.payload_bytes);
  std::fill(padding.begin(), padding.end(), std::byte{0});
  const uint32_t planned_bytes = header.header_bytes;
  const Status written = WriteFrameHeader(header, frame);
  TERRACE_CHECK(written.ok() && header.header_bytes == planned_bytes) << written.ToString();

  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    Publish(chunk, evictions);
  }
  chunk.buffer.Reset();
  SendEvictions(std::move(evictions));
  for (size_t t = 0; t < tiers_.size(); ++t) PumpWrites(t);
}

void ManagerCore::Publish(WritableChunk::State& chunk, Evictions& evictions) {
  if (!IsStoredBy(chunk.id, chunk.store_id)) {
    DropCounter("erased")->Add();
    return;
  }
  chunk.store_id = 0;
  PlaceFrame({chunk.id, chunk.buffer, chunk.header, chunk.ticket, {}}, evictions);
}

// Of a frame that is final and was claimed. False: it was not kept.
bool ManagerCore::PlaceFrame(const FinalFrame& frame, Evictions& evictions) {
  const ObjectPart part = frame.id.part;
  IndexEntry& entry = *index_->Find(frame.id.key);
  EndStoring(entry, part);
  // Until its tiers are known it counts as being written: not its own victim, nor its parent's end.
  index_->Change(entry, [&](IndexEntry& e) {
    ObjectPresence& object = *e.Find(part);
    object.frame_pages = static_cast<uint32_t>(frame.header.frame_bytes / kFrameAlignment);
    object.payload_bytes = frame.header.payload_bytes;
    object.division = frame.header.division;
    object.writing = 0xff;
  });
  if (!ParentReachable(entry, part, 0, true)) {
    SetWriting(entry, part, 0, 0xff);
    DropCounter("parent_lost")->Add();
    CascadeUnreachable(entry, part, evictions);
    RemoveIfEmpty(frame.id.key);
    return false;
  }
  if (frame.marks != ObjectMarks{}) {
    marks_[frame.id] = frame.marks;
  } else if (!marks_.empty()) {
    marks_.erase(frame.id);
  }
  auto content = std::make_shared<const ChunkContent>(std::move(frame.header.content));
  if (HasHostTier() && PutInHost(frame.id, frame.buffer, MetaOf(entry, *entry.Find(part), nullptr))) {
    SetPresent(entry, part, 0);
    TouchUpwards(entry, part, 0);
    EvictSuperseded(entry, 0, evictions);
  }
  SetWriting(entry, part, 0, 0xff);
  EnqueueWrites(entry, part, frame.buffer, MetaOf(entry, *entry.Find(part), std::move(content)),
                frame.ticket);
  if (entry.Find(part)->writing == 0) pool_->Settle(frame.buffer);
  if (entry.Find(part)->is_gone()) {
    DropCounter("no_tier")->Add();
    CascadeUnreachable(entry, part, evictions);
    RemoveIfEmpty(frame.id.key);
    return false;
  }
  stored_->Add();
  return true;
}

bool ManagerCore::PutInHost(const ObjectId& id, const BufferRef& buffer, const ObjectMeta& meta) {
  if (buffer.size_bytes() > tiers_[0].backend->capacity_bytes()) {  // no eviction makes it fit
    tiers_[0].write_failures->Add();
    return false;
  }
  while (true) {
    Status status = InternalError("the host tier did not complete inline");
    std::vector<PutOp> ops;
    ops.push_back({.id = id, .frame = buffer, .meta = meta});
    tiers_[0].backend->Put(std::move(ops), [&](std::span<const Status> results) { status = results[0]; });
    // The first published wins: a buffer that is there already is as good.
    if (status.ok()) reclaimer_->Note(pool_->ControlOf(buffer), id);
    if (status.ok() || status.code() == StatusCode::kAlreadyExists) return true;
    Evictions none;  // the host tier is told at once
    if (status.code() != StatusCode::kResourceExhausted || EvictColdest(0, none) == 0) {
      tiers_[0].write_failures->Add();
      // A failure that came after the fact would leave a buffer that nobody knows of.
      tiers_[0].backend->Erase({id}, EraseMode::kEvict, [](std::span<const Status>) {});
      return false;
    }
  }
}

// --- WritableChunk

WritableChunk::State::~State() {
  if (!core) return;
  if (core->IsForkedChild()) {
    new BufferRef(
        std::move(buffer));  // the parent's; giving it back takes locks that a fork may have left held
    return;
  }
  if (store_id != 0) core->Abandon(id, store_id);
}

WritableChunk::WritableChunk() = default;
WritableChunk::~WritableChunk() = default;
WritableChunk::WritableChunk(WritableChunk&&) noexcept = default;
WritableChunk& WritableChunk::operator=(WritableChunk&&) noexcept = default;
WritableChunk::WritableChunk(std::unique_ptr<State> state) : state_(std::move(state)) {}

ObjectId WritableChunk::id() const { return state_ ? state_->id : ObjectId{}; }
TokenRange WritableChunk::tokens() const { return state_ ? state_->tokens : TokenRange{}; }

MutableBytes WritableChunk::payload() {
  if (!state_) return {};
  return state_->buffer.mutable_frame().subspan(state_->header.header_bytes, state_->header.payload_bytes);
}

}  // namespace terrace
