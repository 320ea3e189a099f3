// ThrowingBackend: a backend that throws. For tests of what stands above a backend: no exception of it may
// come out of the manager.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/backend_wrapper.h"

namespace terrace {

// Throws from every call once it is told to.
class ThrowingBackend final : public BackendWrapper {
 public:
  explicit ThrowingBackend(std::unique_ptr<Backend> base, bool at_once = false)
      : BackendWrapper(std::move(base)), throws_(at_once) {}

  void SetThrows(bool throws) { throws_ = throws; }
  uint64_t thrown() const { return thrown_; }

 protected:
  void DoGet(std::vector<GetOp> ops, GetDone done) override;
  void DoPut(std::vector<PutOp> ops, PutDone done) override;
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override;
  void DoClear(StatusDone done) override;
  void DoFlush(StatusDone done) override;
  std::vector<BufferRef> DoBorrow(std::span<const ObjectId> ids) override;
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override;
  Status DoPutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> DoScanRoots() override;
  // Closes the base first.
  Status DoClose(TimePoint deadline) override;

 private:
  void MayThrow();

  std::atomic<bool> throws_;
  std::atomic<uint64_t> thrown_{0};
};

}  // namespace terrace
