#include "backends/nvme/opened_store.h"

#include <algorithm>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// More than are given out between two starts.
constexpr uint64_t kGenerationsPerStart = uint64_t{1} << 40;

// Takes the records that are right into index and allocator; the keys of all others are appended to `broken`.
Status LoadRecords(OpenedStore& store, std::vector<std::string>* broken) {
  std::vector<LoadedRecord> records;
  TERRACE_RETURN_IF_ERROR(
      store.manifest->Load([&](LoadedRecord record) { records.push_back(std::move(record)); }, broken));
  // Of two that claim the same bytes the later write is the right one.
  std::sort(records.begin(), records.end(), [](const LoadedRecord& a, const LoadedRecord& b) {
    return a.record.meta.generation > b.record.meta.generation;
  });
  for (LoadedRecord& loaded : records) {
    ObjectRecord& record = loaded.record;
    const ObjectMeta& meta = record.meta;
    const bool plausible = meta.frame_bytes > 0 && meta.frame_bytes % kFrameAlignment == 0 &&
                           record.header_bytes > 0 && record.header_bytes <= meta.frame_bytes;
    if (!plausible || !store.allocator.Reserve(record.extents)) {
      broken->push_back(EncodeRecordKey(loaded.id));
      continue;
    }
    auto placement = std::make_shared<Placement>();
    placement->id = loaded.id;
    placement->extents = std::move(record.extents);
    placement->generation = meta.generation;
    placement->frame_bytes = meta.frame_bytes;
    placement->header_bytes = record.header_bytes;
    placement->record_bytes = loaded.record_bytes;
    store.record_bytes += loaded.record_bytes;
    store.index.emplace(loaded.id, std::move(placement));
  }
  return OkStatus();
}

Status DropRecords(OpenedStore& store, const std::vector<std::string>& keys) {
  if (keys.empty()) return OkStatus();
  std::vector<RecordChange> changes;
  for (const std::string& key : keys) changes.push_back({.key = key, .is_delete = true});
  store.dropped_records = keys.size();
  store.warnings.push_back("dropped " + std::to_string(keys.size()) +
                           " records: broken, overlapping, or beyond the end of a segment");
  // Durable before a file is changed: a record must not find bytes at its place again that are not its own.
  return store.manifest->Apply(changes, true);
}

}  // namespace

Status NvmeOptions::Validate() const {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto wrong = [](const char* field, uint64_t value, const char* allowed) {
    return InvalidArgumentError(std::string(field) + " = " + std::to_string(value) + ", allowed: " + allowed);
  };
  if (directory.empty()) return InvalidArgumentError("directory is empty, allowed: a path");
  if (segment_bytes % kMiB != 0 || segment_bytes < 16 * kMiB || segment_bytes > 65536 * kMiB) {
    return wrong("segment_bytes", segment_bytes, "a multiple of 1 MiB, 16 MiB to 64 GiB");
  }
  if (request_bytes % 4096 != 0 || request_bytes < kMiB || request_bytes > 4 * kMiB) {
    return wrong("request_bytes", request_bytes, "a multiple of 4096, 1 MiB to 4 MiB");
  }
  if (inflight_bytes < request_bytes || inflight_bytes % 4096 != 0) {
    return wrong("inflight_bytes", inflight_bytes, "a multiple of 4096, request_bytes or more");
  }
  if (capacity_bytes / segment_bytes >= 1'000'000) {
    return wrong("capacity_bytes", capacity_bytes, "less than 1000000 segments");
  }
  return OkStatus();
}

Result<std::unique_ptr<OpenedStore>> OpenStore(const NvmeOptions& options) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  auto store = std::make_unique<OpenedStore>();
  store->options = options;
  TERRACE_ASSIGN_OR_RETURN(store->directory, TierDirectory::Open(options.directory, options.segment_bytes));
  TierDirectory& directory = *store->directory;
  const uint64_t segment_bytes = directory.superblock().segment_bytes;
  if (segment_bytes != options.segment_bytes) {
    store->warnings.push_back("segment_bytes = " + std::to_string(options.segment_bytes) + " is not used: " +
                              directory.path() + " was made with " + std::to_string(segment_bytes));
    store->options.segment_bytes = segment_bytes;
    TERRACE_RETURN_IF_ERROR(store->options.Validate().WithContext("directory " + directory.path()));
  }
  const uint64_t reserve = ManifestReserve(options.capacity_bytes);
  store->data_bytes = (options.capacity_bytes - reserve) / kExtentUnit * kExtentUnit;
  store->record_budget = RecordBudget(reserve);
  TERRACE_ASSIGN_OR_RETURN(store->manifest, Manifest::Open(directory.manifest_path(), reserve));
  SegmentFiles& segments =
      store->segments.emplace(directory.fd(), directory.path(), segment_bytes, store->data_bytes);
  TERRACE_RETURN_IF_ERROR(segments.OpenExisting());
  const auto grow = [&] {
    for (uint32_t i = 0; i < segments.count(); ++i) store->allocator.GrowSegment(i, segments.size_bytes(i));
  };
  grow();
  std::vector<std::string> broken;
  TERRACE_RETURN_IF_ERROR(LoadRecords(*store, &broken));
  TERRACE_RETURN_IF_ERROR(DropRecords(*store, broken));
  TERRACE_RETURN_IF_ERROR(segments.FitToBudget());
  grow();
  TERRACE_ASSIGN_OR_RETURN(store->next_generation, store->manifest->ReserveGenerations(kGenerationsPerStart));
  for (const auto& [id, placement] : store->index) {
    store->next_generation = std::max(store->next_generation, placement->generation + 1);
  }
  if (segments.buffered())
    store->warnings.push_back("the file system has no O_DIRECT: I/O goes through the page cache");
  return store;
}

}  // namespace terrace
