#include "tests/support/throwing_backend.h"

#include <stdexcept>

namespace terrace {

void ThrowingBackend::MayThrow() {
  if (!throws_) return;
  ++thrown_;
  throw std::runtime_error("thrown by the test");
}

void ThrowingBackend::DoGet(std::vector<GetOp> ops, GetDone done) {
  MayThrow();
  BackendWrapper::DoGet(std::move(ops), std::move(done));
}

void ThrowingBackend::DoPut(std::vector<PutOp> ops, PutDone done) {
  MayThrow();
  BackendWrapper::DoPut(std::move(ops), std::move(done));
}

void ThrowingBackend::DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  MayThrow();
  BackendWrapper::DoErase(std::move(ids), mode, std::move(done));
}

void ThrowingBackend::DoClear(StatusDone done) {
  MayThrow();
  BackendWrapper::DoClear(std::move(done));
}

void ThrowingBackend::DoFlush(StatusDone done) {
  MayThrow();
  BackendWrapper::DoFlush(std::move(done));
}

std::vector<BufferRef> ThrowingBackend::DoBorrow(std::span<const ObjectId> ids) {
  MayThrow();
  return BackendWrapper::DoBorrow(ids);
}

Result<ScanPage> ThrowingBackend::DoScan(std::string_view cursor, size_t limit, ScanDetail detail) {
  MayThrow();
  return BackendWrapper::DoScan(cursor, limit, detail);
}

Status ThrowingBackend::DoPutRoot(const RootRecord& record) {
  MayThrow();
  return BackendWrapper::DoPutRoot(record);
}

Result<std::vector<RootRecord>> ThrowingBackend::DoScanRoots() {
  MayThrow();
  return BackendWrapper::DoScanRoots();
}

Status ThrowingBackend::DoClose(TimePoint deadline) {
  Status closed = BackendWrapper::DoClose(deadline);
  MayThrow();
  return closed;
}

}  // namespace terrace
