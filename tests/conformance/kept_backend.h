// KeptBackend: a backend as an outsider would write one, with include/terrace/ only. Its "disk" is memory
// that the fixture holds, so that a reopen finds it; it copies what is put and completes on threads of its
// own. It exists so that the suite's durable and asynchronous halves are known to hold without a device.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "terrace/backend.h"
#include "terrace/executor.h"

namespace terrace {

// What outlives the backend.
struct KeptDisk {
  struct Object {
    std::vector<std::byte> frame;
    ObjectMeta meta;
  };
  std::mutex mutex;
  std::map<ObjectId, Object> objects;
  std::map<ChunkKey, RootRecord> roots;
  uint64_t used_bytes = 0;
};

class KeptBackend final : public Backend {
 public:
  KeptBackend(std::shared_ptr<KeptDisk> disk, uint64_t capacity_bytes);

 protected:
  Capabilities DoCapabilities() const override { return {.is_durable = true}; }
  uint64_t DoCapacityBytes() const override { return capacity_bytes_; }
  uint64_t DoUsedBytes() const override;
  Status DoAttach(const BackendContext& context) override;
  void DoGet(std::vector<GetOp> ops, GetDone done) override;
  void DoPut(std::vector<PutOp> ops, PutDone done) override;
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override;
  void DoClear(StatusDone done) override;
  void DoFlush(StatusDone done) override;
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail) override;
  Status DoPutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> DoScanRoots() override;
  Status DoClose(TimePoint deadline) override;

 private:
  GetResult GetOne(const GetOp& op) const;
  Status PutOne(const PutOp& op);
  Status EraseOne(const ObjectId& id);
  void Post(std::function<void()> work);

  const std::shared_ptr<KeptDisk> disk_;
  const uint64_t capacity_bytes_;
  std::mutex mutex_;  // of threads_
  std::unique_ptr<Executor> threads_;
};

}  // namespace terrace
