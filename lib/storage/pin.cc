// Pin and Unpin: a lookup's protection without its deadline, by name.
#include "lib/base/status_macros.h"
#include "lib/storage/asked.h"
#include "lib/storage/manager_core.h"

namespace terrace {

Result<uint64_t> ManagerCore::Pin(std::string_view name, const ChunkKey& root, const TokenView& prompt,
                                  std::span<const ObjectPart> parts) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_RETURN_IF_ERROR(CheckPinName(name));
  TERRACE_ASSIGN_OR_RETURN(const Asked asked, Ask(0, root, prompt, parts));
  MatchRequest request = MatchRequestOf(asked, prompt, UINT64_MAX);
  request.pin = true;
  MatchPlan plan = MatchPrefix(*index_, request);
  return KeepPin(name, plan, *asked.root, asked.parts);
}

Status ManagerCore::CheckPinName(std::string_view name) {
  if (!name.empty() && name.size() <= kMaxPinName) return OkStatus();
  return InvalidArgumentError("a pin's name of " + std::to_string(name.size()) + " bytes; allowed: 1.." +
                              std::to_string(kMaxPinName));
}

// Of a match that was pinned.
Result<uint64_t> ManagerCore::KeepPin(std::string_view name, MatchPlan& plan, const RootState& root,
                                      std::span<const ObjectPart> parts) {
  const LeaseSegmentRef segment = MakeSegment(plan, root, parts, 0, plan.chunks.size());
  const bool kept = pins_.Keep(*index_, name, segment, plan.unused);
  RemoveUnused(plan.unused);
  if (!kept) {
    return ResourceExhaustedError("pinning " + std::to_string(segment->frame_bytes) +
                                  " bytes goes beyond pin_budget");
  }
  return plan.matched_tokens;
}

bool ManagerCore::Unpin(std::string_view name) {
  if (IsForkedChild()) return false;
  std::vector<ChunkKey> unused;
  const bool was_there = pins_.Drop(*index_, name, unused);
  RemoveUnused(unused);
  pool_->Nudge();
  return was_there;
}

void ManagerCore::DropPins() {
  std::vector<ChunkKey> unused;
  pins_.DropAll(*index_, unused);
  RemoveUnused(unused);
}

void ManagerCore::ForgetPins(const absl::flat_hash_set<ChunkKey, DigestHash>& erased) {
  if (erased.empty()) return;
  std::vector<ChunkKey> unused;
  pins_.Forget(*index_, erased, unused);
  for (const ChunkKey& key : unused) RemoveIfEmpty(key);
}

}  // namespace terrace
