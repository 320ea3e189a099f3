// Verifier: one run of VerifyDisk. It reads superblock, records and frames with the decoders of lib/wire and
// believes nothing that the tier computes from them: no index, no allocator, no counters.
//
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/nvme/disk.h"
#include "backends/nvme/erased_log.h"
#include "backends/nvme/frame_checker.h"
#include "backends/nvme/key_ring.h"
#include "backends/nvme/manifest_reader.h"
#include "backends/nvme/place_map.h"
#include "backends/nvme/read_window.h"
#include "backends/nvme/record_cipher.h"
#include "backends/nvme/sealed_feed.h"
#include "backends/nvme/superblock.h"
#include "terrace/nvme_verify.h"

namespace terrace {

class Verifier {
 public:
  using Progress = std::function<void(const NvmeVerifyProgress&)>;
  Verifier(Disk& disk, const NvmeVerifyOptions& options, const Progress& progress);

  Result<NvmeVerifyReport> Run();

 private:
  struct Segment {
    std::unique_ptr<DiskFile> file;
    uint64_t size_bytes = 0;
  };
  // Of an object whose place record is right so far. Its extents are extents_[first, first + n).
  struct Object {
    ObjectId id;
    uint64_t generation = 0;
    size_t first_extent = 0;
    uint32_t num_extents = 0;
    bool is_wrong = false;
  };
  // A part of an object's run that is read in one go.
  struct Part {
    size_t object = 0;
    uint64_t run_offset = 0;
    uint64_t length = 0;
  };

  Status OpenTier();
  // Of this tier, which the keys open.
  Result<Superblock> ReadSuperblock();
  Status ListFiles();
  void AddSegment(const std::string& name, uint32_t number);
  Status ReadRecords();
  // kDataLoss: no record of it is to be believed.
  Status OpenManifest();
  // Whether it has an identity. kDataLoss: it is not this directory's manifest as it is now.
  Result<bool> CheckIdentity();
  Status ReadQuarantine();
  void ReadErased(bool is_required);
  void TakeRecords(std::string_view key, const std::string_view* place, const std::string_view* content);
  // What is wrong with the content that belongs to this place; nullopt for nothing.
  std::optional<FrameFault> ContentFault(const ObjectId& id, const ObjectRecord& record,
                                         const std::string_view* content) const;
  Status RightRoot(std::string_view key, std::string_view value) const;
  // A value of contents or roots, from how it lies in the manifest.
  Result<std::string> FromStored(std::string_view key, std::string_view stored) const;
  void CheckPlaces();
  void CheckCapacity();

  Status ReadObjects();
  // The next part to be read; nullopt behind the last object.
  std::optional<Part> NextPart();
  std::vector<ReadWindow::Span> SpansOf(const Part& part) const;
  void CheckPart(const Part& part, const ReadWindow::Done& done);
  void EndObject(size_t number);

  Status Repair();

  std::span<const Extent> ExtentsOf(const Object& object) const {
    return std::span(extents_).subspan(object.first_extent, object.num_extents);
  }
  uint64_t RunBytes(const Object& object) const;
  static std::string NameOf(const ObjectId& id);
  // Counts and lists it.
  void Find(NvmeFindingKind kind, std::string name, std::string reason, uint64_t bytes);
  // An object that is to be dropped.
  void FindWrong(Object& object, NvmeFindingKind kind, std::string reason);
  // The object that was checked last: it stays, without its content.
  void FindWrongContent(const Object& object, FrameFault fault);
  void ReportProgress();

  Disk& disk_;
  const NvmeVerifyOptions& options_;
  const Progress& progress_;
  NvmeVerifyReport report_;
  NvmeVerifyProgress position_;

  std::unique_ptr<DiskLock> lock_;
  Superblock superblock_;
  const KeyRing keys_;
  std::unique_ptr<RecordCipher> cipher_;  // of an encrypted directory
  std::vector<Segment> segments_;         // by number
  std::unique_ptr<ManifestReader> manifest_;
  std::unique_ptr<const ErasedLog> erased_;  // null where it cannot be read
  std::vector<Object> objects_;
  std::vector<Extent> extents_;
  // By number of the object. Told once its frame is known to be right.
  std::unordered_map<size_t, FrameFault> content_faults_;
  std::optional<PlaceMap> places_;
  std::optional<PlaceMap> quarantine_;
  RecordDrops drops_;  // what `repair` deletes

  // Reading: objects in the order of their places, those that are wrong already left out.
  std::vector<size_t> order_;
  size_t next_in_order_ = 0;
  uint64_t next_offset_ = 0;  // in the run of that object
  std::optional<FrameChecker> checker_;
  std::optional<SealedFeed> sealed_;  // of an encrypted directory, in front of the checker
  Status read_status_;                // of the object that is being checked
};

}  // namespace terrace
