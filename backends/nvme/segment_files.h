// SegmentFiles: the files seg-000000, seg-000001, ... that hold tier pages and frames. Made one at a time
// when the space is wanted, at their full length (fallocate, so that a full file system is seen here and not
// in the middle of a write). All have segment_bytes but for the last, which is what is left of the budget.
//
// The owner's thread only; the descriptors stay open until the end, so that another thread may sync them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/nvme/file_descriptor.h"
#include "terrace/status.h"

namespace terrace {

class SegmentFiles {
 public:
  // Segments of together at most `budget_bytes` (a multiple of 4,096) in the directory `directory_fd`.
  SegmentFiles(int directory_fd, std::string directory_path, uint64_t segment_bytes, uint64_t budget_bytes);

  // Opens what is there and within the budget, at the length that it has. Changes nothing on disk.
  Status OpenExisting();
  // Brings what is there to its wanted length: longer files are cut, files beyond the budget are removed,
  // shorter ones are extended where the file system has the room. Only after no record refers to what goes.
  Status FitToBudget();

  // Makes the first segment that is missing and gives its number. kResourceExhausted at the budget or where
  // the file system is full; nothing is left behind then.
  Result<uint32_t> CreateNext();
  // What CreateNext can still add.
  uint64_t uncreated_bytes() const;

  uint32_t count() const {
    return static_cast<uint32_t>(segments_.size());
  }  // within the budget, made or not
  uint64_t size_bytes(uint32_t index) const { return segments_[index].size_bytes; }  // 0: not made
  int fd(uint32_t index) const { return segments_[index].file.get(); }
  // The file system refused O_DIRECT for one of them at least.
  bool buffered() const { return buffered_; }

  void MarkDirty(uint32_t index) { segments_[index].dirty = true; }
  // The segments marked since the last call.
  std::vector<uint32_t> TakeDirty();

 private:
  struct Segment {
    FileDescriptor file;
    uint64_t size_bytes = 0;
    bool dirty = false;
  };

  uint64_t WantedBytes(uint32_t index) const;
  std::string NameOf(uint32_t index) const;
  // O_DIRECT where the file system has it. `error` is errno on failure.
  FileDescriptor OpenFile(const std::string& name, int* error);
  Status RemoveBeyondBudget();

  int directory_fd_;
  std::string directory_path_;
  uint64_t segment_bytes_;
  uint64_t budget_bytes_;
  std::vector<Segment> segments_;
  bool buffered_ = false;
};

}  // namespace terrace
