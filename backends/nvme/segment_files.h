// SegmentFiles: the files seg-000000, seg-000001, ... that hold tier pages and frames. Made one at a time
// when the space is wanted, at their full length (allocated, so that a full file system is seen here and not
// in the middle of a write). All have segment_bytes but for the last, which is what is left of the budget.
//
// The owner's thread only, but for what says otherwise; the files stay open until the end, so that another
// thread may sync them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/disk.h"
#include "terrace/status.h"

namespace terrace {

// A segment on disk that SegmentFiles does not have yet.
struct MadeSegment {
  uint32_t index = 0;
  std::unique_ptr<DiskFile> file;
};

class SegmentFiles {
 public:
  // Segments of together at most `budget_bytes` (a multiple of 4,096) in the directory of `disk`, which
  // outlives them. None is made or extended that would leave the file system less than `min_free_bytes`.
  SegmentFiles(Disk* disk, uint64_t segment_bytes, uint64_t budget_bytes, uint64_t min_free_bytes);

  // Opens what is there and within the budget, at the length that it has. Changes nothing on disk.
  Status OpenExisting();
  // Brings what is there to its wanted length: longer files are cut, files beyond the budget are removed,
  // shorter ones are extended where the file system has the room. Only after no record refers to what goes.
  Status FitToBudget();

  // Makes the first segment that is missing and gives its number. kResourceExhausted at the budget or where
  // the file system is full; nothing is left behind then.
  Result<uint32_t> CreateNext();
  // The same in three steps, for a file system that takes long to allocate: the number (nullopt: at the
  // budget); the file, on any thread, while the owner goes on; and the owner's taking it. Until then nothing
  // else makes that segment.
  std::optional<uint32_t> NextMissing() const;
  Result<MadeSegment> Make(uint32_t index) const;
  void Adopt(MadeSegment made);
  // What CreateNext can still add.
  uint64_t uncreated_bytes() const;

  // Within the budget, made or not.
  uint32_t count() const { return static_cast<uint32_t>(segments_.size()); }
  uint32_t num_made() const;
  uint64_t size_bytes(uint32_t index) const { return segments_[index].size_bytes; }  // 0: not made
  // What was written in front of the first byte that never was, as the file system knew it when the segment
  // was opened; 0 for one that was made since.
  uint64_t written_bytes(uint32_t index) const { return segments_[index].written_bytes; }
  DiskFile* file(uint32_t index) const { return segments_[index].file.get(); }

  void MarkDirty(uint32_t index) { segments_[index].dirty = true; }
  // The segments marked since the last call.
  std::vector<uint32_t> TakeDirty();

 private:
  struct Segment {
    std::unique_ptr<DiskFile> file;
    uint64_t size_bytes = 0;
    uint64_t written_bytes = 0;
    bool dirty = false;
  };

  uint64_t WantedBytes(uint32_t index) const;
  static std::string NameOf(uint32_t index);
  Status RemoveBeyondBudget();
  // kResourceExhausted where `bytes` more would leave the file system less than it is to keep.
  Status CheckFree(uint64_t bytes) const;

  Disk* const disk_;
  const uint64_t segment_bytes_;
  const uint64_t budget_bytes_;
  const uint64_t min_free_bytes_;
  std::vector<Segment> segments_;
};

}  // namespace terrace
