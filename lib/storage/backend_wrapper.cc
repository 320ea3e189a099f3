#include "terrace/backend_wrapper.h"

#include "lib/base/check.h"

namespace terrace {
namespace {

const Backend& Checked(const std::unique_ptr<Backend>& base) {
  TERRACE_CHECK(base != nullptr) << "a wrapper needs a backend";
  return *base;
}

}  // namespace

// Not measured: the wrapped backend counts what reaches it under the same label.
BackendWrapper::BackendWrapper(std::unique_ptr<Backend> base)
    : Backend(std::string(Checked(base).name()), false), base_(std::move(base)) {}
BackendWrapper::~BackendWrapper() = default;

Capabilities BackendWrapper::DoCapabilities() const { return base_->capabilities(); }
uint64_t BackendWrapper::DoCapacityBytes() const { return base_->capacity_bytes(); }
uint64_t BackendWrapper::DoUsedBytes() const { return base_->used_bytes(); }
Status BackendWrapper::DoAttach(const BackendContext& context) { return base_->Attach(context); }
void BackendWrapper::DoGet(std::vector<GetOp> ops, GetDone done) {
  base_->Get(std::move(ops), std::move(done));
}
void BackendWrapper::DoPut(std::vector<PutOp> ops, PutDone done) {
  base_->Put(std::move(ops), std::move(done));
}
void BackendWrapper::DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  base_->Erase(std::move(ids), mode, std::move(done));
}
void BackendWrapper::DoClear(StatusDone done) { base_->Clear(std::move(done)); }
void BackendWrapper::DoFlush(StatusDone done) { base_->Flush(std::move(done)); }
std::vector<BufferRef> BackendWrapper::DoBorrow(std::span<const ObjectId> ids) { return base_->Borrow(ids); }
Result<ScanPage> BackendWrapper::DoScan(std::string_view cursor, size_t limit, ScanDetail detail) {
  return base_->Scan(cursor, limit, detail);
}
Status BackendWrapper::DoPutRoot(const RootRecord& record) { return base_->PutRoot(record); }
Result<std::vector<RootRecord>> BackendWrapper::DoScanRoots() { return base_->ScanRoots(); }
void BackendWrapper::DoMatch(PrefixQuery query, MatchDone done) {
  base_->Match(std::move(query), std::move(done));
}
void BackendWrapper::DoRelease(std::string_view lease_token) { base_->Release(lease_token); }
Status BackendWrapper::DoClose(TimePoint deadline) { return base_->Close(deadline); }

}  // namespace terrace
