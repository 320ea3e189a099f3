// FrameChecker: judges one object's run - tier page, frame header, payload - while its bytes go by, against
// what the manifest says of it. Nothing is kept of the payload.
//
// Of a sealed run it sees tier page and plain frame (sealed_feed.h).
//
// One thread at a time.
#pragma once

#include <optional>
#include <string>

#include "backends/nvme/superblock.h"
#include "lib/wire/frame.h"
#include "lib/wire/object_record.h"
#include "terrace/nvme_verify.h"

namespace terrace {

struct FrameFault {
  NvmeFindingKind kind = NvmeFindingKind::kTierPage;
  std::string reason;
};

class FrameChecker {
 public:
  explicit FrameChecker(const Superblock& superblock);
  ~FrameChecker();
  FrameChecker(const FrameChecker&) = delete;
  FrameChecker& operator=(const FrameChecker&) = delete;

  // The next object. Its record's lengths are plausible: header_bytes <= kMaxHeaderBytes, and no more than
  // the frame.
  void Begin(const ObjectId& id, ObjectRecord record);
  // The run's bytes without a tag area, in order. The first call has tier page and header area at least.
  void Feed(Bytes bytes);
  // After the last byte: what is wrong, or nullopt.
  std::optional<FrameFault> Finish();

  // What the page says of itself, where that is what the record says; nullopt, and a fault, where it is not.
  // Its code is looked at by Feed, which has the header area.
  std::optional<TierPage> CheckPage(Bytes page);
  void Fail(NvmeFindingKind kind, std::string reason);
  bool is_wrong() const { return fault_.has_value(); }
  const ObjectRecord& record() const { return record_; }

 private:
  void CheckCode(Bytes page, Bytes header_area);
  void CheckHeader(Bytes header_area);
  // The record and the header name the same object in the same way.
  std::string Difference() const;
  void FeedPayload(Bytes bytes);
  void EndPiece();

  struct PieceHash;

  const Superblock& superblock_;
  ObjectId id_;
  ObjectRecord record_;
  FrameHeader header_;
  bool has_header_ = false;
  std::unique_ptr<PieceHash> hash_;
  size_t piece_ = 0;
  uint64_t piece_done_ = 0;
  std::optional<FrameFault> fault_;
};

}  // namespace terrace
