#include "backends/nvme/opened_store.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <set>

#include "backends/nvme/opened_records.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr uint64_t kMaxSegmentBytes = uint64_t{64} << 30;

// A manifest whose log lost its end may still hold the record of what was erased.
bool IsErased(const OpenedStore& store, const LoadedRecord& loaded) {
  if (!store.erased) return false;
  const auto erased = store.erased->Floors().find(loaded.id);
  return erased != store.erased->Floors().end() && loaded.record.meta.generation < erased->second;
}

// In an encrypted directory every run is sealed, in another none.
bool HasItsKey(const KeyRing& keys, uint32_t key_id) {
  return keys.empty() ? key_id == 0 : keys.Find(key_id) != nullptr;
}

// In which order places are taken. Beside the numbers, so that a sort meets no other memory.
struct Turn {
  uint64_t rank;
  uint32_t number;  // of the placement

  static Turn ByPlace(const Placement& placement, uint32_t number) {
    const Extent first = placement.extents()[0];
    static_assert(kMaxSegmentBytes / kExtentUnit <= UINT32_MAX);
    return {uint64_t{first.segment} << 32 | first.offset / kExtentUnit, number};
  }
  static Turn LatestFirst(const Placement& placement, uint32_t number) {
    return {~placement.generation, number};
  }
};

// Takes the extents of each in turn; gives the numbers of those that could not have theirs.
std::vector<uint32_t> ReserveInTurn(ExtentAllocator& allocator, std::span<const PlacementRef> placements,
                                    Turn (*turn_of)(const Placement&, uint32_t)) {
  std::vector<Turn> turns;
  turns.reserve(placements.size());
  for (const PlacementRef& placement : placements) {
    turns.push_back(turn_of(*placement, static_cast<uint32_t>(turns.size())));
  }
  std::sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.rank < b.rank; });
  std::vector<uint32_t> refused;
  std::vector<Extent> extents;
  for (const Turn& turn : turns) {
    const Placement& placement = *placements[turn.number];
    extents.assign(placement.extents().begin(), placement.extents().end());
    if (!allocator.Reserve(extents)) refused.push_back(turn.number);
  }
  return refused;
}

// Drops those whose place is not theirs, and appends their keys to `broken`. Of two that claim the same bytes
// the later write is the right one.
void ReservePlaces(ExtentAllocator& allocator, std::vector<PlacementRef>& placements,
                   std::vector<std::string>* broken) {
  // In the order of the places the free space is met from its beginning on, which is quick. Where each finds
  // its place free, none overlaps another.
  std::vector<uint32_t> refused = ReserveInTurn(allocator, placements, Turn::ByPlace);
  if (refused.empty()) return;
  std::vector<bool> has_place(placements.size(), true);
  for (const uint32_t number : refused) has_place[number] = false;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!has_place[i]) continue;
    for (const Extent& extent : placements[i]->extents()) allocator.Free({&extent, 1});
  }
  refused = ReserveInTurn(allocator, placements, Turn::LatestFirst);
  for (const uint32_t number : refused) {
    broken->push_back(EncodeRecordKey(placements[number]->id));
    placements[number] = {};
  }
  std::erase_if(placements, [](const PlacementRef& placement) { return !placement; });
}

// The keys of records that are not taken.
struct WrongRecords {
  std::vector<std::string> broken;
  std::vector<std::string> erased;  // a crash came between the log of erased ids and the manifest
};

// Takes the records that are right into index and allocator.
Status LoadRecords(OpenedStore& store, WrongRecords* wrong) {
  std::vector<PlacementRef> placements;
  const auto take = [&](std::span<LoadedRecord> records) {
    for (const LoadedRecord& loaded : records) {
      const ObjectRecord& record = loaded.record;
      const Placement::Facts facts = {loaded.id, record.meta.generation, record.header_bytes,
                                      loaded.record_bytes, !store.keys.empty()};
      if (!Placement::Fits(facts, record.extents) || !HasItsKey(store.keys, record.key_id)) {
        wrong->broken.push_back(EncodeRecordKey(loaded.id));
      } else if (IsErased(store, loaded)) {
        wrong->erased.push_back(EncodeRecordKey(loaded.id));
      } else {
        placements.push_back(Placement::Make(facts, record.extents));
      }
    }
  };
  TERRACE_RETURN_IF_ERROR(store.manifest->LoadPlaces(take, &wrong->broken));
  ReservePlaces(store.allocator, placements, &wrong->broken);
  store.index.reserve(placements.size());
  for (PlacementRef& placement : placements) {
    store.record_bytes += placement->record_bytes;
    store.index.insert(std::move(placement));
  }
  return OkStatus();
}

Status DropRecords(OpenedStore& store, const WrongRecords& wrong) {
  std::vector<RecordChange> changes;
  for (const std::string& key : wrong.broken) changes.push_back({.key = key, .is_delete = true});
  for (const std::string& key : wrong.erased) changes.push_back({.key = key, .is_delete = true});
  if (changes.empty()) return OkStatus();
  store.dropped_records = wrong.broken.size();
  if (!wrong.broken.empty()) {
    store.warnings.push_back("dropped " + std::to_string(wrong.broken.size()) +
                             " records: broken, overlapping, or beyond the end of a segment");
  }
  // Durable before a file is changed: a record must not find bytes at its place again that are not its own.
  return store.manifest->Apply(changes, RecordWrite::kSynced);
}

// Different paths to one directory are told at its lock.
Status CheckDirectories(const NvmeOptions& options) {
  const auto trimmed = [](std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  };
  std::set<std::string> seen = {trimmed(options.directory)};
  for (const std::string& more : options.more_directories) {
    if (more.empty()) return InvalidArgumentError("more_directories has an empty path, allowed: paths");
    if (!seen.insert(trimmed(more)).second) {
      return InvalidArgumentError("more_directories = " + more + ", allowed: each directory once");
    }
  }
  return OkStatus();
}

}  // namespace

Status NvmeOptions::Validate() const {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto wrong = [](const char* field, uint64_t value, const char* allowed) {
    return InvalidArgumentError(std::string(field) + " = " + std::to_string(value) + ", allowed: " + allowed);
  };
  if (directory.empty()) return InvalidArgumentError("directory is empty, allowed: a path");
  if (segment_bytes % kMiB != 0 || segment_bytes < 16 * kMiB || segment_bytes > kMaxSegmentBytes) {
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
  if (durability > Durability::kSync) {
    return wrong("durability", static_cast<uint64_t>(durability), "kNone, kFlush, kSync");
  }
  if (io_engine > IoEngineKind::kThreads) {
    return wrong("io_engine", static_cast<uint64_t>(io_engine), "kAuto, kIoUring, kThreads");
  }
  TERRACE_RETURN_IF_ERROR(CheckDirectories(*this));
  return ValidateKeys(keys);
}

Status LoadIndex(OpenedStore& store) {
  WrongRecords wrong;
  TERRACE_RETURN_IF_ERROR(LoadRecords(store, &wrong));
  TERRACE_RETURN_IF_ERROR(DropRecords(store, wrong));
  // Read for its checksums only: a manifest is whole, or it is made again.
  return store.manifest->ScanRoots().status();
}

void GrowAllocator(OpenedStore& store) {
  for (uint32_t i = 0; i < store.segments->count(); ++i) {
    store.allocator.GrowSegment(i, store.segments->size_bytes(i));
  }
}

Result<std::unique_ptr<OpenedStore>> OpenStore(const NvmeOptions& options, std::unique_ptr<Disk> disk) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  auto store = std::make_unique<OpenedStore>();
  store->options = options;
  store->disk = std::move(disk);
  store->keys = KeyRing(options.keys);
  for (EncryptionKey& key : store->options.keys) OPENSSL_cleanse(key.bytes.data(), key.bytes.size());
  store->options.keys.clear();
  TERRACE_ASSIGN_OR_RETURN(store->directory,
                           TierDirectory::Open(*store->disk, options.segment_bytes, store->keys));
  TierDirectory& directory = *store->directory;
  if (!store->keys.empty()) {
    store->cipher = std::make_unique<RecordCipher>(store->keys, directory.superblock().directory);
  }
  {
    // There may be no segment yet; what holds for one file of the directory holds for all.
    TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> any,
                             store->disk->OpenFile(kSuperblockFileName, FileOpen::kExisting, true));
    store->is_direct = any->is_direct();
  }
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
  SegmentFiles& segments =
      store->segments.emplace(store->disk.get(), segment_bytes, store->data_bytes, options.min_free_bytes);
  TERRACE_RETURN_IF_ERROR(segments.OpenExisting());
  TERRACE_RETURN_IF_ERROR(OpenRecords(*store));
  TERRACE_RETURN_IF_ERROR(segments.FitToBudget());
  GrowAllocator(*store);
  return store;
}

}  // namespace terrace
