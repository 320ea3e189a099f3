#include "backends/nvme/tests/simulated_file.h"

#include <algorithm>
#include <cstring>

namespace terrace {
namespace {

uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

bool IsZero(Bytes bytes) {
  return bytes.front() == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

}  // namespace

uint64_t DrawOf(uint64_t a, uint64_t b, uint64_t c) { return Mix(Mix(Mix(a) ^ b) ^ c); }

uint64_t DrawOf(uint64_t seed, std::string_view name) {
  uint64_t hash = Mix(seed);
  for (const char letter : name) hash = Mix(hash ^ static_cast<unsigned char>(letter));
  return hash;
}

void SparseBytes::Write(uint64_t offset, Bytes from) {
  while (!from.empty()) {
    const uint64_t skip = offset % kPageBytes;
    const size_t n = std::min<size_t>(kPageBytes - skip, from.size());
    std::shared_ptr<Page>& page = pages_[offset / kPageBytes];
    if (n == kPageBytes && IsZero(from.first(n))) {
      page = nullptr;
    } else {
      if (!page) {
        page = std::make_shared<Page>();
      } else if (page.use_count() > 1) {
        page = std::make_shared<Page>(*page);
      }
      std::memcpy(page->data() + skip, from.data(), n);
    }
    offset += n;
    from = from.subspan(n);
  }
}

void SparseBytes::Read(uint64_t offset, MutableBytes to) const {
  while (!to.empty()) {
    const uint64_t skip = offset % kPageBytes;
    const size_t n = std::min<size_t>(kPageBytes - skip, to.size());
    const auto page = pages_.find(offset / kPageBytes);
    if (page == pages_.end() || !page->second) {
      std::memset(to.data(), 0, n);
    } else {
      std::memcpy(to.data(), page->second->data() + skip, n);
    }
    offset += n;
    to = to.subspan(n);
  }
}

void SparseBytes::Cut(uint64_t offset) {
  const uint64_t first = (offset + kPageBytes - 1) / kPageBytes;
  pages_.erase(pages_.lower_bound(first), pages_.end());
  const auto last = pages_.find(offset / kPageBytes);
  if (offset % kPageBytes == 0 || last == pages_.end() || !last->second) return;
  last->second = std::make_shared<Page>(*last->second);
  std::memset(last->second->data() + offset % kPageBytes, 0, kPageBytes - offset % kPageBytes);
}

uint64_t SparseBytes::WrittenBytes() const {
  uint64_t next = 0;
  for (const auto& [page, bytes] : pages_) {
    if (page != next) break;
    ++next;
  }
  return next * kPageBytes;
}

uint64_t SimulatedFile::charged_bytes() const { return charged_bytes_after(0); }

uint64_t SimulatedFile::charged_bytes_after(uint64_t end) const {
  constexpr uint64_t kBlock = 4096;
  return std::max({reserved_bytes_, current_.end(), (end + kBlock - 1) / kBlock * kBlock});
}

uint64_t SimulatedFile::WrittenBytes() const { return std::min(current_.WrittenBytes(), length_); }

uint64_t SimulatedFile::Read(uint64_t offset, MutableBytes to) const {
  if (offset >= length_) return 0;
  const uint64_t n = std::min<uint64_t>(to.size(), length_ - offset);
  current_.Read(offset, to.first(n));
  return n;
}

SimulatedFile::Change& SimulatedFile::Add() {
  changes_.emplace_back();
  changes_.back().ordinal = (*ordinal_)++;
  return changes_.back();
}

void SimulatedFile::SetLength(Change& change, uint64_t length) {
  change.changes_length = true;
  change.length = length;
  length_ = length;
}

void SimulatedFile::Write(uint64_t offset, Bytes from) {
  if (from.empty()) return;
  current_.Write(offset, from);
  Change& change = Add();
  const uint64_t end = offset + from.size();
  change.offset = offset / kSectorBytes * kSectorBytes;
  change.data.resize((end + kSectorBytes - 1) / kSectorBytes * kSectorBytes - change.offset);
  current_.Read(change.offset, change.data);
  if (end > length_) SetLength(change, end);
}

void SimulatedFile::Allocate(uint64_t length) {
  reserved_bytes_ = std::max(reserved_bytes_, length);
  if (length > length_) SetLength(Add(), length);
}

void SimulatedFile::Truncate(uint64_t length) {
  if (length == length_) return;
  Change& change = Add();
  change.is_cut = length < length_;
  SetLength(change, length);
  if (!change.is_cut) return;
  current_.Cut(length);
  reserved_bytes_ = std::min(reserved_bytes_, length);
}

void SimulatedFile::Sync() { Settle(LossStyle::kNothing); }

void SimulatedFile::ApplyWrite(const Change& change, bool whole) {
  const Bytes data(change.data);
  for (uint64_t at = 0; at < data.size(); at += kSectorBytes) {
    const bool kept = whole || (DrawOf(stream_, change.ordinal, 2 + at / kSectorBytes) & 1) != 0;
    if (kept) durable_.Write(change.offset + at, data.subspan(at, kSectorBytes));
  }
}

void SimulatedFile::Settle(LossStyle style) {
  if (changes_.empty()) return;
  const uint64_t draw = NextDraw();
  if (style == LossStyle::kDrawn && draw % 4 < 2)
    style = draw % 4 == 0 ? LossStyle::kNothing : LossStyle::kAll;
  const bool is_drawn = style == LossStyle::kDrawn;
  uint64_t lengths = 0;
  for (const Change& change : changes_) lengths += change.changes_length;
  uint64_t kept_lengths = style == LossStyle::kAll ? 0 : lengths;
  if (is_drawn) kept_lengths = DrawOf(draw, 1) % (lengths + 1);

  // The order of the writes between two cuts is the device's.
  std::vector<const Change*> order;
  size_t block = 0;
  const auto shuffle = [&] {
    for (size_t i = order.size(); is_drawn && i > block + 1; --i) {
      std::swap(order[i - 1], order[block + DrawOf(draw, 2, i) % (i - block)]);
    }
    block = order.size();
  };
  for (const Change& change : changes_) {
    if (change.is_cut) shuffle();
    order.push_back(&change);
    if (change.is_cut) block = order.size();
  }
  shuffle();

  // Which cuts survive follows from their place among the changes of length.
  uint64_t seen_lengths = 0;
  uint64_t last_kept_ordinal = 0;
  for (const Change& change : changes_) {
    if (!change.changes_length || seen_lengths++ >= kept_lengths) continue;
    durable_length_ = change.length;
    last_kept_ordinal = change.ordinal;
  }
  for (const Change* change : order) {
    if (change->is_cut && kept_lengths > 0 && change->ordinal <= last_kept_ordinal) {
      durable_.Cut(change->length);
    }
    if (change->data.empty() || style == LossStyle::kAll) continue;
    const uint64_t fate = DrawOf(stream_, change->ordinal, 1) % 4;  // nothing, everything, a part
    if (is_drawn && fate == 0) continue;
    ApplyWrite(*change, !is_drawn || fate == 1);
  }
  durable_.Cut(durable_length_);
  changes_.clear();
}

void SimulatedFile::Lose() {
  current_ = durable_;
  length_ = durable_length_;
  reserved_bytes_ = std::min(reserved_bytes_, length_);
}

}  // namespace terrace
