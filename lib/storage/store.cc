// Store: Prepare claims what is absent and hands out buffers, Commit seals and publishes them on the
// executor.
#include <algorithm>
#include <cstring>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/codec/piece_codec.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

std::vector<uint64_t> LayerBytes(const KvSpec& spec, ObjectPart part, uint64_t num_tokens) {
  std::vector<uint64_t> bytes;
  if (spec.payload_form != PayloadForm::kCanonical) return bytes;
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (const uint64_t n = spec.LayerBytesPerToken(layer, part) * num_tokens; n > 0) bytes.push_back(n);
  }
  return bytes;
}

ObjectMeta MetaOf(const IndexEntry& entry, const ObjectPresence& object) {
  ObjectMeta meta;
  meta.root = entry.root;
  meta.parent = entry.parent;
  meta.first_token = entry.first_token;
  meta.content = entry.content;
  meta.frame_bytes = object.frame_bytes;
  meta.payload_bytes = object.payload_bytes;
  meta.division = object.division;
  return meta;
}

}  // namespace

Result<PrepareResult> ManagerCore::Prepare(const ChunkKey& root_key, const TokenView& prompt,
                                           TokenRange range, const PayloadSizes& sizes,
                                           std::span<const ObjectPart> asked_parts) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_RETURN_IF_ERROR(prompt.Validate());
  RootStateRef root;
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    root = FindRoot(root_key);
  }
  if (!root) return NotFoundError("the root was not made by Root() of this manager");
  TERRACE_RETURN_IF_ERROR(root->CheckParts(asked_parts));
  const uint64_t chunk = root->spec.tokens_per_chunk;
  if (range.begin % chunk != 0 || range.begin > range.end || range.end > prompt.tokens.size()) {
    return InvalidArgumentError("token range [" + std::to_string(range.begin) + ", " +
                                std::to_string(range.end) + "); allowed: from a multiple of " +
                                std::to_string(chunk) + " to at most " +
                                std::to_string(prompt.tokens.size()));
  }
  std::vector<ObjectPart> parts(asked_parts.begin(), asked_parts.end());
  if (parts.empty()) parts = root->DefaultParts();

  const auto items_end = std::lower_bound(prompt.items.begin(), prompt.items.end(), range.end,
                                          [](const Item& item, uint64_t at) { return item.position < at; });
  TokenHasher hasher(root->root, root->spec.tokens_per_chunk);
  TERRACE_RETURN_IF_ERROR(hasher.Append({prompt.tokens.first(range.end), {prompt.items.begin(), items_end}}));
  const std::span<const ChunkKey> keys = hasher.full_keys();

  PrepareResult out;
  for (uint64_t begin = range.begin; begin < range.end; begin += chunk) {
    const uint64_t i = begin / chunk;
    const TokenRange tokens{begin, std::min(begin + chunk, range.end)};
    const ChunkKey key = i < keys.size() ? keys[i] : hasher.TailKey();
    const ChunkKey parent = i == 0 ? root->root : keys[i - 1];
    for (const ObjectPart part : parts) {
      out.status = PrepareOne({*root, prompt, {key, part}, parent, tokens}, sizes, out);
      if (!out.status.ok()) return out;
    }
  }
  return out;
}

Status ManagerCore::PrepareOne(const StoreRequest& request, const PayloadSizes& sizes, PrepareResult& out) {
  PreparedChunk prepared{.id = request.id, .tokens = request.tokens};
  uint64_t store_id;
  ChunkContentRef content;
  Claim claim;
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    store_id = next_id_++;
    claim = ClaimStore(request, store_id, content, evictions);
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
  TERRACE_ASSIGN_OR_RETURN(const uint64_t payload_bytes, sizes(request.tokens, request.id.part));
  FrameHeader& header = chunk->header;
  header.root = request.root.root;
  header.parent = request.parent;
  header.key = request.id.key;
  header.part = request.id.part;
  header.division = request.root.division;
  header.first_token = request.tokens.begin;
  header.content = *content;
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
  return pool_->Allocate(kTierPageBytes + header.frame_bytes);
}

ManagerCore::Claim ManagerCore::ClaimStore(const StoreRequest& request, uint64_t store_id,
                                           ChunkContentRef& content, Evictions& evictions) {
  if (IndexEntry* entry = index_.Find(request.id.key)) {
    ObjectPresence* object = entry->Find(request.id.part);
    if (object != nullptr && object->store_id != 0) return Claim::kPresent;
    if (object != nullptr && (object->tiers | object->writing) != 0) {
      if (object->division == request.root.division || object->writing != 0) {
        CompleteTiers(*entry, *object);
        return Claim::kPresent;
      }
      // Of another division into shards, with what hangs below: of no use to who stores now.
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if (object->tiers & TierBit(t)) EvictObject(*entry, request.id.part, t, evictions);
      }
      CascadeUnreachable(request.id.key, request.id.part, evictions);
    }
  }
  const bool needs_parent =
      request.tokens.begin > 0 && request.root.RuleOf(request.id.part.group) != Retention::kState;
  if (needs_parent && !IsReachableFrom(request.parent, request.id.part, 0, true)) return Claim::kNoParent;
  IndexEntry* entry = index_.Find(request.id.key);
  if (entry == nullptr) {
    content = std::make_shared<const ChunkContent>(SliceContent(request.prompt, request.tokens));
    entry = &index_.Add(request.id.key, request.parent, request.root.root, request.tokens.begin, content);
  }
  content = entry->content;
  entry->FindOrAdd(request.id.part).store_id = store_id;
  return Claim::kClaimed;
}

// An object that lies in the host tier alone (its write failed, or found no room) is offered to the lower
// tiers again.
void ManagerCore::CompleteTiers(IndexEntry& entry, ObjectPresence& object) {
  if (!HasHostTier() || !(object.tiers & TierBit(0))) return;
  bool is_complete = true;
  for (size_t t = 1; t < tiers_.size(); ++t) {
    is_complete &=
        ((object.tiers | object.writing) & TierBit(t)) != 0 || !ParentReachable(entry, object.part, t, true);
  }
  if (is_complete) return;
  const BufferRef buffer = BorrowFromHost({entry.key, object.part});
  if (buffer) EnqueueWrites(entry, object, buffer, MetaOf(entry, object), next_id_++);
}

void ManagerCore::Abandon(const ObjectId& id, uint64_t store_id) {
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    IndexEntry* entry = index_.Find(id.key);
    ObjectPresence* object = entry != nullptr ? entry->Find(id.part) : nullptr;
    if (object == nullptr || object->store_id != store_id) return;  // erased meanwhile
    object->store_id = 0;
    CascadeUnreachable(id.key, id.part, evictions);  // a child may have been committed before it
    RemoveIfEmpty(entry);
  }
  SendEvictions(std::move(evictions));
}

void ManagerCore::Commit(std::vector<WritableChunk> chunks) {
  if (IsForkedChild()) return;
  for (WritableChunk& chunk : chunks) {
    if (!chunk.state() || chunk.state()->core.get() != this) continue;
    std::shared_ptr<WritableChunk::State> state = std::move(chunk.state());
    {
      std::lock_guard lock(mutex_);
      if (!CheckOpen().ok()) continue;
      state->ticket = next_id_++;
      tickets_.insert(state->ticket);
    }
    strand_->Post([core = shared_from_this(), state,
                   end = std::make_shared<TicketEnd>(shared_from_this(), state->ticket)] {
      core->SealAndPublish(*state);
    });
  }
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
  IndexEntry* entry = index_.Find(chunk.id.key);
  ObjectPresence* object = entry != nullptr ? entry->Find(chunk.id.part) : nullptr;
  if (object == nullptr || object->store_id != chunk.store_id) {
    DropCounter("erased")->Add();
    return;
  }
  object->store_id = 0;
  chunk.store_id = 0;
  object->frame_bytes = chunk.header.frame_bytes;
  object->payload_bytes = chunk.header.payload_bytes;
  object->division = chunk.header.division;
  if (!ParentReachable(*entry, chunk.id.part, 0, true)) {
    DropCounter("parent_lost")->Add();
    CascadeUnreachable(chunk.id.key, chunk.id.part, evictions);
    RemoveIfEmpty(entry);
    return;
  }
  const ObjectMeta meta = MetaOf(*entry, *object);
  if (HasHostTier()) {
    // Not its own victim, nor its parent's end: it counts as being written until its tiers are known.
    object->writing = TierMask{0xff};
    const bool kept = PutInHost(chunk.id, chunk.buffer, meta);
    object = entry->Find(chunk.id.part);  // making room may have moved it
    object->writing = 0;
    if (kept) {
      SetPresent(*entry, *object, 0);
      TouchUpwards(*entry, chunk.id.part, 0);
      EvictSuperseded(*entry, 0, evictions);
    }
  }
  EnqueueWrites(*entry, *object, chunk.buffer, meta, chunk.ticket);
  if ((object->tiers | object->writing) == 0) {
    DropCounter("no_tier")->Add();
    CascadeUnreachable(chunk.id.key, chunk.id.part, evictions);
    RemoveIfEmpty(entry);
    return;
  }
  stored_->Add();
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
    if (status.ok() || status.code() == StatusCode::kAlreadyExists) return true;
    if (status.code() != StatusCode::kResourceExhausted || !EvictOneFromHost()) {
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
