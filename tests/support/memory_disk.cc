#include "tests/support/memory_disk.h"

#include <algorithm>
#include <cstring>

namespace terrace {
namespace {

uint64_t Charged(const ObjectMeta& meta) { return meta.frame_bytes + kTierPageBytes; }

class MemoryDisk final : public Backend {
 public:
  MemoryDisk(std::shared_ptr<MemoryPlatters> platters, uint64_t capacity)
      : Backend("disk"), platters_(std::move(platters)), capacity_(capacity) {}

 protected:
  Capabilities DoCapabilities() const override { return {.completes_inline = true, .is_durable = true}; }
  uint64_t DoCapacityBytes() const override { return capacity_; }
  uint64_t DoUsedBytes() const override {
    std::lock_guard lock(platters_->mutex);
    return platters_->UsedBytes();
  }
  Status DoAttach(const BackendContext&) override { return OkStatus(); }

  void DoGet(std::vector<GetOp> ops, GetDone done) override {
    auto shared = std::make_shared<std::vector<GetOp>>(std::move(ops));
    auto run = [this, platters = platters_, shared, done] {
      std::vector<GetResult> results;
      for (GetOp& op : *shared) results.push_back(ReadOne(*platters, op));
      shared->clear();  // the device has let go
      done(results);
    };
    Dispatch(&MemoryPlatters::holding_gets, std::move(run));
  }

  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    auto shared = std::make_shared<std::vector<PutOp>>(std::move(ops));
    auto run = [this, platters = platters_, shared, done] {
      std::vector<Status> results;
      for (PutOp& op : *shared) results.push_back(WriteOne(*platters, op));
      shared->clear();
      done(results);
    };
    Dispatch(&MemoryPlatters::holding_puts, std::move(run));
  }

  void DoErase(std::vector<ObjectId> ids, EraseMode, EraseDone done) override {
    std::vector<Status> results;
    {
      std::lock_guard lock(platters_->mutex);
      for (const ObjectId& id : ids) {
        results.push_back(platters_->objects.erase(id) > 0 ? OkStatus() : NotFoundError("absent"));
      }
    }
    done(results);
  }

  void DoClear(StatusDone done) override {
    {
      std::lock_guard lock(platters_->mutex);
      platters_->objects.clear();
    }
    done(OkStatus());
  }
  void DoFlush(StatusDone done) override { done(OkStatus()); }

  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail) override {
    std::lock_guard lock(platters_->mutex);
    ScanPage page;
    size_t skip = cursor.empty() ? 0 : std::stoul(std::string(cursor));
    const size_t next = skip + limit;
    for (const auto& [id, object] : platters_->objects) {
      if (skip > 0) {
        --skip;
      } else if (page.objects.size() < limit) {
        page.objects.push_back({id, object.meta});
      }
    }
    if (next < platters_->objects.size()) page.next_cursor = std::to_string(next);
    return page;
  }

  Status DoPutRoot(const RootRecord& record) override {
    std::lock_guard lock(platters_->mutex);
    platters_->roots[record.root] = record;
    return OkStatus();
  }
  Result<std::vector<RootRecord>> DoScanRoots() override {
    std::lock_guard lock(platters_->mutex);
    std::vector<RootRecord> out;
    for (const auto& [root, record] : platters_->roots) out.push_back(record);
    return out;
  }
  Status DoClose(TimePoint) override {
    platters_->ReleaseHeld();
    return OkStatus();
  }

 private:
  void Dispatch(bool MemoryPlatters::*holding, std::function<void()> run) {
    {
      std::lock_guard lock(platters_->mutex);
      if ((*platters_).*holding) {
        platters_->held.push_back(std::move(run));
        return;
      }
    }
    run();
  }

  static GetResult ReadOne(MemoryPlatters& platters, GetOp& op) {
    uint64_t frame_bytes = 0;
    {
      std::lock_guard lock(platters.mutex);
      ++platters.gets;
      const auto it = platters.objects.find(op.id);
      if (it == platters.objects.end()) return {NotFoundError("absent"), 0};
      const std::vector<std::byte>& frame = it->second.frame;
      frame_bytes = frame.size();
      if (op.ranges.empty()) op.ranges.push_back({0, frame_bytes, 0});
      for (const FrameRange& range : op.ranges) {
        if (range.frame_offset + range.length > frame_bytes ||
            range.dst_offset + range.length > op.dst.frame().size()) {
          return {DataLossError("beyond the frame or its destination"), 0};
        }
        std::memcpy(op.dst.mutable_frame().data() + range.dst_offset, frame.data() + range.frame_offset,
                    range.length);
        platters.get_bytes += range.length;
      }
    }
    if (op.cancel && op.cancel->load()) return {CancelledError("cancelled"), 0};
    for (const FrameRange& range : op.ranges) {
      for (uint64_t at = 0; op.on_bytes && at < range.length; at += 65536)
        op.on_bytes(range.dst_offset + at, std::min<uint64_t>(65536, range.length - at));
    }
    return {OkStatus(), frame_bytes};
  }

  Status WriteOne(MemoryPlatters& platters, PutOp& op) const {
    std::lock_guard lock(platters.mutex);
    ++platters.puts;
    if (platters.objects.contains(op.id)) return AlreadyExistsError("there");
    if (platters.UsedBytes() + Charged(op.meta) > capacity_) return ResourceExhaustedError("full");
    MemoryPlatters::Object& object = platters.objects[op.id];
    object.meta = op.meta;
    object.meta.generation = ++platters.generation;
    const Bytes frame = op.frame.frame().first(op.meta.frame_bytes);
    object.frame.assign(frame.begin(), frame.end());
    platters.max_used_bytes = std::max(platters.max_used_bytes, platters.UsedBytes());
    return OkStatus();
  }

  std::shared_ptr<MemoryPlatters> platters_;
  const uint64_t capacity_;
};

}  // namespace

uint64_t MemoryPlatters::UsedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, object] : objects) bytes += Charged(object.meta);
  return bytes;
}

size_t MemoryPlatters::ReleaseHeld(bool last_first) {
  std::vector<std::function<void()>> work;
  {
    std::lock_guard lock(mutex);
    work.swap(held);
  }
  if (last_first) std::reverse(work.begin(), work.end());
  for (const std::function<void()>& run : work) run();
  return work.size();
}

size_t MemoryPlatters::num_held() {
  std::lock_guard lock(mutex);
  return held.size();
}

std::unique_ptr<Backend> MakeMemoryDisk(std::shared_ptr<MemoryPlatters> platters, uint64_t capacity_bytes) {
  return std::make_unique<MemoryDisk>(std::move(platters), capacity_bytes);
}

}  // namespace terrace
