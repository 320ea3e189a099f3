#include "tests/model/model_run.h"

#include <algorithm>
#include <array>

#include "tests/model/model_payload.h"

namespace terrace {
namespace {

constexpr uint32_t kChunk = 4;
constexpr uint64_t kMiB = uint64_t{1} << 20;

ModelRoot MakeRoot(KvSpec spec, std::string salt) {
  ModelRoot root;
  root.spec = std::move(spec);
  root.spec.model_id = "model";
  root.spec.tokens_per_chunk = kChunk;
  root.salt = std::move(salt);
  root.key = ComputeRoot(root.spec, {}, root.salt)->root;
  for (uint16_t group = 0; group < root.spec.groups.size(); ++group) {
    for (uint16_t shard = 0; shard < root.spec.num_shards(); ++shard) root.parts.push_back({group, shard});
  }
  return root;
}

std::vector<ModelRoot> MakeRoots() {
  std::vector<ModelRoot> roots;
  KvSpec whole;
  whole.cut = Cut::kWhole;
  roots.push_back(MakeRoot(whole, ""));
  roots.push_back(MakeRoot(whole, "salt"));
  KvSpec groups;
  groups.groups = {{Retention::kFull, 0}, {Retention::kWindow, 2 * kChunk - 1}, {Retention::kState, 0}};
  roots.push_back(MakeRoot(groups, ""));
  KvSpec ranged;
  ranged.payload_form = PayloadForm::kCanonical;
  ranged.cut = Cut::kRanged;
  const PlaneSpec k{.kind = PlaneKind::kK, .heads = 2, .head_dim = 256, .bytes_per_token = 1024};
  const PlaneSpec v{.kind = PlaneKind::kV, .heads = 2, .head_dim = 256, .bytes_per_token = 1024};
  ranged.layers = {{0, {k, v}}, {0, {k, v}}};
  ranged.shards = {{0, 2, 0, 2}, {1, 2, 0, 2}};
  roots.push_back(MakeRoot(ranged, ""));
  return roots;
}

}  // namespace

void ModelRunCounts::Add(const ModelRunCounts& other) {
  operations += other.operations;
  commits += other.commits;
  matched_lookups += other.matched_lookups;
  loaded_objects += other.loaded_objects;
  failed_loads += other.failed_loads;
  victims += other.victims;
  erased += other.erased;
  reopens += other.reopens;
  faults += other.faults;
  scribbles += other.scribbles;
  corrupt += other.corrupt;
  rests += other.rests;
  pins += other.pins;
}

// The table of what may happen. A new call of the manager is a line here and a function.
const ModelRun::Operation ModelRun::kOperations[] = {
    {"prepare", 120, &ModelRun::Prepare},
    {"commit", 110, &ModelRun::Commit},
    {"abandon", 8, &ModelRun::Abandon},
    {"run posted work", 120, &ModelRun::StepExecutorOnce},
    {"release one operation of the disk", 180, &ModelRun::StepDisk},
    {"hold the disk, or not", 15, &ModelRun::ToggleHolding},
    {"write to abandoned buffers", 8, &ModelRun::Scribble},
    {"lookup", 150, &ModelRun::Lookup},
    {"release a lease", 60, &ModelRun::ReleaseLease},
    {"load", 80, &ModelRun::Load},
    {"load to memory", 12, &ModelRun::LoadToMemory},
    {"next", 260, &ModelRun::Next},
    {"release a chunk", 120, &ModelRun::ReleaseChunk},
    {"drop a load", 25, &ModelRun::DropLoad},
    {"time passes", 15, &ModelRun::AdvanceClock},
    {"erase", 20, &ModelRun::Erase},
    {"clear", 1, &ModelRun::Clear},
    {"peek", 30, &ModelRun::Peek},
    {"pin", 8, &ModelRun::Pin},
    {"unpin", 5, &ModelRun::Unpin},
    {"erase a prefix", 5, &ModelRun::ErasePrefix},
    {"erase a spec or a salt", 1, &ModelRun::EraseRoots},
    {"flush", 6, &ModelRun::Flush},
    {"poll a flush", 8, &ModelRun::PollFlush},
    {"rest", 6, &ModelRun::Rest},
    {"reopen", 2, &ModelRun::Reopen},
    {"faults begin or end", 8, &ModelRun::ChangeFaults},
};

ModelRun::ModelRun(const ModelRunOptions& options)
    : options_(options), random_(options.seed * 0x9e3779b97f4a7c15ull + 1) {
  control_ = std::make_shared<StepControl>(random_());
  control_->clock = &clock_;
  limits_.pool_bytes = (2 + Draw(5)) * kMiB;
  limits_.host_bytes = Chance(0.3) ? limits_.pool_bytes / 4 * 3 : limits_.pool_bytes;
  limits_.disk_bytes = (1 + Draw(9)) * kMiB;
  limits_.lease_budget = std::array{0.5, 0.1, 1.0}[Draw(3)];
  limits_.lease_time = std::chrono::seconds(30);
  window_bytes_ = std::array{uint64_t{0}, kMiB / 2, kMiB / 8}[Draw(3)];
  model_ = std::make_unique<ManagerModel>(MakeRoots(), limits_);
  model_->moment().is_writing = [this](const ObjectId& id) { return control_->HoldsWriteOf(id); };
  model_->moment().may_have_stayed = [this](const ObjectId& id) {
    return control_->unsure_erases.contains(id);
  };
}

ModelRun::~ModelRun() {
  if (link_) *link_ = nullptr;
  ForgetHandles();
  if (!manager_) return;
  executor_->DropAll();
  manager_->Close(std::chrono::steady_clock::now()).IgnoreError();
}

std::string ModelRun::Run() {
  std::discrete_distribution<size_t> draw = [] {
    std::vector<uint32_t> weights;
    for (const Operation& operation : kOperations) weights.push_back(operation.weight);
    return std::discrete_distribution<size_t>(weights.begin(), weights.end());
  }();
  std::deque<std::pair<uint64_t, const char*>> last;
  Open();
  while (counts_.operations < options_.operations && model_->failure().empty()) {
    const Operation& operation = kOperations[draw(random_)];
    last.emplace_back(counts_.operations++, operation.name);
    if (last.size() > 30) last.pop_front();
    model_->Tick();
    (this->*operation.run)();
    AfterOperation();
  }
  if (model_->failure().empty()) Rest();
  counts_.victims = model_->num_victims();
  counts_.scribbles = control_->scribbles;
  counts_.faults += control_->drops;
  if (model_->failure().empty()) return "";
  std::string text = "seed " + std::to_string(options_.seed) + ", operation " +
                     std::to_string(counts_.operations) + ": " + model_->failure() + "\nlast operations:";
  for (const auto& [number, name] : last) text += "\n  " + std::to_string(number) + " " + name;
  return text;
}

// --- opening

void ModelRun::Open() {
  model_->ForgetPresence();
  may_leak_ |= options_.with_faults;
  ++life_;
  commits_of_life_ = 0;
  committed_.clear();
  requests_.clear();
  model_->moment().is_erasing = true;
  for (int attempt = 0; !OpenOnce(); ++attempt) {
    if (!Expect(options_.with_faults && attempt < 50, "the manager does not open")) return;
    model_->ForgetPresence();
  }
  model_->moment().is_erasing = false;
  for (const ModelRoot& root : model_->roots()) {
    const Result<ChunkKey> key = manager_->Root(root.spec, root.adapters, root.salt);
    Expect(key.ok() && *key == root.key, "Root gives another key");
  }
}

bool ModelRun::OpenOnce() {
  std::set<ObjectId> before;
  for (const auto& [id, object] : platters_->objects) before.insert(id);
  std::set<ChunkKey> known_roots;
  for (const auto& [key, record] : platters_->roots) known_roots.insert(key);
  executor_ = std::make_shared<StepExecutor>();
  metrics_ = std::make_shared<MetricRegistry>();
  link_ = std::make_shared<ManagerModel*>(model_.get());
  std::vector<Tier> tiers(kModelTiers);
  auto host = std::make_unique<FaultBackend>(*MakeHostBackend({.capacity_bytes = limits_.host_bytes}),
                                             FaultOptions{.seed = random_()});
  host_faults_ = host.get();
  auto disk = std::make_unique<FaultBackend>(MakeMemoryDisk(platters_, limits_.disk_bytes),
                                             FaultOptions{.seed = random_()});
  disk_faults_ = disk.get();
  tiers[0].backend = std::move(host);
  tiers[1].backend = std::make_unique<StepBackend>(std::move(disk), control_);
  for (size_t t = 0; t < kModelTiers; ++t) tiers[t].policy = std::make_unique<ModelPolicy>(link_, t);
  control_->holding = false;
  SetFaults(options_.with_faults && Chance(0.5));
  StorageOptions options;
  options.pool_bytes = limits_.pool_bytes;
  options.huge_pages = false;
  options.lease_time = limits_.lease_time;
  options.lease_budget = limits_.lease_budget;
  options.load_window_bytes = window_bytes_;
  options.executor = executor_;
  options.metrics = metrics_;
  options.log = MakeNullLogSink();
  options.clock = &clock_;
  Result<std::unique_ptr<StorageManager>> opened = StorageManager::Open(options, std::move(tiers));
  if (!opened.ok()) {
    *link_ = nullptr;
    return false;
  }
  manager_ = *std::move(opened);
  CheckOpened(before, known_roots);
  control_->holding = Chance(0.5);
  return true;
}

// What lies on the disk is found again, but for what has lost what it hangs on.
void ModelRun::CheckOpened(const std::set<ObjectId>& before, const std::set<ChunkKey>& known_roots) {
  if (options_.with_faults) return;
  model_->ForEachObject([&](ModelNode& node, ObjectPart part, ModelObject& object) {
    bool is_whole = before.contains({node.key, part});
    const bool knows_root = known_roots.contains(model_->roots()[node.root].key);
    for (const ModelNode* at = &node; is_whole && at->first_token > 0; at = at->parent) {
      if (knows_root && !model_->NeedsParent(*at, part)) break;
      is_whole = before.contains({at->parent->key, part});
    }
    model_->Expect(object.present[1] == is_whole, "found after a reopen, or not, against the disk", node,
                   part);
    model_->Expect(!object.present[0], "the host tier is not empty after a reopen", node, part);
  });
}

void ModelRun::SetFaults(bool on) {
  FaultOptions disk;
  FaultOptions host;
  disk.seed = host.seed = random_();
  control_->drop = control_->refuse_root = 0;
  if (on) {
    const double rate = 0.02 + 0.1 * static_cast<double>(Draw(3));
    disk.get = {.error = rate, .not_found = rate / 2, .corrupt = rate};
    disk.put = {.error = rate, .error_after = rate};
    disk.erase = {.error = rate / 2, .error_after = rate};
    disk.clear = disk.flush = {.error = rate, .error_after = rate};
    disk.scan = {.error = rate};
    disk.error =
        std::array{StatusCode::kUnavailable,      StatusCode::kDataLoss, StatusCode::kResourceExhausted,
                   StatusCode::kDeadlineExceeded, StatusCode::kInternal, StatusCode::kAlreadyExists}[Draw(6)];
    // Nobody may say so of what is not there, or of what is.
    if (disk.error == StatusCode::kAlreadyExists) disk.put = {};
    if (disk.error == StatusCode::kResourceExhausted) disk.put.error_after = 0;
    host.put = {.error = rate, .error_after = rate};
    host.borrow = {.not_found = rate};
    control_->drop = rate / 2;
    control_->refuse_root = rate;
  }
  disk_faults_->SetOptions(disk);
  host_faults_->SetOptions(host);
}

void ModelRun::ChangeFaults() {
  if (!options_.with_faults) return;
  SetFaults(Chance(0.6));
  if (!Chance(0.3)) return;
  // A byte that changes where it lies.
  std::lock_guard lock(platters_->mutex);
  if (platters_->objects.empty()) return;
  auto at = platters_->objects.begin();
  std::advance(at, static_cast<ptrdiff_t>(Draw(platters_->objects.size())));
  at->second.frame[Draw(at->second.frame.size())] ^= std::byte{0x10};
}

// --- after each operation

bool ModelRun::IsQuiet() const { return executor_->is_idle() && control_->held.empty(); }

void ModelRun::AfterOperation() {
  if (!model_->failure().empty()) return;
  if (executor_->is_idle()) ResolveCommits();
  CountHolders();
  CheckStats(false);
  if (options_.checks_always || counts_.operations % 64 == 0) model_->CheckPresence(false);
}

void ModelRun::CountHolders() {
  if (IsQuiet()) limbo_.clear();
  model_->ForEachLease([](ModelLease& lease) { lease.is_held = false; });
  for (const HeldLease& held : leases_) held.model->is_held = true;
  for (const HeldLoad& held : loads_) held.model->lease->is_held |= !held.model->has_ended;
  model_->ReapLeases(clock_.Now());
}

void ModelRun::CheckStats(bool at_rest) {
  const ManagerStats stats = manager_->Stats();
  pending_writes_ = stats.pending_writes;
  model_->moment().may_be_writing = pending_writes_ > 0 || !IsQuiet();
  model_->moment().is_faulty = options_.with_faults;
  for (size_t t = 0; t < kModelTiers; ++t) {
    Expect(stats.tiers[t].objects == model_->num_present(t), "the number of objects of a tier is wrong");
    Expect(stats.tiers[t].used_bytes <= stats.tiers[t].capacity_bytes, "a tier is above its capacity");
  }
  Expect(stats.tiers[0].used_bytes == model_->present_units_bytes(), "the bytes of the host tier are wrong");
  Expect(stats.pool_used_bytes >= stats.tiers[0].used_bytes && stats.pool_used_bytes <= stats.pool_bytes,
         "the pool's accounting is wrong");
  const auto [least, most] = model_->ActiveLeases();
  Expect(stats.active_leases >= least && stats.active_leases <= most,
         "there are " + std::to_string(stats.active_leases) + " leases, not " + std::to_string(least) +
             " to " + std::to_string(most));
  Expect(options_.with_faults || stats.corrupt_objects == 0, "an object was called corrupt");
  if (!at_rest) return;
  counts_.corrupt += stats.corrupt_objects;
  Expect(stats.active_leases == 0, "a lease outlived its last holder");
  Expect(stats.pending_writes == 0, "a write is not done at rest");
  Expect(stats.pool_used_bytes == stats.tiers[0].used_bytes, "a buffer did not come back to the pool");
  std::set<const ModelNode*> entries;
  model_->ForEachObject([&](ModelNode& node, ObjectPart, ModelObject& object) {
    if (object.IsAnywhere()) entries.insert(&node);
  });
  // What hangs below a chunk is found from it, so a chunk of which nothing is left may stay for its children.
  std::set<const ModelNode*> with_ancestors = entries;
  for (const ModelNode* node : entries) {
    for (const ModelNode* at = node->parent; at->parent != nullptr; at = at->parent) with_ancestors.insert(at);
  }
  Expect(stats.index_entries >= entries.size() && stats.index_entries <= with_ancestors.size(),
         "the index holds " + std::to_string(stats.index_entries) + " chunks, the tiers " +
             std::to_string(entries.size()));
  uint64_t dropped = 0;
  for (const char* reason : {"erased", "parent_lost", "no_tier"}) {
    dropped += metrics_
                   ->GetCounter("terrace_manager_dropped_objects_total",
                                "Objects that were to be kept and are not", {{"reason", reason}})
                   ->value();
  }
  Expect(stats.stored_objects + dropped == commits_of_life_, "a commit is neither stored nor dropped");
}

// At rest: what the policies were told is what lies on the platters.
void ModelRun::CheckDisk() {
  uint64_t found = 0;
  model_->ForEachObject([&](ModelNode& node, ObjectPart part, ModelObject& object) {
    const bool lies_there = platters_->objects.contains({node.key, part});
    found += lies_there ? 1 : 0;
    if (object.present[1]) model_->Expect(lies_there, "on the disk for the manager alone", node, part);
    if (!may_leak_) model_->Expect(lies_there == object.present[1], "on the disk unknown", node, part);
  });
  Expect(found == platters_->objects.size(), "the disk holds what was never stored");
  Expect(platters_->max_used_bytes <= limits_.disk_bytes, "the disk was above its capacity");
}

// --- steps

void ModelRun::StepExecutorOnce() {
  model_->moment().may_be_writing = true;
  if (executor_->RunOne()) has_run_since_commit_ = true;
}

void ModelRun::StepDisk() { control_->Step(); }

void ModelRun::ToggleHolding() { control_->holding = !control_->holding; }

void ModelRun::Scribble() { control_->ScribbleOrphans(); }

void ModelRun::AdvanceClock() {
  clock_.Advance(Chance(0.7) ? std::chrono::seconds(1 + Draw(4)) : std::chrono::seconds(31));
}

void ModelRun::Settle() {
  model_->moment().may_be_writing = true;
  while (!IsQuiet()) {
    executor_->RunAll();
    control_->Drain(true);
  }
  ResolveCommits();
  control_->ScribbleOrphans();
}

void ModelRun::ForgetHandles() {
  for (const HeldLoad& held : loads_) limbo_.push_back(held.model);
  for (const HeldChunk& held : chunks_) limbo_.push_back(held.model);
  writables_.clear();
  loads_.clear();
  chunks_.clear();
  leases_.clear();
}

void ModelRun::Rest() {
  for (HeldWritable& writable : writables_) {
    ModelObject& object = model_->ObjectOf(*writable.node, writable.part);
    if (object.claim == writable.claim) object.claim = 0;
  }
  ForgetHandles();
  while (!model_->pins().empty()) Unpin();
  CountHolders();
  control_->holding = false;
  Settle();
  CountHolders();
  CheckStats(true);
  model_->CheckPresence(true);
  CheckDisk();
  control_->holding = Chance(0.5);
  ++counts_.rests;
}

void ModelRun::Reopen() {
  const bool drained = Chance(0.5);
  if (drained) Settle();
  model_->moment().is_erasing = true;  // what a close cuts off is lost
  const TimePoint now = std::chrono::steady_clock::now();
  const Status closed = manager_->Close(drained ? now + std::chrono::seconds(20) : now);
  if (drained) Expect(closed.ok() || options_.with_faults, "a drained manager does not close");
  const Prompt prompt = DrawPrompt();
  Expect(manager_->Lookup(model_->roots()[0].key, prompt.view()).status().code() ==
             StatusCode::kFailedPrecondition,
         "a closed manager answers");
  if (!leases_.empty()) {
    const HeldLease& held = leases_[0];
    LoadHandle handle = manager_->Load(held.lease, {0, held.lease.matched_tokens()});
    Expect(held.lease.matched_tokens() == 0 || !handle.report().status.ok(), "a closed manager loads");
  }
  *link_ = nullptr;
  executor_->DropAll();
  control_->ScribbleOrphans();
  manager_.reset();
  loads_.clear();
  leases_.clear();
  limbo_.clear();
  model_->ReapLeases(TimePoint::max());
  ++counts_.reopens;
  Open();
}

}  // namespace terrace
