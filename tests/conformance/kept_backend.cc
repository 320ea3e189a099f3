#include "tests/conformance/kept_backend.h"

#include <algorithm>
#include <cstring>

namespace terrace {

KeptBackend::KeptBackend(std::shared_ptr<KeptDisk> disk, uint64_t capacity_bytes)
    : Backend("kept"), disk_(std::move(disk)), capacity_bytes_(capacity_bytes) {}

uint64_t KeptBackend::DoUsedBytes() const {
  std::lock_guard lock(disk_->mutex);
  return disk_->used_bytes;
}

Status KeptBackend::DoAttach(const BackendContext&) {
  Result<std::unique_ptr<Executor>> threads = MakeThreadPool({.num_threads = 2, .name = "kept"});
  if (!threads.ok()) return threads.status();
  threads_ = std::move(*threads);
  return OkStatus();
}

void KeptBackend::Post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (threads_) threads_->Post(std::move(work));
}

GetResult KeptBackend::GetOne(const GetOp& op) const {
  std::vector<std::byte> frame;
  {
    std::lock_guard lock(disk_->mutex);
    const auto found = disk_->objects.find(op.id);
    if (found == disk_->objects.end()) return {NotFoundError("absent"), 0};
    frame = found->second.frame;
  }
  std::vector<FrameRange> ranges = op.ranges;
  if (ranges.empty()) ranges.push_back({0, frame.size(), 0});
  for (const FrameRange& range : ranges) {
    if (range.length > frame.size() || range.frame_offset > frame.size() - range.length ||
        range.dst_offset + range.length > op.dst.frame().size()) {
      return {InvalidArgumentError("a range beyond frame or destination"), frame.size()};
    }
  }
  for (const FrameRange& range : ranges) {
    if (op.cancel && op.cancel->load()) return {CancelledError("cancelled"), frame.size()};
    if (op.deadline <= context().clock->Now()) return {DeadlineExceededError("too late"), frame.size()};
    std::memcpy(op.dst.mutable_frame().data() + range.dst_offset, frame.data() + range.frame_offset,
                range.length);
    if (op.on_bytes) op.on_bytes(range.dst_offset, range.length);
  }
  return {OkStatus(), frame.size()};
}

Status KeptBackend::PutOne(const PutOp& op) {
  std::lock_guard lock(disk_->mutex);
  if (disk_->objects.contains(op.id)) return AlreadyExistsError("present");
  const uint64_t bytes = kTierPageBytes + op.meta.frame_bytes;
  if (disk_->used_bytes + bytes > capacity_bytes_) return ResourceExhaustedError("full");
  disk_->used_bytes += bytes;
  const Bytes frame = op.frame.frame().first(op.meta.frame_bytes);
  disk_->objects[op.id] = {{frame.begin(), frame.end()}, op.meta};
  return OkStatus();
}

Status KeptBackend::EraseOne(const ObjectId& id) {
  std::lock_guard lock(disk_->mutex);
  const auto found = disk_->objects.find(id);
  if (found == disk_->objects.end()) return NotFoundError("absent");
  disk_->used_bytes -= kTierPageBytes + found->second.frame.size();
  disk_->objects.erase(found);
  return OkStatus();
}

void KeptBackend::DoGet(std::vector<GetOp> ops, GetDone done) {
  Post([this, ops = std::move(ops), done = std::move(done)]() mutable {
    std::vector<GetResult> results;
    for (const GetOp& op : ops) results.push_back(GetOne(op));
    ops.clear();
    done(results);
  });
}

void KeptBackend::DoPut(std::vector<PutOp> ops, PutDone done) {
  Post([this, ops = std::move(ops), done = std::move(done)]() mutable {
    std::vector<Status> results;
    for (const PutOp& op : ops) results.push_back(PutOne(op));
    ops.clear();
    done(results);
  });
}

void KeptBackend::DoErase(std::vector<ObjectId> ids, EraseMode, EraseDone done) {
  Post([this, ids = std::move(ids), done = std::move(done)] {
    std::vector<Status> results;
    for (const ObjectId& id : ids) results.push_back(EraseOne(id));
    done(results);
  });
}

void KeptBackend::DoClear(StatusDone done) {
  Post([this, done = std::move(done)] {
    {
      std::lock_guard lock(disk_->mutex);
      disk_->objects.clear();
      disk_->roots.clear();
      disk_->used_bytes = 0;
    }
    done(OkStatus());
  });
}

void KeptBackend::DoFlush(StatusDone done) {
  Post([done = std::move(done)] { done(OkStatus()); });
}

Result<ScanPage> KeptBackend::DoScan(std::string_view cursor, size_t limit, ScanDetail) {
  ObjectId after;
  if (!cursor.empty()) {
    if (cursor.size() != sizeof(after)) return InvalidArgumentError("cursor is not one of this backend");
    std::memcpy(&after, cursor.data(), sizeof(after));
  }
  std::lock_guard lock(disk_->mutex);
  auto at = cursor.empty() ? disk_->objects.begin() : disk_->objects.upper_bound(after);
  ScanPage page;
  for (; at != disk_->objects.end() && page.objects.size() < limit; ++at) {
    page.objects.push_back({at->first, at->second.meta});
  }
  if (at != disk_->objects.end()) {
    page.next_cursor.assign(reinterpret_cast<const char*>(&page.objects.back().id), sizeof(ObjectId));
  }
  return page;
}

Status KeptBackend::DoPutRoot(const RootRecord& record) {
  std::lock_guard lock(disk_->mutex);
  disk_->roots[record.root] = record;
  return OkStatus();
}

Result<std::vector<RootRecord>> KeptBackend::DoScanRoots() {
  std::lock_guard lock(disk_->mutex);
  std::vector<RootRecord> records;
  for (const auto& [root, record] : disk_->roots) records.push_back(record);
  return records;
}

Status KeptBackend::DoClose(TimePoint) {
  std::unique_ptr<Executor> ending;
  {
    std::lock_guard lock(mutex_);
    ending = std::move(threads_);
  }
  return OkStatus();  // `ending` runs what was posted
}

}  // namespace terrace
