// ManagerModel: what must be true of a manager over a host tier and a durable lower tier, kept in plain maps
// and computed by brute force, without a line of lib/storage or lib/core.
//
// It predicts what a manager must answer, and follows it where it is free (which object goes to make room):
// the eviction policies of the two tiers are the model's (ModelPolicy), so it is told of each object that
// becomes visible in a tier or leaves it, and judges each such event by the rules.
//
// One thread at a time, but it is called from within the manager (under its locks): it never calls back.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "terrace/storage_manager.h"

namespace terrace {

inline constexpr size_t kModelTiers = 2;  // 0: host, 1: the durable one

struct ModelRoot {
  KvSpec spec;
  std::vector<Adapter> adapters;
  std::string salt;
  ChunkKey key;
  std::vector<ObjectPart> parts;  // every group of every shard

  size_t PartIndex(ObjectPart part) const { return size_t{part.group} * spec.num_shards() + part.shard; }
  const GroupSpec& GroupOf(ObjectPart part) const { return spec.groups[part.group]; }
};

// One commit of an object. Its bytes may be answered from its commit until an erase covers it.
struct ModelSave {
  uint64_t number = 0;
  uint64_t payload_bytes = 0;
  uint64_t ended_at = UINT64_MAX;  // tick
};

struct ModelObject {
  bool present[kModelTiers] = {false, false};
  uint64_t left_at[kModelTiers] = {0, 0};  // tick at which it last left the tier
  uint64_t frame_bytes = 0;                // of the last publication that was seen
  uint64_t claim = 0;  // not 0: prepared or committed under this number, not yet published
  std::vector<ModelSave> saves;
  bool IsAnywhere() const { return present[0] || present[1]; }
};

struct ModelNode {
  size_t root = 0;              // index
  ModelNode* parent = nullptr;  // null: the root itself
  ChunkKey key;
  uint64_t first_token = 0;
  ChunkContent content;
  std::vector<ModelNode*> children;
  std::vector<ModelObject> objects;  // by PartIndex

  uint64_t end_token() const { return first_token + content.tokens.size(); }
};

struct ModelItem {
  ModelNode* node = nullptr;
  ObjectPart part;
  bool in_host = false;
  uint64_t frame_bytes = 0;
  TokenRange matched;
  bool is_unsure = false;  // where the manager thinks it lies, and so protects it, is not known
};

// One way to match a prompt. Where a match ends inside a chunk, several children may share the tokens: each
// is as good.
struct ModelMatch {
  uint64_t matched_tokens = 0;
  uint64_t host_tokens = 0;
  uint64_t frame_bytes = 0;
  std::vector<ModelItem> items;
};

struct ModelLease {
  size_t root = 0;
  uint64_t request_id = 0;
  uint64_t made_at = 0;  // tick
  ModelMatch match;
  bool is_ambiguous = false;  // another child would have done: what exactly is protected is not known
  TimePoint deadline{};
  bool has_ended = false;  // lapsed, released or renewed
  bool protects_host = false;
  bool protects_lower = false;
  uint64_t host_bytes = 0;  // in the budget
  uint64_t lower_bytes = 0;
  uint64_t unsure_bytes = 0;  // in the one or the other
  bool is_held = true;  // by the test, or by a load that has not ended; else perhaps by something in flight
};

// What a name protects. Of what an erase has reached it is not known whether the manager's erase did.
struct ModelPin {
  std::vector<ModelItem> items;
  bool is_ambiguous = false;
};

class ManagerModel {
 public:
  struct Limits {
    uint64_t pool_bytes = 0;
    uint64_t host_bytes = 0;
    uint64_t disk_bytes = 0;
    double lease_budget = 0.5;
    double pin_budget = 0.25;
    Duration lease_time{};
  };

  ManagerModel(std::vector<ModelRoot> roots, const Limits& limits);

  // --- what went wrong: the first failure counts
  bool Expect(bool ok, std::string_view what) {
    if (!ok && failure_.empty()) failure_ = what;
    return ok;
  }
  bool Expect(bool ok, std::string_view what, const ModelNode& node, ObjectPart part);
  const std::string& failure() const { return failure_; }

  const std::vector<ModelRoot>& roots() const { return roots_; }
  uint64_t tick() const { return tick_; }
  void Tick() { ++tick_; }

  // --- chunks
  ModelNode* RootNode(size_t root) { return root_nodes_[root]; }
  // The chunk of tokens [begin, end) of the prompt, made known if it is not.
  ModelNode* Chunk(size_t root, ModelNode* parent, const TokenView& prompt, TokenRange tokens);
  ModelNode* Find(const ChunkKey& key) const;
  ModelObject& ObjectOf(ModelNode& node, ObjectPart part) {
    return node.objects[roots_[node.root].PartIndex(part)];
  }
  const ModelObject& ObjectOf(const ModelNode& node, ObjectPart part) const {
    return node.objects[roots_[node.root].PartIndex(part)];
  }
  void ForEachObject(const std::function<void(ModelNode&, ObjectPart, ModelObject&)>& visit);

  // --- what may be loaded (model_match.cc)
  // Every best match, of equal length; one of no tokens where nothing matches.
  std::vector<ModelMatch> Matches(size_t root, const TokenView& prompt, uint64_t limit,
                                  const std::vector<ObjectPart>& parts);
  // The token from which an engine must compute when the first `taken` items of the match were loaded.
  uint64_t RecomputeFrom(size_t root, const std::vector<ModelItem>& items, size_t taken,
                         uint64_t begin) const;

  // --- leases
  std::shared_ptr<ModelLease> AddLease(size_t root, uint64_t request_id, ModelMatch match, bool is_ambiguous,
                                       TimePoint now);
  // What the manager says of it: checked as far as the budget decides it, then believed.
  // `earlier_bytes`: of the lease that it goes on from, which may be charged until it has taken its place.
  // `extends_hint`: that one was above the budget, and this may stay what that was.
  void SetProtected(ModelLease& lease, bool is_protected, uint64_t earlier_bytes, bool extends_hint);
  void EndLease(ModelLease& lease);
  // What is past its deadline ends; what nobody holds any longer is forgotten.
  void ReapLeases(TimePoint now);
  void ForEachLease(const std::function<void(ModelLease&)>& visit) {
    for (const auto& lease : leases_) visit(*lease);
  }
  // The least and the most that a manager may say.
  std::pair<uint64_t, uint64_t> ActiveLeases() const;

  // --- pins
  std::map<std::string, ModelPin>& pins() { return pins_; }
  // The manager pinned it, or said that the budget is too small for it: may that be?
  void CheckPinned(const std::string& name, const ModelPin& pin, bool is_kept);

  // --- life of an object
  uint64_t NewNumber() { return ++last_number_; }
  bool NeedsParent(const ModelNode& node, ObjectPart part) const;
  // In the tier or a slower durable one; `or_coming`: or claimed by a store.
  bool IsReachable(const ModelNode& node, ObjectPart part, size_t tier, bool or_coming) const;
  // The saves of the objects of the chunk and of all that hangs below it end, their claims with them. Returns
  // the number of objects that were there.
  uint64_t EndSubtree(ModelNode& node);
  // Something that is stored or being stored hangs below the chunk with a chunk between of which nothing is.
  bool HasHoleBelow(const ModelNode& node) const;
  void EndAll();
  // The erase of this tick failed: what it ended may still be there.
  void ReviveSubtree(ModelNode& node);

  // --- events from the policies (model_events.cc), under the manager's locks
  void OnInsert(size_t tier, const ObjectId& id, uint64_t bytes);
  void OnRemove(size_t tier, const ObjectId& id);
  // `skipped` stood before it in the tier's order and were passed over.
  void OnVictim(size_t tier, const std::list<ObjectId>& skipped, const ObjectId* victim);
  // A new opening: nothing is known to lie anywhere until the policies say so.
  void ForgetPresence();
  // Every rule that holds whenever nobody is inside the manager. `at_rest`: nothing is in flight anywhere.
  void CheckPresence(bool at_rest);
  uint64_t num_present(size_t tier) const { return num_present_[tier]; }
  uint64_t present_units_bytes() const { return host_unit_bytes_; }
  uint64_t num_victims() const { return num_victims_; }

  // What the harness knows of the moment, for the judgement of events.
  struct Moment {
    bool is_erasing = false;                          // inside Erase, Clear, Close or Open
    bool may_be_writing = false;                      // write-behind is not empty
    bool is_faulty = false;                           // reads may fail, so that anything may be dropped
    std::function<bool(const ObjectId&)> is_writing;  // to the lower tier, certainly
    std::function<bool(const ObjectId&)>
        may_have_stayed;  // an erase of it failed: the bytes may still lie there
  };
  Moment& moment() { return moment_; }

 private:
  bool MayLeave(size_t tier, const ModelNode& node, ObjectPart part) const;
  bool MustNotLeave(size_t tier, const ModelNode& node, ObjectPart part) const;
  bool MayBeKept(size_t tier, const ModelNode& node, ObjectPart part) const;
  bool IsSuperseded(size_t tier, const ModelNode& node) const;
  bool Strands(size_t tier, const ModelNode& node, ObjectPart part) const;
  bool IsLeased(const ModelNode& node) const;  // or pinned

  const std::vector<ModelRoot> roots_;
  const Limits limits_;
  std::vector<std::unique_ptr<ModelNode>> nodes_;
  std::vector<ModelNode*> root_nodes_;
  std::unordered_map<ChunkKey, ModelNode*, DigestHash> by_key_;
  std::vector<std::shared_ptr<ModelLease>> leases_;
  std::map<std::string, ModelPin> pins_;
  Moment moment_;
  std::string failure_;
  uint64_t tick_ = 1;
  uint64_t last_number_ = 0;
  uint64_t num_present_[kModelTiers] = {0, 0};
  uint64_t host_unit_bytes_ = 0;  // of what is present in the host tier, in whole pool units
  uint64_t num_victims_ = 0;
};

}  // namespace terrace
