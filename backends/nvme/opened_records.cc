#include "backends/nvme/opened_records.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/rebuild.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// More than are given out between two starts.
constexpr uint64_t kGenerationsPerStart = uint64_t{1} << 40;

// 64 bytes each: a part of the manifest's reserve.
size_t MaxErasedEntries(uint64_t reserve) {
  return std::clamp<uint64_t>(reserve / 64 / kErasedEntryBytes, 64, 65536);
}

Status OpenManifest(OpenedStore& store) {
  TERRACE_ASSIGN_OR_RETURN(store.manifest, Manifest::Open(store.directory->manifest_path(),
                                                          ManifestReserve(store.options.capacity_bytes),
                                                          store.disk->RocksFileSystem(), store.cipher.get()));
  return OkStatus();
}

// Manifest, index and accounting as they are. kDataLoss: what is there is damaged, not complete, or not this
// directory's.
Status OpenAsItIs(OpenedStore& store) {
  TERRACE_RETURN_IF_ERROR(OpenManifest(store));
  TERRACE_ASSIGN_OR_RETURN(const std::optional<ManifestIdentity> found, store.manifest->Identity());
  const ManifestIdentity expected = IdentityOf(store.directory->superblock());
  if (!found) {
    TERRACE_ASSIGN_OR_RETURN(const bool is_complete, store.manifest->HasGenerations());
    if (!is_complete) return DataLossError("manifest: it was not finished");
  } else if (found->directory != expected.directory) {
    return DataLossError("manifest: of another directory");
  } else if (found->secret_tag != expected.secret_tag || found->floor < expected.floor) {
    return DataLossError("manifest: older than the superblock");
  }
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Extent> quarantine, store.manifest->LoadQuarantine());
  store.allocator.AddQuarantine(quarantine);
  GrowAllocator(store);
  return LoadIndex(store);
}

// A new manifest from the segments, after `lost` says why.
Status OpenRebuilt(OpenedStore& store, const Status& lost) {
  if (store.manifest) store.manifest->Close().IgnoreError();  // it is thrown away
  store.manifest.reset();
  store.index.clear();
  store.allocator = ExtentAllocator();
  store.record_bytes = 0;
  store.dropped_records = 0;
  GrowAllocator(store);
  TERRACE_RETURN_IF_ERROR(store.disk->RemoveDirectory(kManifestDirectoryName));
  TERRACE_RETURN_IF_ERROR(store.disk->MakeDirectory(kManifestDirectoryName));
  TERRACE_RETURN_IF_ERROR(store.disk->SyncNames());
  TERRACE_RETURN_IF_ERROR(OpenManifest(store));
  const RebuildSource source{.segments = *store.segments,
                             .superblock = store.directory->superblock(),
                             .erased = store.erased.get(),
                             .keys = &store.keys,
                             .record_budget = store.record_budget};
  TERRACE_ASSIGN_OR_RETURN(const RebuildReport report, RebuildManifest(source, *store.manifest));
  store.next_generation = report.next_generation;
  store.rebuilt_objects = report.objects;
  store.unadopted_objects = report.dropped;
  store.warnings.push_back(
      std::string(lost.message()) + ": rebuilt from the segments, " + std::to_string(report.objects) +
      " objects found, " + std::to_string(report.dropped) + " left out, " +
      std::to_string(report.unreadable_bytes) + " bytes could not be read; the roots table is empty");
  return LoadIndex(store);
}

// Gives the session its generations, which is also what makes a new manifest complete.
Status BeginSession(OpenedStore& store, bool erased_log_was_lost) {
  const size_t max_entries = MaxErasedEntries(ManifestReserve(store.options.capacity_bytes));
  // Before there is an identity: from then on a directory without a log has lost it.
  if (!store.erased && !erased_log_was_lost) {
    TERRACE_ASSIGN_OR_RETURN(store.erased, ErasedLog::Open(*store.disk, max_entries));
  }
  const Superblock& superblock = store.directory->superblock();
  uint64_t at_least = std::max(store.next_generation, superblock.rebuild_floor);
  if (store.erased) at_least = std::max(at_least, store.erased->highest_floor());
  for (const PlacementRef& placement : store.index) at_least = std::max(at_least, placement->generation + 1);
  TERRACE_ASSIGN_OR_RETURN(
      store.next_generation,
      store.manifest->ReserveGenerations(kGenerationsPerStart, at_least, IdentityOf(superblock)));
  if (!erased_log_was_lost) return OkStatus();
  TERRACE_RETURN_IF_ERROR(RaiseRebuildFloor(store, store.next_generation));
  TERRACE_ASSIGN_OR_RETURN(store.erased, ErasedLog::Open(*store.disk, max_entries));
  return OkStatus();
}

}  // namespace

Status OpenRecords(OpenedStore& store) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.disk->List());
  const bool has_log = std::find(names.begin(), names.end(), kErasedLogName) != names.end();
  if (has_log) {
    TERRACE_ASSIGN_OR_RETURN(
        store.erased,
        ErasedLog::Open(*store.disk, MaxErasedEntries(ManifestReserve(store.options.capacity_bytes))));
    if (const size_t broken = store.erased->num_broken(); broken > 0) {
      store.warnings.push_back(std::to_string(broken) + " broken entries in the log of erased objects");
    }
  }
  bool erased_log_was_lost = false;
  TERRACE_ASSIGN_OR_RETURN(const bool has_manifest, Manifest::Exists(store.directory->manifest_path(),
                                                                     *store.disk->RocksFileSystem()));
  if (!has_manifest && (store.directory->is_new() || store.segments->num_made() == 0)) {
    TERRACE_RETURN_IF_ERROR(OpenManifest(store));
    GrowAllocator(store);
  } else {
    Status opened = has_manifest ? OpenAsItIs(store) : DataLossError("manifest: it is not there");
    const bool is_lost = opened.code() == StatusCode::kDataLoss;
    if (is_lost) opened = OpenRebuilt(store, opened);
    TERRACE_RETURN_IF_ERROR(opened);
    // A whole manifest without identity is older than there were logs.
    TERRACE_ASSIGN_OR_RETURN(const std::optional<ManifestIdentity> identity, store.manifest->Identity());
    erased_log_was_lost = !has_log && (is_lost || identity.has_value());
  }
  return BeginSession(store, erased_log_was_lost);
}

ManifestIdentity IdentityOf(const Superblock& superblock) {
  ManifestIdentity identity;
  identity.directory = superblock.directory;
  const Digest digest =
      Sha256({reinterpret_cast<const char*>(superblock.secret.data()), superblock.secret.size()});
  std::copy_n(digest.bytes.begin(), identity.secret_tag.size(), identity.secret_tag.begin());
  identity.floor = superblock.rebuild_floor;
  return identity;
}

Status RaiseRebuildFloor(OpenedStore& store, uint64_t floor) {
  Superblock superblock = store.directory->superblock();
  superblock.rebuild_floor = std::max(superblock.rebuild_floor, floor);
  // The manifest first: one with a lower floor than the superblock's counts as outdated.
  TERRACE_RETURN_IF_ERROR(store.manifest->SetIdentity(IdentityOf(superblock)));
  return store.directory->ReplaceSuperblock(superblock);
}

}  // namespace terrace
