// NvmeBackend: terrace::Backend on an NvmeCore.
#include "terrace/nvme_backend.h"

#include <cstring>

#include "backends/nvme/nvme_core.h"
#include "backends/nvme/striped_backend.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

class NvmeBackend : public Backend {
 public:
  // Not `measured`: one of a stripe, which counts its calls itself.
  NvmeBackend(std::unique_ptr<NvmeCore> core, bool measured)
      : Backend("nvme", measured), core_(std::move(core)) {}
  // The core closes itself: it waits until the device has let go.
  ~NvmeBackend() override = default;

 protected:
  Capabilities DoCapabilities() const override { return {.is_durable = true}; }
  uint64_t DoCapacityBytes() const override { return core_->data_bytes(); }
  uint64_t DoUsedBytes() const override { return core_->used_bytes(); }
  Status DoAttach(const BackendContext& context) override { return core_->Start(context); }
  void DoGet(std::vector<GetOp> ops, GetDone done) override { core_->Get(std::move(ops), std::move(done)); }
  void DoPut(std::vector<PutOp> ops, PutDone done) override { core_->Put(std::move(ops), std::move(done)); }
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override {
    core_->Erase(std::move(ids), mode, std::move(done));
  }
  void DoClear(StatusDone done) override { core_->Clear(std::move(done)); }
  void DoFlush(StatusDone done) override { core_->Flush(std::move(done)); }
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override {
    return core_->Scan(cursor, limit, detail);
  }
  Status DoPutRoot(const RootRecord& record) override { return core_->PutRoot(record); }
  Result<std::vector<RootRecord>> DoScanRoots() override { return core_->ScanRoots(); }
  Status DoClose(TimePoint deadline) override { return core_->Close(deadline); }

 private:
  const std::unique_ptr<NvmeCore> core_;
};

std::unique_ptr<Backend> BackendOf(std::unique_ptr<OpenedStore> store, bool measured) {
  return std::make_unique<NvmeBackend>(std::make_unique<NvmeCore>(std::move(store)), measured);
}

// Whether another holder is why a directory did not open, and not its device.
bool IsHeld(const std::string& directory, IoEngineKind engine) {
  const std::unique_ptr<Disk> disk = MakeSystemDisk(directory, engine);
  return disk->OpenDirectory().ok() && disk->Lock().status().code() == StatusCode::kUnavailable;
}

// One directory's share of a stripe. A device that is gone, or fails, is left out (`lost` says why): its
// objects are misses. What somebody has to decide about is an error: a holder, a foreign directory, a key.
struct OpenedMember {
  StripeMember member;
  std::unique_ptr<OpenedStore> store;
  Status lost;
};
Result<OpenedMember> OpenMember(const NvmeOptions& options, const std::string& directory) {
  NvmeOptions own = options;
  own.directory = directory;
  own.more_directories.clear();
  own.capacity_bytes = options.capacity_bytes / (options.more_directories.size() + 1);
  OpenedMember opened;
  opened.member.name = directory;
  Result<std::unique_ptr<OpenedStore>> store = OpenStore(own, MakeSystemDisk(directory, own.io_engine));
  if (!store.ok()) {
    const StatusCode code = store.status().code();
    const bool is_gone = code == StatusCode::kNotFound ||
                         (code == StatusCode::kUnavailable && !IsHeld(directory, own.io_engine));
    if (!is_gone) return store.status();
    opened.lost = store.status();
    return opened;
  }
  opened.store = std::move(*store);
  const DirectoryId& id = opened.store->directory->id();
  std::memcpy(&opened.member.seed, id.data(), sizeof(opened.member.seed));
  opened.member.ids.reserve(opened.store->index.size());
  for (const PlacementRef& placement : opened.store->index) opened.member.ids.push_back(placement->id);
  return opened;
}

Result<std::unique_ptr<Backend>> MakeStripe(const NvmeOptions& options) {
  std::vector<std::string> directories = options.more_directories;
  directories.insert(directories.begin(), options.directory);
  std::vector<OpenedMember> opened;
  std::vector<Status> lost;
  for (const std::string& directory : directories) {
    TERRACE_ASSIGN_OR_RETURN(OpenedMember member, OpenMember(options, directory));
    if (!member.store) {
      lost.push_back(member.lost);
      continue;
    }
    for (const OpenedMember& other : opened) {
      if (other.member.seed != member.member.seed) continue;
      return InvalidArgumentError("more_directories: " + directory + " is a copy of " + other.member.name +
                                  ", allowed: directories made apart");
    }
    opened.push_back(std::move(member));
  }
  if (opened.empty()) return lost[0];
  for (const Status& why : lost) {
    opened[0].store->warnings.push_back("a directory is left out, and what lies in it is a miss: " +
                                        why.ToString());
  }
  std::vector<StripeMember> members;
  for (OpenedMember& one : opened) {
    one.member.backend = BackendOf(std::move(one.store), /*measured=*/false);
    members.push_back(std::move(one.member));
  }
  return MakeStripedBackend("nvme", std::move(members));
}

}  // namespace

Result<std::unique_ptr<Backend>> MakeNvmeBackendOnDisk(const NvmeOptions& options,
                                                       std::unique_ptr<Disk> disk) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<OpenedStore> store, OpenStore(options, std::move(disk)));
  return BackendOf(std::move(store), /*measured=*/true);
}

Result<std::unique_ptr<Backend>> MakeNvmeBackendWithEngine(const NvmeOptions& options,
                                                           IoEngineFactory engine_factory) {
  return MakeNvmeBackendOnDisk(
      options, MakeSystemDisk(options.directory, options.io_engine, std::move(engine_factory)));
}

Result<std::unique_ptr<Backend>> MakeNvmeBackend(const NvmeOptions& options) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  if (!options.more_directories.empty()) return MakeStripe(options);
  return MakeNvmeBackendOnDisk(options, MakeSystemDisk(options.directory, options.io_engine));
}

}  // namespace terrace
