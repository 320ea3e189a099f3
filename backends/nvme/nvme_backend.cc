// NvmeBackend: terrace::Backend on an NvmeCore.
#include "terrace/nvme_backend.h"

#include "backends/nvme/nvme_core.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

class NvmeBackend : public Backend {
 public:
  explicit NvmeBackend(std::unique_ptr<NvmeCore> core) : Backend("nvme"), core_(std::move(core)) {}
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
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit) override {
    return core_->Scan(cursor, limit);
  }
  Status DoPutRoot(const RootRecord& record) override { return core_->PutRoot(record); }
  Result<std::vector<RootRecord>> DoScanRoots() override { return core_->ScanRoots(); }
  Status DoClose(TimePoint deadline) override { return core_->Close(deadline); }

 private:
  const std::unique_ptr<NvmeCore> core_;
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeNvmeBackendWithEngine(const NvmeOptions& options,
                                                           IoEngineFactory engine_factory) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<OpenedStore> store, OpenStore(options));
  return std::unique_ptr<Backend>(
      std::make_unique<NvmeBackend>(std::make_unique<NvmeCore>(std::move(store), std::move(engine_factory))));
}

Result<std::unique_ptr<Backend>> MakeNvmeBackend(const NvmeOptions& options) {
  return MakeNvmeBackendWithEngine(options, MakeUringEngine);
}

}  // namespace terrace
