// HostBackend: published pool buffers by object id. Nothing is copied on the way in or, by Borrow, out.
//
// Locks: one per shard and one for the roots, never two at once; none is held while a buffer is dropped (its
// pool may call back to make room), while bytes are copied, or while a caller is completed.
#include "terrace/host_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr size_t kNumShards = 64;
// A read is reported in steps of this, so that the tier hashes bytes that are still in cache.
constexpr uint64_t kCopyBytes = uint64_t{1} << 20;

struct Entry {
  BufferRef buffer;
  ObjectMeta meta;
};

// Padded: neighbours are locked by different threads all the time.
struct alignas(64) Shard {
  std::mutex mutex;
  absl::flat_hash_map<ObjectId, Entry, ObjectIdHash> entries;
};

size_t ShardOf(const ObjectId& id) { return (ObjectIdHash()(id) * 0x9e3779b97f4a7c15ull) >> 58; }
static_assert(kNumShards == 1 << (64 - 58));

// Cursor: u8 shard | key[32] | u16 group | u16 shard of the part; the next page begins after that id.
constexpr size_t kCursorBytes = 1 + 32 + 2 + 2;

std::string EncodeCursor(size_t shard, const ObjectId& last) {
  std::string cursor(1, static_cast<char>(shard));
  cursor.append(reinterpret_cast<const char*>(last.key.bytes.data()), last.key.bytes.size());
  cursor.append(reinterpret_cast<const char*>(&last.part.group), 2);
  cursor.append(reinterpret_cast<const char*>(&last.part.shard), 2);
  return cursor;
}

struct ScanPosition {
  size_t shard = 0;
  std::optional<ObjectId> after;  // in that shard; none = its beginning
};

Result<ScanPosition> DecodeCursor(std::string_view cursor) {
  ScanPosition position;
  if (cursor.empty()) return position;
  if (cursor.size() != kCursorBytes) return InvalidArgumentError("cursor is not one of this backend");
  position.shard = static_cast<unsigned char>(cursor[0]);
  if (position.shard >= kNumShards) return InvalidArgumentError("cursor is not one of this backend");
  ObjectId id;
  std::memcpy(id.key.bytes.data(), cursor.data() + 1, 32);
  std::memcpy(&id.part.group, cursor.data() + 33, 2);
  std::memcpy(&id.part.shard, cursor.data() + 35, 2);
  position.after = id;
  return position;
}

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const HostOptions& options)
      : Backend("host"), capacity_bytes_(options.capacity_bytes) {}
  ~HostBackend() override { DropAll(); }

 protected:
  Capabilities DoCapabilities() const override { return {.supports_borrow = true, .completes_inline = true}; }
  uint64_t DoCapacityBytes() const override { return capacity_bytes_; }
  uint64_t DoUsedBytes() const override { return used_bytes_.load(std::memory_order_relaxed); }
  Status DoAttach(const BackendContext&) override { return OkStatus(); }

  void DoGet(std::vector<GetOp> ops, GetDone done) override {
    std::vector<GetResult> results;
    results.reserve(ops.size());
    for (GetOp& op : ops) {
      results.push_back(GetOne(op));
      op = GetOp();  // lets go of the buffer before the caller is told
    }
    done(results);
  }

  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    std::vector<Status> results;
    results.reserve(ops.size());
    for (PutOp& op : ops) {
      results.push_back(PutOne(op));
      op = PutOp();
    }
    done(results);
  }

  // Evicting and erasing are one here: nothing outlives the process.
  void DoErase(std::vector<ObjectId> ids, EraseMode, EraseDone done) override {
    std::vector<Status> results;
    results.reserve(ids.size());
    for (const ObjectId& id : ids) {
      Shard& shard = shards_[ShardOf(id)];
      Entry dropped;
      {
        std::lock_guard lock(shard.mutex);
        const auto found = shard.entries.find(id);
        if (found != shard.entries.end()) {
          dropped = std::move(found->second);
          shard.entries.erase(found);
          used_bytes_.fetch_sub(dropped.buffer.size_bytes(), std::memory_order_relaxed);
        }
      }
      results.push_back(dropped.buffer ? OkStatus() : NotFoundError("not in the host tier"));
    }
    done(results);
  }

  void DoClear(StatusDone done) override {
    DropAll();
    std::map<ChunkKey, RootRecord> dropped;
    {
      std::lock_guard lock(roots_mutex_);
      dropped.swap(roots_);
    }
    done(OkStatus());
  }

  void DoFlush(StatusDone done) override { done(OkStatus()); }

  std::vector<BufferRef> DoBorrow(std::span<const ObjectId> ids) override {
    std::vector<BufferRef> buffers(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      Shard& shard = shards_[ShardOf(ids[i])];
      std::lock_guard lock(shard.mutex);
      const auto found = shard.entries.find(ids[i]);
      if (found != shard.entries.end()) buffers[i] = found->second.buffer;
    }
    return buffers;
  }

  // By shard, and in a shard by id: an object that is there all the time is seen exactly once, whatever is
  // put and erased between the pages.
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail) override {
    TERRACE_ASSIGN_OR_RETURN(ScanPosition position, DecodeCursor(cursor));
    ScanPage page;
    for (; position.shard < kNumShards; position = {position.shard + 1, std::nullopt}) {
      const bool more = ScanShard(position, limit - page.objects.size(), page.objects);
      if (more || page.objects.size() == limit) {
        // Where nothing follows, the next page is empty and ends the scan.
        page.next_cursor = EncodeCursor(position.shard, page.objects.back().id);
        break;
      }
    }
    return page;
  }

  Status DoPutRoot(const RootRecord& record) override {
    std::lock_guard lock(roots_mutex_);
    roots_[record.root] = record;
    return OkStatus();
  }

  Result<std::vector<RootRecord>> DoScanRoots() override {
    std::lock_guard lock(roots_mutex_);
    std::vector<RootRecord> records;
    records.reserve(roots_.size());
    for (const auto& [root, record] : roots_) records.push_back(record);
    return records;
  }

  Status DoClose(TimePoint) override {
    closing_.store(true, std::memory_order_release);
    DropAll();
    return OkStatus();
  }

 private:
  std::optional<Entry> Find(const ObjectId& id) {
    Shard& shard = shards_[ShardOf(id)];
    std::lock_guard lock(shard.mutex);
    const auto found = shard.entries.find(id);
    if (found == shard.entries.end()) return std::nullopt;
    return found->second;
  }

  GetResult GetOne(const GetOp& op) {
    const std::optional<Entry> entry = Find(op.id);
    if (!entry) return {NotFoundError("not in the host tier"), 0};
    const uint64_t frame_bytes = entry->meta.frame_bytes;
    GetResult result{OkStatus(), frame_bytes};
    std::vector<FrameRange> ranges = op.ranges;
    if (ranges.empty()) ranges.push_back({0, frame_bytes, 0});
    for (const FrameRange& range : ranges) {
      if (range.length > frame_bytes || range.frame_offset > frame_bytes - range.length) {
        result.status =
            InvalidArgumentError("range ends at " + std::to_string(range.frame_offset + range.length) +
                                 ", the frame has " + std::to_string(frame_bytes) + " bytes");
        return result;
      }
      if (range.dst_offset + range.length > op.dst.frame().size()) {
        result.status = InvalidArgumentError("dst has " + std::to_string(op.dst.frame().size()) +
                                             " frame bytes, the frame " + std::to_string(frame_bytes));
        return result;
      }
    }
    for (const FrameRange& range : ranges) {
      result.status = CopyRange(op, entry->buffer, range);
      if (!result.status.ok()) return result;
    }
    return result;
  }

  Status CopyRange(const GetOp& op, const BufferRef& source, const FrameRange& range) {
    for (uint64_t at = 0; at < range.length; at += kCopyBytes) {
      if (op.cancel && op.cancel->load(std::memory_order_acquire)) return CancelledError("cancelled");
      if (op.deadline != kNoDeadline && context().clock->Now() >= op.deadline) {
        return DeadlineExceededError("the deadline passed while bytes were copied");
      }
      const uint64_t n = std::min(kCopyBytes, range.length - at);
      std::memcpy(op.dst.mutable_frame().data() + range.dst_offset + at,
                  source.frame().data() + range.frame_offset + at, n);
      if (op.on_bytes) op.on_bytes(range.dst_offset + at, n);
    }
    return OkStatus();
  }

  Status PutOne(const PutOp& op) {
    const uint64_t bytes = op.frame.size_bytes();
    Shard& shard = shards_[ShardOf(op.id)];
    std::lock_guard lock(shard.mutex);
    // Under the shard's lock, so that a Close that has passed this shard leaves nothing in it.
    if (closing_.load(std::memory_order_acquire)) return FailedPreconditionError("host: closed");
    if (shard.entries.contains(op.id)) return AlreadyExistsError("in the host tier");
    uint64_t used = used_bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > capacity_bytes_ || used > capacity_bytes_ - bytes) {
        return ResourceExhaustedError("host tier: " + std::to_string(used) + " of " +
                                      std::to_string(capacity_bytes_) + " bytes are used, " +
                                      std::to_string(bytes) + " more do not fit");
      }
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    shard.entries.emplace(op.id, Entry{op.frame, op.meta});
    return OkStatus();
  }

  // Appends up to `room` objects after the position; true where the shard has more.
  bool ScanShard(const ScanPosition& position, size_t room, std::vector<ScannedObject>& out) {
    Shard& shard = shards_[position.shard];
    std::lock_guard lock(shard.mutex);
    std::vector<const std::pair<const ObjectId, Entry>*> later;
    for (const auto& entry : shard.entries) {
      if (!position.after || entry.first > *position.after) later.push_back(&entry);
    }
    const size_t taken = std::min(room, later.size());
    std::partial_sort(later.begin(), later.begin() + taken, later.end(),
                      [](const auto* a, const auto* b) { return a->first < b->first; });
    for (size_t i = 0; i < taken; ++i) out.push_back({later[i]->first, later[i]->second.meta});
    return taken < later.size();
  }

  void DropAll() {
    for (Shard& shard : shards_) {
      absl::flat_hash_map<ObjectId, Entry, ObjectIdHash> dropped;
      {
        std::lock_guard lock(shard.mutex);
        dropped.swap(shard.entries);
      }
      uint64_t bytes = 0;
      for (const auto& [id, entry] : dropped) bytes += entry.buffer.size_bytes();
      used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    }
  }

  const uint64_t capacity_bytes_;
  // Sum of size_bytes() of the buffers in the shards, plus those whose Put is between check and insert.
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<bool> closing_{false};
  std::array<Shard, kNumShards> shards_;
  std::mutex roots_mutex_;
  std::map<ChunkKey, RootRecord> roots_;
};

}  // namespace

Status HostOptions::Validate() const { return OkStatus(); }

Result<std::unique_ptr<Backend>> MakeHostBackend(const HostOptions& options) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<Backend>(std::make_unique<HostBackend>(options));
}

}  // namespace terrace
