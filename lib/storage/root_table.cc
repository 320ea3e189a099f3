#include "lib/storage/root_table.h"

#include "terrace/object_meta.h"

namespace terrace {

std::vector<ObjectPart> RootState::DefaultParts() const {
  std::vector<ObjectPart> parts;
  for (uint16_t group = 0; group < spec.groups.size(); ++group) parts.push_back({group, 0});
  return parts;
}

Status RootState::CheckParts(std::span<const ObjectPart> parts) const {
  for (const ObjectPart& part : parts) {
    if (part.group >= spec.groups.size() || part.shard >= spec.num_shards()) {
      return InvalidArgumentError("part (group " + std::to_string(part.group) + ", shard " +
                                  std::to_string(part.shard) + "); allowed: groups below " +
                                  std::to_string(spec.groups.size()) + ", shards below " +
                                  std::to_string(spec.num_shards()));
    }
  }
  return OkStatus();
}

RootStateRef RootTable::Find(const ChunkKey& root) const {
  std::lock_guard lock(mutex_);
  const auto it = numbers_.find(root);
  return it == numbers_.end() ? nullptr : slots_[it->second].state;
}

RootStateRef RootTable::At(uint32_t number) const {
  std::lock_guard lock(mutex_);
  return slots_[number].state;
}

ChunkKey RootTable::KeyAt(uint32_t number) const {
  std::lock_guard lock(mutex_);
  return slots_[number].root;
}

uint32_t RootTable::NumberOfLocked(const ChunkKey& root) {
  const auto [it, is_new] = numbers_.try_emplace(root, static_cast<uint32_t>(slots_.size()));
  if (is_new) slots_.push_back({root, nullptr});
  return it->second;
}

uint32_t RootTable::NumberOf(const ChunkKey& root) {
  std::lock_guard lock(mutex_);
  return NumberOfLocked(root);
}

RootTable::Added RootTable::Put(const KvSpec& spec, const RootRecord& record) {
  std::lock_guard lock(mutex_);
  const uint32_t number = NumberOfLocked(record.root);
  RootStateRef& known = slots_[number].state;
  if (known && known->spec == spec) return {known, false};
  known = std::make_shared<const RootState>(
      RootState{.spec = spec, .root = record.root, .record = record, .number = number});
  return {known, true};
}

std::vector<RootStateRef> RootTable::All() const {
  std::lock_guard lock(mutex_);
  std::vector<RootStateRef> all;
  for (const Slot& slot : slots_) {
    if (slot.state) all.push_back(slot.state);
  }
  return all;
}

bool RootTable::NeedsParent(uint32_t number, uint16_t group, uint64_t first_token) const {
  if (first_token == 0) return false;
  std::lock_guard lock(mutex_);
  const RootStateRef& state = slots_[number].state;
  if (!state) return !runs_stand_alone_;
  const uint64_t chunk = first_token / state->spec.tokens_per_chunk;
  if (runs_stand_alone_ && RunBegin(chunk) == chunk) return false;
  return group >= state->spec.groups.size() || state->RuleOf(group) == Retention::kFull;
}

}  // namespace terrace
