#include "backends/nvme/segment_files.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr uint64_t kUnit = 4096;

// The number in "seg-000012"; nullopt for other names.
std::optional<uint64_t> NumberOf(const std::string& name) {
  unsigned long long number = 0;
  int used = 0;
  if (std::sscanf(name.c_str(), "seg-%6llu%n", &number, &used) != 1 || name.size() != 10 || used != 10) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

SegmentFiles::SegmentFiles(Disk* disk, uint64_t segment_bytes, uint64_t budget_bytes, uint64_t min_free_bytes)
    : disk_(disk),
      segment_bytes_(segment_bytes),
      budget_bytes_(budget_bytes / kUnit * kUnit),
      min_free_bytes_(min_free_bytes) {
  segments_.resize((budget_bytes_ + segment_bytes_ - 1) / segment_bytes_);
}

uint64_t SegmentFiles::WantedBytes(uint32_t index) const {
  return std::min(segment_bytes_, budget_bytes_ - uint64_t{index} * segment_bytes_);
}

std::string SegmentFiles::NameOf(uint32_t index) {
  std::array<char, 24> name{};
  std::snprintf(name.data(), name.size(), "seg-%06u", index);
  return name.data();
}

Status SegmentFiles::OpenExisting() {
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    Result<std::unique_ptr<DiskFile>> file = disk_->OpenFile(NameOf(index), FileOpen::kExisting, true);
    if (file.status().code() == StatusCode::kNotFound) continue;
    if (!file.ok()) return file.status();
    TERRACE_ASSIGN_OR_RETURN(const uint64_t present, (*file)->Size());
    TERRACE_ASSIGN_OR_RETURN(const uint64_t written, (*file)->WrittenBytes());
    Segment& segment = segments_[index];
    segment.file = std::move(*file);
    segment.size_bytes = std::min(present / kUnit * kUnit, WantedBytes(index));
    segment.written_bytes = std::min(written, segment.size_bytes);
    segment.dirty = true;  // what a process before this one wrote is not known to be synced
  }
  return OkStatus();
}

Status SegmentFiles::FitToBudget() {
  TERRACE_RETURN_IF_ERROR(RemoveBeyondBudget());
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    Segment& segment = segments_[index];
    if (!segment.file) continue;
    TERRACE_ASSIGN_OR_RETURN(const uint64_t present, segment.file->Size());
    const uint64_t wanted = WantedBytes(index);
    if (present > wanted) {
      TERRACE_RETURN_IF_ERROR(segment.file->Truncate(wanted));
    } else if (present < wanted) {
      // Where there is no room it serves at the length that it has.
      if (!CheckFree(wanted - present).ok() || !segment.file->Allocate(wanted).ok()) continue;
    }
    segment.size_bytes = wanted;
    segment.written_bytes = std::min(segment.written_bytes, wanted);
  }
  return OkStatus();
}

Status SegmentFiles::RemoveBeyondBudget() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List());
  for (const std::string& name : names) {
    const std::optional<uint64_t> number = NumberOf(name);
    if (number && *number >= segments_.size()) TERRACE_RETURN_IF_ERROR(disk_->Remove(name));
  }
  return OkStatus();
}

Status SegmentFiles::CheckFree(uint64_t bytes) const {
  TERRACE_ASSIGN_OR_RETURN(const uint64_t left, disk_->FreeBytes());
  if (left >= bytes && left - bytes >= min_free_bytes_) return OkStatus();
  return ResourceExhaustedError("no segment of " + std::to_string(bytes) + " bytes in " + disk_->path() +
                                ": the file system has " + std::to_string(left) + " free, and keeps " +
                                std::to_string(min_free_bytes_));
}

std::optional<uint32_t> SegmentFiles::NextMissing() const {
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    if (!segments_[index].file) return index;
  }
  return std::nullopt;
}

Result<MadeSegment> SegmentFiles::Make(uint32_t index) const {
  TERRACE_RETURN_IF_ERROR(CheckFree(WantedBytes(index)));
  const std::string name = NameOf(index);
  MadeSegment made{.index = index};
  TERRACE_ASSIGN_OR_RETURN(made.file, disk_->OpenFile(name, FileOpen::kNew, true));
  Status status = made.file->Allocate(WantedBytes(index));
  // The length as well: no later sync of data brings it back where this one fails.
  if (status.ok()) status = made.file->Sync();
  if (status.ok()) status = disk_->SyncNames();
  if (status.ok()) return made;
  disk_->Remove(name).IgnoreError();  // the first error is the one to tell
  return status;
}

void SegmentFiles::Adopt(MadeSegment made) {
  Segment& segment = segments_[made.index];
  TERRACE_CHECK(!segment.file) << "segment " << made.index << " was made twice";
  segment.file = std::move(made.file);
  segment.size_bytes = WantedBytes(made.index);
}

Result<uint32_t> SegmentFiles::CreateNext() {
  const std::optional<uint32_t> index = NextMissing();
  if (!index) return ResourceExhaustedError("all segments are in use");
  TERRACE_ASSIGN_OR_RETURN(MadeSegment made, Make(*index));
  Adopt(std::move(made));
  return *index;
}

uint32_t SegmentFiles::num_made() const {
  return static_cast<uint32_t>(std::count_if(segments_.begin(), segments_.end(),
                                             [](const Segment& segment) { return segment.file != nullptr; }));
}

uint64_t SegmentFiles::uncreated_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    if (!segments_[index].file) bytes += WantedBytes(index);
  }
  return bytes;
}

std::vector<uint32_t> SegmentFiles::TakeDirty() {
  std::vector<uint32_t> dirty;
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    if (std::exchange(segments_[index].dirty, false)) dirty.push_back(index);
  }
  return dirty;
}

}  // namespace terrace
