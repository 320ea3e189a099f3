// Reading every byte of every object, in the order of their places.
#include <algorithm>
#include <tuple>

#include "backends/nvme/verifier.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// Requests of this size keep a device busy, and it takes a tier page and the largest header area.
constexpr uint64_t kPartBytes = uint64_t{4} << 20;
constexpr uint64_t kWindowBytes = 8 * kPartBytes;
static_assert(kPartBytes >= kTierPageBytes + kMaxHeaderBytes);

}  // namespace

Status Verifier::ReadObjects() {
  for (size_t i = 0; i < objects_.size(); ++i) {
    if (objects_[i].is_wrong) continue;
    order_.push_back(i);
    position_.bytes_total += RunBytes(objects_[i]);
  }
  const auto place = [this](size_t i) {
    const Extent& first = extents_[objects_[i].first_extent];
    return std::tuple(first.segment, first.offset);
  };
  std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  position_.objects_total = order_.size();
  ReportProgress();
  if (order_.empty()) return OkStatus();

  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadWindow> window,
                           ReadWindow::Open(disk_, kWindowBytes, kPartBytes));
  checker_.emplace(superblock_);
  if (cipher_) sealed_.emplace(superblock_.directory, keys_, *checker_);
  std::deque<Part> in_window;
  std::optional<Part> next = NextPart();
  while (next || !in_window.empty()) {
    while (next && window->Add(SpansOf(*next))) {
      in_window.push_back(*next);
      next = NextPart();
    }
    CheckPart(in_window.front(), window->Front());
    window->Release();
    in_window.pop_front();
    ReportProgress();
  }
  report_.bytes_read = position_.bytes_read;
  report_.objects_checked = position_.objects_checked;
  return OkStatus();
}

std::optional<Verifier::Part> Verifier::NextPart() {
  if (next_in_order_ == order_.size()) return std::nullopt;
  const size_t object = order_[next_in_order_];
  const uint64_t run_bytes = RunBytes(objects_[object]);
  const Part part{object, next_offset_, std::min(kPartBytes, run_bytes - next_offset_)};
  next_offset_ += part.length;
  if (next_offset_ == run_bytes) {
    ++next_in_order_;
    next_offset_ = 0;
  }
  return part;
}

std::vector<ReadWindow::Span> Verifier::SpansOf(const Part& part) const {
  std::vector<ReadWindow::Span> spans;
  uint64_t extent_begin = 0;
  const uint64_t part_end = part.run_offset + part.length;
  for (const Extent& extent : ExtentsOf(objects_[part.object])) {
    const uint64_t begin = std::max(part.run_offset, extent_begin);
    const uint64_t end = std::min(part_end, extent_begin + extent.length);
    if (begin < end) {
      spans.push_back(
          {segments_[extent.segment].file->fd(), extent.offset + begin - extent_begin, end - begin});
    }
    extent_begin += extent.length;
  }
  return spans;
}

void Verifier::CheckPart(const Part& part, const ReadWindow::Done& done) {
  const Object& object = objects_[part.object];
  if (part.run_offset == 0) {
    const Result<std::optional<std::string>> place =
        manifest_->Get(RecordFamily::kPlaces, EncodeRecordKey(object.id));
    Result<ObjectRecord> record = DataLossError("manifest: the record is gone");
    if (!place.ok()) record = place.status();
    if (place.ok() && *place) record = DecodePlace(**place);
    read_status_ = record.status();
    if (record.ok()) {
      if (sealed_) sealed_->Begin(object.id, *record);
      checker_->Begin(object.id, std::move(*record));
    }
  }
  position_.bytes_read += part.length;
  if (read_status_.ok()) read_status_ = done.status;
  if (read_status_.ok()) sealed_ ? sealed_->Feed(done.bytes) : checker_->Feed(done.bytes);
  if (part.run_offset + part.length == RunBytes(object)) EndObject(part.object);
}

void Verifier::EndObject(size_t number) {
  Object& object = objects_[number];
  ++position_.objects_checked;
  if (!read_status_.ok()) {
    FindWrong(object, NvmeFindingKind::kUnreadable, std::string(read_status_.message()));
  } else if (std::optional<FrameFault> fault = checker_->Finish()) {
    FindWrong(object, fault->kind, std::move(fault->reason));
  } else if (const auto content = content_faults_.find(number); content != content_faults_.end()) {
    FindWrongContent(object, std::move(content->second));
  }
  if (object.is_wrong && options_.repair) places_->Release(ExtentsOf(object));
}

void Verifier::ReportProgress() {
  if (progress_) progress_(position_);
}

}  // namespace terrace
