// BackendWrapper: passes every call on to another backend. Fault injection, throttling and tracing are
// subclasses that override the one call they are about.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "terrace/backend.h"

namespace terrace {

class TERRACE_API BackendWrapper : public Backend {
 public:
  // Owns `base`; has its name.
  explicit BackendWrapper(std::unique_ptr<Backend> base);
  ~BackendWrapper() override;

 protected:
  Backend& base() { return *base_; }
  const Backend& base() const { return *base_; }

  Capabilities DoCapabilities() const override;
  uint64_t DoCapacityBytes() const override;
  uint64_t DoUsedBytes() const override;
  Status DoAttach(const BackendContext& context) override;
  void DoGet(std::vector<GetOp> ops, GetDone done) override;
  void DoPut(std::vector<PutOp> ops, PutDone done) override;
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override;
  void DoClear(StatusDone done) override;
  void DoFlush(StatusDone done) override;
  std::vector<BufferRef> DoBorrow(std::span<const ObjectId> ids) override;
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override;
  Status DoPutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> DoScanRoots() override;
  void DoMatch(PrefixQuery query, MatchDone done) override;
  void DoRelease(std::string_view lease_token) override;
  Status DoClose(TimePoint deadline) override;

 private:
  std::unique_ptr<Backend> base_;
};

}  // namespace terrace
