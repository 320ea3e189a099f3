#include "lib/wire/landing_table.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/check.h"

namespace terrace {
namespace {

std::string Named(uint64_t transfer) { return "transfer " + std::to_string(transfer); }

// Whether two of the runs [first, first + length) have a byte in common.
bool Overlap(std::vector<std::pair<uint64_t, uint64_t>> runs) {
  std::sort(runs.begin(), runs.end());
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first - runs[i - 1].first < runs[i - 1].second) return true;
  }
  return false;
}

Status CheckRanges(const Landing& landing) {
  if (landing.ranges.empty()) return InvalidArgumentError("ranges: at least one");
  std::vector<std::pair<uint64_t, uint64_t>> in_frame;
  std::vector<std::pair<uint64_t, uint64_t>> in_memory;
  for (const FrameRange& range : landing.ranges) {
    if (range.length == 0 || range.frame_offset > UINT64_MAX - range.length) {
      return InvalidArgumentError("ranges: a length is not allowed");
    }
    if (range.length > landing.memory.size() || range.dst_offset > landing.memory.size() - range.length) {
      return InvalidArgumentError("ranges: outside the memory");
    }
    in_frame.emplace_back(range.frame_offset, range.length);
    in_memory.emplace_back(range.dst_offset, range.length);
  }
  if (Overlap(std::move(in_frame)) || Overlap(std::move(in_memory))) {
    return InvalidArgumentError("ranges: overlapping");
  }
  return OkStatus();
}

}  // namespace

// Guarded by the table's mutex but for `landing.memory`, which does not change.
struct LandingTable::Reservation::Transfer {
  struct Run {
    uint64_t end;         // in the frame
    uint64_t dst_offset;  // of its first byte, in the memory
  };
  struct Report {
    uint64_t offset;
    uint64_t n;
  };

  uint64_t number = 0;
  Landing landing;
  std::map<uint64_t, Run> free;  // what nobody reserved yet, by the offset in the frame
  uint64_t missing_bytes = 0;    // not reported as landed
  std::deque<Report> reports;    // landed, and on_bytes is still to be called
  bool reporting = false;        // a thread runs callbacks, or is about to
  size_t num_receivers = 0;      // reservations that are held
  bool listed = true;            // in the table; nothing new is accepted otherwise
  std::optional<Status> end;     // what on_end is due to be told; none: nothing

  // The run of free bytes that holds [offset, offset + length); end() where there is none.
  std::map<uint64_t, Run>::iterator Find(uint64_t offset, uint64_t length) {
    auto found = free.upper_bound(offset);
    if (found == free.begin()) return free.end();
    --found;
    const bool holds = found->second.end >= offset && found->second.end - offset >= length;
    return holds ? found : free.end();
  }

  // Takes [offset, offset + length) out of the run; gives its place in the memory.
  uint64_t Take(std::map<uint64_t, Run>::iterator run, uint64_t offset, uint64_t length) {
    const uint64_t dst_offset = run->second.dst_offset + (offset - run->first);
    const uint64_t behind = offset + length;
    if (behind < run->second.end) free.emplace(behind, Run{run->second.end, dst_offset + length});
    if (offset == run->first) {
      free.erase(run);
    } else {
      run->second.end = offset;
    }
    return dst_offset;
  }
};

LandingTable::LandingTable() = default;
LandingTable::~LandingTable() = default;

LandingTable::Reservation::Reservation(Reservation&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)),
      transfer_(std::move(other.transfer_)),
      memory_(std::exchange(other.memory_, {})),
      landed_(std::exchange(other.landed_, 0)) {}

LandingTable::Reservation& LandingTable::Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Reservation old(std::move(*this));
  table_ = std::exchange(other.table_, nullptr);
  transfer_ = std::move(other.transfer_);
  memory_ = std::exchange(other.memory_, {});
  landed_ = std::exchange(other.landed_, 0);
  return *this;
}

LandingTable::Reservation::~Reservation() {
  if (table_ == nullptr) return;
  {
    const std::lock_guard lock(table_->mutex_);
    --transfer_->num_receivers;
  }
  if (landed_ < memory_.size()) table_->Leave(transfer_, UnavailableError("bytes were lost on the way"));
}

void LandingTable::Reservation::Landed(uint64_t n) {
  TERRACE_CHECK(table_ != nullptr && n <= memory_.size() - landed_) << n << " of " << memory_.size();
  if (n == 0) return;
  const auto first = static_cast<uint64_t>(memory_.data() - transfer_->landing.memory.data());
  const uint64_t offset = first + landed_;
  landed_ += n;
  table_->Report(transfer_, offset, n);
}

Status LandingTable::Add(uint64_t transfer, Landing landing) {
  if (Status checked = CheckRanges(landing); !checked.ok()) return checked;
  auto added = std::make_shared<Reservation::Transfer>();
  added->number = transfer;
  for (const FrameRange& range : landing.ranges) {
    added->free.emplace(range.frame_offset,
                        Reservation::Transfer::Run{range.frame_offset + range.length, range.dst_offset});
    added->missing_bytes += range.length;
  }
  const uint64_t missing = added->missing_bytes;
  added->landing = std::move(landing);
  const std::lock_guard lock(mutex_);
  if (!transfers_.emplace(transfer, std::move(added)).second) {
    return Status(StatusCode::kAlreadyExists, Named(transfer) + " is awaited already");
  }
  missing_bytes_ += missing;
  return OkStatus();
}

Result<LandingTable::Reservation> LandingTable::Reserve(uint64_t transfer, uint64_t offset, uint64_t length) {
  const std::lock_guard lock(mutex_);
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return NotFoundError(Named(transfer));
  Reservation::Transfer& awaited = *found->second;
  const auto run = awaited.Find(offset, length);
  if (length == 0 || run == awaited.free.end()) {
    return DataLossError(Named(transfer) + ": bytes that were not asked for, or came before");
  }
  Reservation reservation;
  reservation.table_ = this;
  reservation.transfer_ = found->second;
  ++awaited.num_receivers;
  reservation.memory_ = awaited.landing.memory.subspan(awaited.Take(run, offset, length), length);
  return reservation;
}

void LandingTable::Report(const TransferRef& transfer, uint64_t offset, uint64_t n) {
  std::unique_lock lock(mutex_);
  if (!transfer->listed) return;
  transfer->missing_bytes -= n;
  missing_bytes_ -= n;
  transfer->reports.push_back({offset, n});
  if (transfer->missing_bytes == 0) {
    transfers_.erase(transfer->number);
    transfer->listed = false;
    transfer->end = OkStatus();
  }
  // One thread calls at a time; what others land meanwhile is left to it.
  if (!std::exchange(transfer->reporting, true)) RunReports(transfer, lock);
}

void LandingTable::RunReports(const TransferRef& transfer, std::unique_lock<std::mutex>& lock) {
  while (!transfer->reports.empty()) {
    const auto [offset, n] = transfer->reports.front();
    transfer->reports.pop_front();
    lock.unlock();
    if (transfer->landing.on_bytes) transfer->landing.on_bytes(offset, n);
    lock.lock();
  }
  if (transfer->listed) {
    transfer->reporting = false;
    return;
  }
  // Out of the table and still `reporting`: nobody else comes here, so the callbacks go, and where nobody
  // writes to it any more the memory too: before an end with an error, whose owner may use it for another
  // try.
  const auto on_bytes = std::exchange(transfer->landing.on_bytes, nullptr);
  const auto on_end = std::exchange(transfer->landing.on_end, nullptr);
  const bool is_free = transfer->missing_bytes == 0 || transfer->num_receivers == 0;
  auto keep = is_free ? std::exchange(transfer->landing.keep, nullptr) : nullptr;
  const std::optional<Status> end = transfer->end;
  lock.unlock();
  if (end && !end->ok()) keep.reset();
  if (end && on_end) on_end(*end);
}

bool LandingTable::Leave(const TransferRef& transfer, std::optional<Status> end) {
  std::unique_lock lock(mutex_);
  if (!transfer->listed) return false;
  transfers_.erase(transfer->number);
  missing_bytes_ -= transfer->missing_bytes;
  transfer->listed = false;
  transfer->end = std::move(end);
  transfer->reports.clear();
  if (!std::exchange(transfer->reporting, true)) RunReports(transfer, lock);
  return true;
}

LandingTable::TransferRef LandingTable::Find(uint64_t transfer) const {
  const std::lock_guard lock(mutex_);
  const auto found = transfers_.find(transfer);
  return found == transfers_.end() ? nullptr : found->second;
}

std::optional<LandingTable::Awaited> LandingTable::AwaitedOf(uint64_t transfer) const {
  const std::lock_guard lock(mutex_);
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return std::nullopt;
  const Landing& landing = found->second->landing;
  return Awaited{.ranges = landing.ranges, .is_watched = landing.is_watched && landing.on_bytes != nullptr};
}

bool LandingTable::Fail(uint64_t transfer, const Status& status) {
  const TransferRef found = Find(transfer);
  return found != nullptr && Leave(found, status);
}

bool LandingTable::Drop(uint64_t transfer) {
  const TransferRef found = Find(transfer);
  return found != nullptr && Leave(found, std::nullopt);
}

void LandingTable::FailAll(const Status& status) {
  std::vector<TransferRef> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, transfer] : transfers_) all.push_back(transfer);
  }
  for (const TransferRef& transfer : all) Leave(transfer, status);
}

size_t LandingTable::size() const {
  const std::lock_guard lock(mutex_);
  return transfers_.size();
}

uint64_t LandingTable::missing_bytes() const {
  const std::lock_guard lock(mutex_);
  return missing_bytes_;
}

}  // namespace terrace
