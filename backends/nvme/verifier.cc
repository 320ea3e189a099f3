// The directory, the judgement of places, and the repair; verifier_records.cc reads the records,
// verifier_read.cc the objects.
#include "backends/nvme/verifier.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "backends/nvme/tier_directory.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr std::array<std::string_view, 5> kOwnNames = {kSuperblockFileName, kSuperblockTemporaryName,
                                                       kLockFileName, kManifestDirectoryName, kErasedLogName};

// The number in "seg-000012"; nullopt for other names.
std::optional<uint32_t> SegmentNumber(const std::string& name) {
  unsigned number = 0;
  int used = 0;
  const bool matches = name.size() == 10 && std::sscanf(name.c_str(), "seg-%6u%n", &number, &used) == 1;
  return matches && used == 10 ? std::optional<uint32_t>(number) : std::nullopt;
}

}  // namespace

std::string Verifier::NameOf(const ObjectId& id) {
  return id.key.ToHex() + "/" + std::to_string(id.part.group) + "/" + std::to_string(id.part.shard);
}

Verifier::Verifier(Disk& disk, const NvmeVerifyOptions& options, const Progress& progress)
    : disk_(disk), options_(options), progress_(progress), keys_(options.keys) {}

Result<NvmeVerifyReport> Verifier::Run() {
  TERRACE_RETURN_IF_ERROR(OpenTier());
  TERRACE_RETURN_IF_ERROR(ListFiles());
  TERRACE_RETURN_IF_ERROR(ReadRecords());
  CheckPlaces();
  CheckCapacity();
  TERRACE_RETURN_IF_ERROR(ReadObjects());
  if (options_.repair) TERRACE_RETURN_IF_ERROR(Repair());
  report_.segment_bytes = places_->total_bytes();
  report_.live_bytes = places_->claimed_bytes();
  report_.quarantined_bytes = quarantine_->claimed_bytes();
  report_.free_bytes = report_.segment_bytes - report_.live_bytes - report_.quarantined_bytes;
  return std::move(report_);
}

Status Verifier::OpenTier() {
  TERRACE_RETURN_IF_ERROR(disk_.OpenDirectory());
  // Before the lock file is made: what is not a tier stays untouched.
  TERRACE_RETURN_IF_ERROR(ReadSuperblock().status());
  TERRACE_ASSIGN_OR_RETURN(lock_, disk_.Lock());
  // Again under the lock: a Clear of the former holder replaces it.
  TERRACE_ASSIGN_OR_RETURN(superblock_, ReadSuperblock());
  if (!keys_.empty()) cipher_ = std::make_unique<RecordCipher>(keys_, superblock_.directory);
  return OkStatus();
}

Result<Superblock> Verifier::ReadSuperblock() {
  Result<std::unique_ptr<DiskFile>> file = disk_.OpenFile(kSuperblockFileName, FileOpen::kExisting, false);
  if (file.status().code() == StatusCode::kNotFound) {
    return NotFoundError("directory " + disk_.path() + " has no superblock: it is not a Terrace directory");
  }
  if (!file.ok()) return file.status();
  std::array<std::byte, kSuperblockBytes + 1> raw{};  // one more, so that a longer file is seen
  TERRACE_ASSIGN_OR_RETURN(const uint64_t got, (*file)->ReadAt(0, raw));
  Result<Superblock> superblock = DecodeSuperblock({reinterpret_cast<const char*>(raw.data()), got});
  Status right = superblock.status();
  if (right.ok()) right = keys_.Match(superblock->directory, superblock->keys).status();
  if (!right.ok()) return right.WithContext("directory " + disk_.path());
  return superblock;
}

Status Verifier::ListFiles() {
  TERRACE_ASSIGN_OR_RETURN(std::vector<std::string> names, disk_.List());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (const std::optional<uint32_t> number = SegmentNumber(name)) {
      AddSegment(name, *number);
    } else if (std::find(kOwnNames.begin(), kOwnNames.end(), name) == kOwnNames.end()) {
      Find(NvmeFindingKind::kForeignFile, name, "not a name of the tier", 0);
    }
  }
  return OkStatus();
}

void Verifier::AddSegment(const std::string& name, uint32_t number) {
  Result<std::unique_ptr<DiskFile>> file = disk_.OpenFile(name, FileOpen::kExisting, true);
  const Result<uint64_t> size = file.ok() ? (*file)->Size() : Result<uint64_t>(file.status());
  if (!size.ok()) return Find(NvmeFindingKind::kForeignFile, name, std::string(size.status().message()), 0);
  if (number >= segments_.size()) segments_.resize(number + 1);
  segments_[number] = {std::move(*file), std::min(*size, superblock_.segment_bytes)};
  ++report_.segments;
}

void Verifier::CheckPlaces() {
  // Of two that claim the same bytes the later write is the right one.
  std::vector<size_t> latest_first(objects_.size());
  for (size_t i = 0; i < latest_first.size(); ++i) latest_first[i] = i;
  std::sort(latest_first.begin(), latest_first.end(),
            [this](size_t a, size_t b) { return objects_[a].generation > objects_[b].generation; });
  for (const size_t i : latest_first) {
    Object& object = objects_[i];
    const std::string outside = places_->OutOfBounds(ExtentsOf(object));
    if (!outside.empty()) {
      FindWrong(object, NvmeFindingKind::kPlaceBounds, outside);
    } else if (!quarantine_->IsFree(ExtentsOf(object))) {
      FindWrong(object, NvmeFindingKind::kQuarantine, "place: bytes of it are in quarantine");
    } else if (!places_->Claim(ExtentsOf(object))) {
      FindWrong(
          object, NvmeFindingKind::kPlaceOverlap,
          "place: claimed by a record of a higher generation than " + std::to_string(object.generation));
    }
  }
}

void Verifier::CheckCapacity() {
  report_.manifest_bytes = ManifestFileBytes(disk_);
  const uint64_t taken = places_->total_bytes() + report_.manifest_bytes;
  if (options_.capacity_bytes == 0 || taken <= options_.capacity_bytes) return;
  Find(NvmeFindingKind::kCapacity, disk_.path(),
       "segments and manifest take " + std::to_string(taken) + " bytes of " +
           std::to_string(options_.capacity_bytes),
       taken - options_.capacity_bytes);
}

uint64_t Verifier::RunBytes(const Object& object) const {
  uint64_t bytes = 0;
  for (const Extent& extent : ExtentsOf(object)) bytes += extent.length;
  return bytes;
}

Status Verifier::Repair() {
  manifest_.reset();
  if (drops_.size() == 0) return OkStatus();
  TERRACE_RETURN_IF_ERROR(DropRecords(disk_, drops_));
  report_.dropped_records = drops_.size();
  return OkStatus();
}

void Verifier::Find(NvmeFindingKind kind, std::string name, std::string reason, uint64_t bytes) {
  NvmeFindingCount& count = report_.counts[static_cast<size_t>(kind)];
  ++count.count;
  count.bytes += bytes;
  ++position_.findings;
  if (report_.findings.size() < options_.max_findings) {
    report_.findings.push_back({kind, std::move(name), std::move(reason), bytes});
  }
}

void Verifier::FindWrong(Object& object, NvmeFindingKind kind, std::string reason) {
  object.is_wrong = true;
  Find(kind, NameOf(object.id), std::move(reason), RunBytes(object));
  drops_.objects.push_back(EncodeRecordKey(object.id));
}

void Verifier::FindWrongContent(const Object& object, FrameFault fault) {
  Find(fault.kind, NameOf(object.id), std::move(fault.reason), RunBytes(object));
  ObjectRecord record = checker_->record();
  record.content_bytes = 0;
  drops_.contents.emplace_back(EncodeRecordKey(object.id), EncodePlace(record));
}

}  // namespace terrace
