#include "backends/nvme/rebuild.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "backends/nvme/extent_allocator.h"
#include "backends/nvme/record_cipher.h"
#include "backends/nvme/sealed_run.h"
#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/wire/frame.h"
#include "lib/wire/object_record.h"
#include "lib/wire/sealed_layout.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;
constexpr size_t kRecordsPerWrite = 1024;

struct Candidate {
  ObjectId id;
  uint64_t generation = 0;
  std::vector<Extent> extents;
  RecordChange record;
};

size_t StoredContentBytes(const Candidate& candidate, bool is_sealed) {
  return candidate.record.content.size() + (is_sealed ? RecordCipher::kExtraBytes : 0);
}

class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kFrameAlignment, bytes)), &std::free),
        bytes_(bytes) {
    TERRACE_CHECK(memory_ != nullptr) << "out of memory";
  }
  MutableBytes bytes() const { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  size_t bytes_;
};

// Reads the segments and gathers what could be adopted.
class SegmentScan {
 public:
  explicit SegmentScan(const RebuildSource& source)
      : source_(source), piece_(kReadBytes), header_(kMaxHeaderBytes) {
    next_generation_ = source.superblock.rebuild_floor;
    floor_ = source.superblock.rebuild_floor;
    if (source.erased == nullptr) {
      floor_ = UINT64_MAX;
      return;
    }
    next_generation_ = std::max(next_generation_, source.erased->highest_floor());
    if (source.erased->num_broken() > 0) floor_ = std::max(floor_, source.erased->highest_floor());
  }

  Status Run() {
    for (uint32_t segment = 0; segment < source_.segments.count(); ++segment) {
      for (uint64_t offset = 0; offset < source_.segments.size_bytes(segment); offset += kReadBytes) {
        TERRACE_RETURN_IF_ERROR(ReadPiece(segment, offset));
        for (uint64_t at = 0; at + kExtentUnit <= piece_length_; at += kExtentUnit) {
          const Bytes page = piece_.bytes().subspan(at, kExtentUnit);
          if (std::memcmp(page.data(), kTierPageMagic.data(), kTierPageMagic.size()) == 0) {
            Look(segment, offset + at, page);
          }
        }
      }
    }
    return OkStatus();
  }

  std::vector<Candidate>& candidates() { return candidates_; }
  uint64_t dropped() const { return dropped_; }
  uint64_t unreadable_bytes() const { return unreadable_bytes_; }
  uint64_t next_generation() const { return next_generation_; }

 private:
  // Where the device cannot read all of it, unit by unit: one bad sector loses one page.
  Status ReadPiece(uint32_t segment, uint64_t offset) {
    piece_segment_ = segment;
    piece_offset_ = offset;
    const uint64_t wanted = std::min<uint64_t>(kReadBytes, source_.segments.size_bytes(segment) - offset);
    const DiskFile& file = *source_.segments.file(segment);
    const Result<uint64_t> got = file.ReadAt(offset, piece_.bytes().first(wanted));
    piece_length_ = got.ok() ? *got : wanted;
    if (got.ok()) return OkStatus();
    for (uint64_t at = 0; at < wanted; at += kExtentUnit) {
      const MutableBytes unit = piece_.bytes().subspan(at, kExtentUnit);
      const Result<uint64_t> read = file.ReadAt(offset + at, unit);
      if (read.ok() && *read == unit.size()) continue;
      std::memset(unit.data(), 0, unit.size());
      unreadable_bytes_ += unit.size();
      if (unreadable_bytes_ > kMaxUnreadableBytes) return got.status();
    }
    return OkStatus();
  }

  // Bytes of the run whose extents these are, from `skip` on. False where they are not of these segments, or
  // cannot be read.
  bool ReadRun(const std::vector<Extent>& extents, uint64_t skip, MutableBytes left) const {
    for (const Extent& extent : extents) {
      const uint64_t skipped = std::min(skip, extent.length);
      skip -= skipped;
      const uint64_t n = std::min<uint64_t>(extent.length - skipped, left.size());
      if (n > 0 && !ReadAt(extent.segment, extent.offset + skipped, left.first(n))) return false;
      left = left.subspan(n);
    }
    return left.empty();
  }

  // The frame's plain header area; empty where it cannot be read, or opened.
  Bytes ReadHeaderArea(const std::vector<Extent>& extents, const PeekedTierPage& page) {
    if (page.fields.sealed) {
      Result<std::vector<std::byte>> opened = OpenHeaderArea(
          page, *source_.keys,
          [&](uint64_t run_offset, MutableBytes to) { return ReadRun(extents, run_offset, to); });
      if (!opened.ok()) return {};
      std::copy(opened->begin(), opened->end(), header_.bytes().begin());
    } else if (!ReadRun(extents, kTierPageBytes, header_.bytes().first(page.header_bytes))) {
      return {};
    }
    return header_.bytes().first(page.header_bytes);
  }

  bool ReadAt(uint32_t segment, uint64_t offset, MutableBytes to) const {
    const SegmentFiles& segments = source_.segments;
    if (segment >= segments.count() || offset > segments.size_bytes(segment) ||
        to.size() > segments.size_bytes(segment) - offset) {
      return false;
    }
    if (segment == piece_segment_ && offset >= piece_offset_ &&
        offset + to.size() <= piece_offset_ + piece_length_) {
      std::memcpy(to.data(), piece_.bytes().data() + (offset - piece_offset_), to.size());
      return true;
    }
    const Result<uint64_t> got = segments.file(segment)->ReadAt(offset, to);
    return got.ok() && *got == to.size();
  }

  // The cheap questions first: nothing is read or hashed for bytes that only look like a page.
  void Look(uint32_t segment, uint64_t offset, Bytes page) {
    const Result<PeekedTierPage> peeked = PeekTierPage(page);
    if (!peeked.ok() || peeked->fields.directory != source_.superblock.directory) return;
    if (peeked->fields.sealed != is_sealed()) return;  // an encrypted directory has no other frames
    std::vector<Extent> extents = peeked->fields.extents;
    const bool names_place = !extents.empty();
    // Without them the header area is taken to follow: the page's generation counts, if it is one.
    if (!names_place) {
      extents = {{segment, offset, RunBytes(peeked->fields.frame_bytes, peeked->fields.sealed)}};
    }
    if (extents[0].segment != segment || extents[0].offset != offset) {
      ++dropped_;
      return;
    }
    const Bytes header_area = ReadHeaderArea(extents, *peeked);
    if (header_area.empty()) return;
    Result<TierPage> proved = ParseTierPage(page, header_area, source_.superblock.secret);
    if (!proved.ok()) return;
    next_generation_ = std::max(next_generation_, proved->generation + 1);
    if (!names_place || !Adopt(*proved, header_area)) ++dropped_;
  }

  bool Adopt(const TierPage& page, Bytes header_area) {
    Result<FrameHeader> header = ParseFrameHeader(header_area);
    if (!header.ok() || header->frame_bytes != page.frame_bytes) return false;
    Candidate candidate;
    candidate.id = {header->key, header->part};
    if (page.sealed && candidate.id != page.id) return false;
    candidate.generation = page.generation;
    candidate.extents = page.extents;
    if (IsErased(candidate)) return false;
    ObjectMeta meta;
    meta.root = header->root;
    meta.parent = header->parent;
    meta.first_token = header->first_token;
    meta.frame_bytes = header->frame_bytes;
    meta.payload_bytes = header->payload_bytes;
    meta.codec = header->codec;
    meta.flags = header->flags;
    meta.division = header->division;
    meta.priority = page.priority;
    meta.expiry =
        WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(page.expiry_ns)));
    meta.generation = page.generation;
    candidate.record.key = EncodeRecordKey(candidate.id);
    candidate.record.content = EncodeRecordContent(header->content);
    const size_t content_bytes = StoredContentBytes(candidate, is_sealed());
    candidate.record.place = EncodePlace(
        {meta, header->header_bytes, candidate.extents, static_cast<uint32_t>(content_bytes), page.key_id});
    candidates_.push_back(std::move(candidate));
    return true;
  }

  bool is_sealed() const { return source_.keys != nullptr && !source_.keys->empty(); }

  bool IsErased(const Candidate& candidate) const {
    if (candidate.generation < floor_) return true;
    const auto erased = source_.erased->Floors().find(candidate.id);
    return erased != source_.erased->Floors().end() && candidate.generation < erased->second;
  }

  const RebuildSource& source_;
  uint64_t floor_ = 0;
  AlignedBuffer piece_;
  uint32_t piece_segment_ = 0;
  uint64_t piece_offset_ = 0;
  uint64_t piece_length_ = 0;
  AlignedBuffer header_;
  std::vector<Candidate> candidates_;
  uint64_t dropped_ = 0;
  uint64_t unreadable_bytes_ = 0;
  uint64_t next_generation_ = 1;
};

}  // namespace

Result<RebuildReport> RebuildManifest(const RebuildSource& source, Manifest& manifest) {
  SegmentScan scan(source);
  TERRACE_RETURN_IF_ERROR(scan.Run());
  RebuildReport report;
  report.dropped = scan.dropped();
  report.unreadable_bytes = scan.unreadable_bytes();
  report.next_generation = scan.next_generation();
  // Of two of one object, and of two that claim the same bytes, the later write is the right one.
  std::vector<Candidate>& candidates = scan.candidates();
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.generation > b.generation; });
  ExtentAllocator places;
  for (uint32_t i = 0; i < source.segments.count(); ++i) {
    places.GrowSegment(i, source.segments.size_bytes(i));
  }
  std::unordered_set<ObjectId, ObjectIdHash> taken;
  std::vector<RecordChange> changes;
  uint64_t record_bytes = 0;
  const bool is_sealed = source.keys != nullptr && !source.keys->empty();
  for (Candidate& candidate : candidates) {
    const uint64_t bytes =
        RecordBytes(candidate.record.place.size(), StoredContentBytes(candidate, is_sealed));
    if (taken.contains(candidate.id) || record_bytes + bytes > source.record_budget ||
        !places.Reserve(candidate.extents)) {
      ++report.dropped;
      continue;
    }
    taken.insert(candidate.id);
    record_bytes += bytes;
    ++report.objects;
    changes.push_back(std::move(candidate.record));
    if (changes.size() < kRecordsPerWrite) continue;
    TERRACE_RETURN_IF_ERROR(manifest.Apply(changes, RecordWrite::kLogged));
    changes.clear();
  }
  TERRACE_RETURN_IF_ERROR(manifest.Apply(changes, RecordWrite::kSynced));
  return report;
}

}  // namespace terrace
