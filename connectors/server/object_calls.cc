#include <algorithm>

#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"

namespace terrace::server {
namespace {

constexpr uint32_t kMaxScan = 1024;
constexpr uint32_t kMaxScanWithContent = 256;
// Of contents in one answer, which must fit a message; what is beyond it goes without.
constexpr size_t kMaxScanBytes = size_t{4} << 20;
constexpr int kMaxRoots = 1024;
constexpr auto kFlushStep = std::chrono::milliseconds(250);

template <typename Names>
Result<std::vector<ObjectId>> IdsOf(const Names& names) {
  if (static_cast<uint32_t>(names.size()) > kMaxBatch) {
    return InvalidArgumentError("names: at most " + std::to_string(kMaxBatch));
  }
  std::vector<ObjectId> ids;
  for (const v1::ObjectName& name : names) {
    const Result<ObjectId> id = ObjectIdOf(name);
    if (!id.ok()) return id.status();
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace

void Have(const Exchange<v1::HaveRequest, v1::HaveResponse>& exchange) {
  const Result<std::vector<ObjectId>> ids = IdsOf(exchange.request.names());
  if (!ids.ok()) return exchange.call->End(ids.status());
  const SessionRef session = exchange.call->session();
  for (const bool has : session->name_space->store->Has(*ids)) exchange.response.add_have(has);
  exchange.call->End(OkStatus());
}

void Erase(const Exchange<v1::EraseRequest, v1::EraseResponse>& exchange) {
  const Result<std::vector<ObjectId>> ids = IdsOf(exchange.request.names());
  if (!ids.ok()) return exchange.call->End(ids.status());
  const bool evicts = exchange.request.mode() == v1::ERASE_MODE_EVICT;
  const SessionRef session = exchange.call->session();
  for (const Status& status :
       session->name_space->store->Erase(*ids, evicts ? EraseMode::kEvict : EraseMode::kErase)) {
    SetResult(status, exchange.response.add_results());
  }
  exchange.call->End(OkStatus());
}

void Clear(const Exchange<v1::ClearRequest, v1::ClearResponse>& exchange) {
  exchange.call->End(exchange.call->session()->name_space->store->Clear());
}

void Flush(const Exchange<v1::FlushRequest, v1::FlushResponse>& exchange) {
  const SessionRef session = exchange.call->session();
  const TimePoint deadline = exchange.call->deadline();
  Status status;
  // In steps: a caller that has gone, or a server that ends, does not wait for the disks.
  do {
    const TimePoint step = Clock::Real()->Now() + kFlushStep;
    status = session->name_space->store->Flush(std::min(deadline, step));
  } while (status.code() == StatusCode::kDeadlineExceeded && !exchange.call->cancel()->load() &&
           Clock::Real()->Now() < deadline);
  exchange.call->End(status);
}

void Scan(const Exchange<v1::ScanRequest, v1::ScanResponse>& exchange) {
  const uint32_t most = exchange.request.with_content() ? kMaxScanWithContent : kMaxScan;
  const uint32_t limit = exchange.request.limit() == 0 ? most : std::min(exchange.request.limit(), most);
  const ScanDetail detail = exchange.request.with_content() ? ScanDetail::kContents : ScanDetail::kPlaces;
  const SessionRef session = exchange.call->session();
  const Result<ScanPage> page = session->name_space->store->Scan(exchange.request.cursor(), limit, detail);
  if (!page.ok()) return exchange.call->End(page.status());
  size_t content_bytes = 0;
  for (ScannedObject object : page->objects) {
    if (detail == ScanDetail::kPlaces || content_bytes > kMaxScanBytes) object.meta.content = nullptr;
    v1::ScannedObject* scanned = exchange.response.add_objects();
    SetScanned(object, scanned);
    content_bytes += scanned->object().content().size();
  }
  exchange.response.set_next_cursor(page->next_cursor);
  exchange.call->End(OkStatus());
}

void PutRoots(const Exchange<v1::PutRootsRequest, v1::PutRootsResponse>& exchange) {
  if (exchange.request.roots_size() > kMaxRoots) {
    return exchange.call->End(InvalidArgumentError("roots: at most " + std::to_string(kMaxRoots)));
  }
  const SessionRef session = exchange.call->session();
  for (const v1::RootRecord& record : exchange.request.roots()) {
    const Result<RootRecord> root = RootRecordOf(record);
    SetResult(root.ok() ? session->name_space->store->PutRoot(*root) : root.status(),
              exchange.response.add_results());
  }
  exchange.call->End(OkStatus());
}

void ListRoots(const Exchange<v1::ListRootsRequest, v1::ListRootsResponse>& exchange) {
  const Result<std::vector<RootRecord>> roots = exchange.call->session()->name_space->store->Roots();
  if (!roots.ok()) return exchange.call->End(roots.status());
  for (const RootRecord& record : *roots) SetRoot(record, exchange.response.add_roots());
  exchange.call->End(OkStatus());
}

}  // namespace terrace::server
