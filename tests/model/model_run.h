// ModelRun: one manager and its model over a random history that follows from a seed. Every piece of work
// that the manager posts and every completion of its disk is a step of the history; nothing runs by itself.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/model/manager_model.h"
#include "tests/model/model_policy.h"
#include "tests/model/step_backend.h"
#include "tests/support/fault_backend.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/step_executor.h"

namespace terrace {

struct ModelRunOptions {
  uint64_t seed = 1;
  uint64_t operations = 4000;
  bool with_faults = false;
  // Every operation is followed by the check of everything, not every 64th: a replay is to name the culprit.
  bool checks_always = false;
};

// What a run did, so that a test can tell that it did something.
struct ModelRunCounts {
  uint64_t operations = 0;
  uint64_t commits = 0;
  uint64_t matched_lookups = 0;
  uint64_t loaded_objects = 0;
  uint64_t failed_loads = 0;
  uint64_t victims = 0;
  uint64_t erased = 0;
  uint64_t reopens = 0;
  uint64_t faults = 0;
  uint64_t scribbles = 0;
  uint64_t corrupt = 0;
  uint64_t rests = 0;
  uint64_t pins = 0;
  void Add(const ModelRunCounts& other);
};

class ModelRun {
 public:
  explicit ModelRun(const ModelRunOptions& options);
  ~ModelRun();
  // Empty, or what went wrong, with the seed, the number of the operation and the last operations.
  std::string Run();
  const ModelRunCounts& counts() const { return counts_; }

 private:
  struct Prompt {
    std::vector<Token> tokens;
    std::vector<Item> items;
    TokenView view() const { return {tokens, items}; }
    TokenView First(uint64_t n) const;
  };
  struct HeldWritable {
    WritableChunk chunk;
    ModelNode* node;
    ObjectPart part;
    uint64_t claim;
    uint64_t life;
    uint64_t payload_bytes;
  };
  struct HeldLease {
    Lease lease;
    std::shared_ptr<ModelLease> model;
    Prompt prompt;
  };
  struct ModelLoad {
    std::shared_ptr<ModelLease> lease;
    std::vector<ModelItem> items;
    uint64_t made_at = 0;
    TimePoint made_when{};
    uint64_t begin = 0;
    size_t taken = 0;
    uint64_t bytes = 0;
    bool has_ended = false;
    bool is_cancelled = false;
  };
  struct HeldLoad {
    LoadHandle handle;
    std::shared_ptr<ModelLoad> model;
  };
  struct HeldChunk {
    LeasedChunk chunk;
    std::shared_ptr<ModelLoad> model;
    ObjectId id;
    uint64_t save;
  };
  struct Committed {
    ModelNode* node;
    ObjectPart part;
    uint64_t claim;
  };
  struct Operation {
    const char* name;
    uint32_t weight;
    void (ModelRun::*run)();
  };
  static const Operation kOperations[];
  static constexpr size_t kMaxHeld = 8;
  static constexpr uint64_t kNumRequests = 4;

  // model_run.cc
  void Open();
  bool OpenOnce();
  void CheckOpened(const std::set<ObjectId>& before, const std::set<ChunkKey>& known_roots);
  void AfterOperation();
  void CheckStats(bool at_rest);
  void CheckDisk();
  void Settle();  // runs and releases everything that waits
  void SetFaults(bool on);
  void ForgetHandles();
  void CountHolders();  // which leases are held, for sure or perhaps
  uint64_t Draw(uint64_t below) { return random_() % below; }
  bool Chance(double probability) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  }
  size_t DrawRoot() { return Draw(model_->roots().size()); }
  Prompt DrawPrompt();
  std::vector<ObjectPart> DrawParts(size_t root);
  std::vector<ObjectPart> AskedParts(size_t root, std::vector<ObjectPart> parts) const;  // none: the default
  uint64_t DrawPayloadBytes(const ModelRoot& root, TokenRange tokens, ObjectPart part);
  bool Expect(bool ok, std::string_view what) { return model_->Expect(ok, what); }
  bool IsQuiet() const;

  // Operations: model_run.cc
  void StepExecutorOnce();
  void StepDisk();
  void ToggleHolding();
  void AdvanceClock();
  void Rest();
  void Reopen();
  void Scribble();
  void ChangeFaults();
  // model_run_store.cc
  struct Walk;
  void Prepare();
  void CheckPrepared(Walk& walk, Result<PrepareResult>& result);
  void CheckPreparedEnd(const Walk& walk, size_t at, const Status& status);
  void Commit();
  void Abandon();
  void Erase();
  void EraseBelow(const std::vector<ModelNode*>& tops, const std::function<Result<uint64_t>()>& erase);
  void Clear();
  void Flush();
  void PollFlush();
  void ResolveCommits();
  // model_run_names.cc
  void Peek();
  void Pin();
  void Unpin();
  bool IsEraseSaid(const ModelNode& node) const;
  void ErasePrefix();
  void EraseRoots();
  // model_run_load.cc
  void Lookup();
  void TakeEarlierPlaces(uint64_t request_id, uint64_t host_tokens, ModelMatch& match);
  void ReleaseLease();
  void Load();
  void LoadToMemory();
  void Next();
  void ReleaseChunk();
  void DropLoad();
  void CheckLoadEnd(HeldLoad& load);
  void CheckReport(const LoadHandle& handle, const ModelLoad& load);
  uint64_t CheckPayload(const ModelLoad& load, const ObjectId& id, Bytes payload);
  std::shared_ptr<ModelLoad> MakeModelLoad(const HeldLease& lease, TokenRange range);
  void EraseLoad(size_t at);

  const ModelRunOptions options_;
  std::mt19937_64 random_;
  FakeClock clock_;
  std::shared_ptr<MemoryPlatters> platters_ = std::make_shared<MemoryPlatters>();
  std::shared_ptr<StepControl> control_;
  std::shared_ptr<StepExecutor> executor_;
  std::shared_ptr<MetricRegistry> metrics_;
  ManagerModel::Limits limits_;
  uint64_t window_bytes_ = 0;
  std::unique_ptr<ManagerModel> model_;
  ModelPolicy::Link link_;
  FaultBackend* disk_faults_ = nullptr;  // owned by the manager
  FaultBackend* host_faults_ = nullptr;
  std::unique_ptr<StorageManager> manager_;
  uint64_t life_ = 0;
  uint64_t commits_of_life_ = 0;
  bool may_leak_ = false;  // an erase of the disk failed in this life or before
  uint64_t pending_writes_ = 0;
  std::vector<Prompt> prompts_;
  std::vector<HeldWritable> writables_;
  std::vector<HeldLease> leases_;
  std::vector<HeldLoad> loads_;
  std::vector<HeldChunk> chunks_;
  std::vector<std::shared_ptr<ModelLoad>> limbo_;  // dropped while something was in flight
  std::map<uint64_t, std::weak_ptr<ModelLease>> requests_;
  std::deque<Committed> committed_;
  bool has_run_since_commit_ = false;
  ModelRunCounts counts_;
};

}  // namespace terrace
