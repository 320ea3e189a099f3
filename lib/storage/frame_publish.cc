// Frames that arrive: memory for them, pieces checked on the way, and the same publish path as of stores.
#include <algorithm>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/storage/arriving_frame.h"
#include "lib/storage/frame_store_state.h"

namespace terrace {

void PoolFrame::MarkPresent(uint64_t offset, uint64_t n) {
  std::unique_lock lock(mutex_);
  if (is_finished_ || has_too_many_gaps_) return;
  arrived_.emplace_back(offset, n);
  if (is_verifying_) return;
  is_verifying_ = true;
  while (!arrived_.empty()) {
    const auto [at, length] = arrived_.front();
    arrived_.pop_front();
    lock.unlock();
    verifier_.MarkPresent(at, length);
    lock.lock();
    has_too_many_gaps_ = verifier_.num_islands() > kMaxGaps;
    if (has_too_many_gaps_) arrived_.clear();
  }
  is_verifying_ = false;
  idle_.notify_all();
}

Result<FrameHeader> PoolFrame::Finish() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return !is_verifying_; });
  if (is_finished_) return FailedPreconditionError("the frame was published already");
  if (has_too_many_gaps_) return DataLossError("frame: arrived in too many pieces at once");
  if (verifier_.present_end() < frame_bytes_) {
    return FailedPreconditionError("of the frame's " + std::to_string(frame_bytes_) + " bytes only " +
                                   std::to_string(verifier_.present_end()) + " have arrived without a gap");
  }
  is_finished_ = true;
  return verifier_.Finish(frame_bytes_);
}

namespace {

// What the caller says of the frame, against what the frame says of itself.
Status CheckClaims(const ObjectId& id, const ObjectMeta& meta, const FrameHeader& header) {
  if (header.key != id.key || header.part != id.part) return DataLossError("frame of another object");
  if (header.root != meta.root) return DataLossError("frame of another root");
  if (header.parent != meta.parent) return DataLossError("frame of another parent");
  if (header.first_token != meta.first_token) return DataLossError("frame of another place in the prompt");
  if (meta.content && !(header.content == *meta.content))
    return DataLossError("frame of other tokens or items");
  if (header.frame_bytes != meta.frame_bytes || header.payload_bytes != meta.payload_bytes)
    return DataLossError("frame or payload of another length");
  if (header.division != meta.division) return DataLossError("frame of another division into shards");
  if (header.codec != Codec::kRaw || meta.codec != Codec::kRaw || header.cipher != 0 ||
      header.stored_bytes != header.payload_bytes) {
    return DataLossError("frame in a codec that this build does not read");
  }
  if (header.flags != meta.flags) return DataLossError("frame with other flags");
  return OkStatus();
}

// What the root's spec says of any chunk. An undivided model's payloads can be measured.
Status CheckSpec(const RootState& root, const FrameHeader& header) {
  const KvSpec& spec = root.spec;
  const size_t num_tokens = header.content.tokens.size();
  if (num_tokens == 0 || num_tokens > spec.tokens_per_chunk)
    return DataLossError("a chunk of " + std::to_string(num_tokens) + " tokens");
  if (header.first_token % spec.tokens_per_chunk != 0 || header.first_token > UINT32_MAX)
    return DataLossError("a chunk that begins at token " + std::to_string(header.first_token));
  if (header.first_token == 0 && header.parent != root.root)
    return DataLossError("the first chunk of a prefix does not hang on its root");
  const bool is_measurable = spec.payload_form == PayloadForm::kCanonical && header.division == 0 &&
                             header.part.group < spec.groups.size() && header.part.shard == 0;
  if (is_measurable &&
      header.payload_bytes != spec.PayloadBytes(header.part, static_cast<uint32_t>(num_tokens))) {
    return DataLossError("a canonical payload of another length");
  }
  return OkStatus();
}

}  // namespace

// Against what the index knows of the chunk and of the one before it: a key says nothing of root and place.
Status FrameStore::State::CheckPlace(const RootState& root, const FrameHeader& header) const {
  const IndexEntry* known = core->index_->Find(header.key);
  if (known != nullptr && !known->is_placeholder() &&
      (known->root_number != root.number || known->first_token != header.first_token)) {
    return DataLossError("the chunk is known under another root or at another place");
  }
  const IndexEntry* parent = core->index_->Find(header.parent);
  if (parent == nullptr || parent->is_placeholder()) return OkStatus();
  const bool follows =
      parent->root_number == root.number &&
      uint64_t{parent->first_token} + root.spec.tokens_per_chunk == header.first_token &&
      (parent->num_tokens == root.spec.tokens_per_chunk || parent->num_tokens == IndexEntry::kUnknownTokens);
  return follows ? OkStatus() : DataLossError("the chunk does not follow the one that it hangs on");
}

Result<std::shared_ptr<ArrivingFrame>> FrameStore::State::Allocate(uint64_t frame_bytes) {
  TERRACE_RETURN_IF_ERROR(CheckUsable());
  const uint64_t largest = core->pool_->largest_buffer_bytes();
  if (frame_bytes == 0 || frame_bytes % kFrameAlignment != 0 || largest < kTierPageBytes ||
      frame_bytes > largest - kTierPageBytes) {
    return InvalidArgumentError("a frame of " + std::to_string(frame_bytes) +
                                " bytes; allowed: multiples of 4096 that fit the pool");
  }
  TERRACE_ASSIGN_OR_RETURN(BufferRef buffer,
                           core->pool_->Allocate(kTierPageBytes + frame_bytes, BufferUse::kStore));
  return std::shared_ptr<ArrivingFrame>(
      std::make_shared<PoolFrame>(core.get(), std::move(buffer), frame_bytes));
}

Status FrameStore::State::Publish(const ObjectId& id, const ObjectMeta& meta, PoolFrame& frame) {
  TERRACE_RETURN_IF_ERROR(CheckUsable());
  TERRACE_ASSIGN_OR_RETURN(FrameHeader header, frame.Finish());
  TERRACE_RETURN_IF_ERROR(CheckClaims(id, meta, header));
  const RootStateRef root = core->roots_.Find(header.root);
  if (!root) return FailedPreconditionError("the root is not known");
  TERRACE_RETURN_IF_ERROR(CheckSpec(*root, header));
  const uint64_t first = header.first_token;
  const TokenView content(header.content.tokens, header.content.items);
  const PromptSlice slice(content, {0, content.tokens.size()});
  const ManagerCore::StoreRequest request{
      *root, id, header.parent, {first, first + content.tokens.size()}, slice, header.division};
  ManagerCore::Evictions evictions;
  Status status;
  {
    std::lock_guard lock(core->mutex_);
    TERRACE_RETURN_IF_ERROR(core->CheckOpen());
    TERRACE_RETURN_IF_ERROR(CheckPlace(*root, header));
    const uint64_t store_id = core->next_id_++;
    switch (core->ClaimStore(request, store_id, evictions)) {
      case ManagerCore::Claim::kNoParent:
        status =
            FailedPreconditionError("the chunk before token " + std::to_string(first) + " is not stored");
        break;
      case ManagerCore::Claim::kPresent:
        status = AlreadyExistsError("the object is stored");
        break;
      case ManagerCore::Claim::kClaimed: {
        const bool is_kept = core->PlaceFrame(
            {id, frame.buffer(), header, store_id, ObjectMarks{meta.priority, meta.expiry}}, evictions);
        if (!is_kept) status = ResourceExhaustedError("no tier has room for the object");
        break;
      }
    }
  }
  core->SendEvictions(std::move(evictions));
  for (size_t t = 0; t < core->tiers_.size(); ++t) core->PumpWrites(t);
  return status;
}

}  // namespace terrace
