#include "lib/memory/run_map.h"

#include <algorithm>
#include <bit>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// The lowest set bit at or after `bit`; kNone when there is none.
uint32_t NextBit(const std::vector<uint64_t>& words, uint32_t bit) {
  size_t word = bit / 64;
  if (word >= words.size()) return kNone;
  uint64_t bits = words[word] & (~uint64_t{0} << (bit % 64));
  while (bits == 0) {
    if (++word == words.size()) return kNone;
    bits = words[word];
  }
  return static_cast<uint32_t>(word * 64 + std::countr_zero(bits));
}

}  // namespace

RunMap::FreeLists::FreeLists(uint32_t longest)
    : first(longest + 1, kNone), lengths(longest / 64 + 1), word_in_use(lengths.size() / 64 + 1) {}

uint32_t RunMap::FreeLists::ShortestFrom(uint32_t length) const {
  if (length >= first.size()) return 0;
  const uint32_t word = length / 64;
  if (const uint64_t bits = lengths[word] & (~uint64_t{0} << (length % 64)); bits != 0) {
    return static_cast<uint32_t>(word * 64 + std::countr_zero(bits));
  }
  const uint32_t next = NextBit(word_in_use, word + 1);
  return next == kNone ? 0 : static_cast<uint32_t>(next * 64 + std::countr_zero(lengths[next]));
}

RunMap::RunMap(uint32_t units, uint32_t piece_units, uint32_t short_units)
    : piece_units_(piece_units),
      short_units_(short_units),
      free_units_(units),
      units_(units),
      apart_(longest_possible()),
      beside_short_(longest_possible()) {
  // From the last piece to the first, so that the first is at the head of the list.
  for (uint64_t piece = (uint64_t{units} + piece_units - 1) / piece_units; piece-- > 0;) {
    const auto start = static_cast<uint32_t>(piece * piece_units);
    Mark(start, std::min(piece_units, units - start), State::kFree);
    Link(start);
  }
}

void RunMap::Mark(uint32_t start, uint32_t length, State state) {
  units_[start].state = state;
  units_[start].length = length;
  units_[start + length - 1].length = length;
}

bool RunMap::IsBesideShort(uint32_t start) const {
  if (start % piece_units_ == 0 || IsShort(units_[start - 1].length)) return true;
  const uint32_t next = start + units_[start].length;
  return next < units() && next % piece_units_ != 0 && IsShort(units_[next].length);
}

void RunMap::Link(uint32_t start) {
  Unit& unit = units_[start];
  unit.beside_short = IsBesideShort(start);
  FreeLists& lists = unit.beside_short ? beside_short_ : apart_;
  uint32_t& head = lists.first[unit.length];
  unit.next = head;
  unit.previous = kNone;
  if (head != kNone) units_[head].previous = start;
  head = start;
  lists.lengths[unit.length / 64] |= uint64_t{1} << (unit.length % 64);
  lists.word_in_use[unit.length / 4096] |= uint64_t{1} << (unit.length / 64 % 64);
}

void RunMap::Unlink(uint32_t start) {
  const Unit& unit = units_[start];
  if (unit.next != kNone) units_[unit.next].previous = unit.previous;
  if (unit.previous != kNone) {
    units_[unit.previous].next = unit.next;
    return;
  }
  FreeLists& lists = unit.beside_short ? beside_short_ : apart_;
  lists.first[unit.length] = unit.next;
  if (unit.next != kNone) return;
  uint64_t& word = lists.lengths[unit.length / 64];
  word &= ~(uint64_t{1} << (unit.length % 64));
  if (word == 0) lists.word_in_use[unit.length / 4096] &= ~(uint64_t{1} << (unit.length / 64 % 64));
}

uint32_t RunMap::Choose(uint32_t length) const {
  const bool is_short = IsShort(length);
  const FreeLists& preferred = is_short ? beside_short_ : apart_;
  const FreeLists& other = is_short ? apart_ : beside_short_;
  uint32_t found = preferred.ShortestFrom(length);
  if (found != 0) return preferred.first[found];
  // A short run that begins a new neighbourhood takes a place in which others follow.
  if (is_short) found = other.ShortestFrom(2 * short_units_);
  if (found == 0) found = other.ShortestFrom(length);
  return found == 0 ? kNone : other.first[found];
}

std::optional<uint32_t> RunMap::Take(uint32_t length) {
  TERRACE_CHECK(length > 0);
  const uint32_t chosen = Choose(length);
  if (chosen == kNone) return std::nullopt;
  Unlink(chosen);
  const uint32_t rest = units_[chosen].length - length;
  const uint32_t start = IsShort(length) ? chosen : chosen + rest;
  Mark(start, length, State::kTaken);
  free_units_ -= length;
  if (rest > 0) {
    const uint32_t rest_start = IsShort(length) ? chosen + length : chosen;
    Mark(rest_start, rest, State::kFree);
    Link(rest_start);
  }
  return start;
}

void RunMap::Give(uint32_t start) {
  TERRACE_CHECK(units_[start].state == State::kTaken) << "unit " << start;
  uint32_t length = units_[start].length;
  free_units_ += length;
  const uint32_t next = start + length;
  if (next < units() && next % piece_units_ != 0 && units_[next].state == State::kFree) {
    Unlink(next);
    units_[next].state = State::kInside;
    length += units_[next].length;
  }
  if (start % piece_units_ != 0) {
    const uint32_t previous = start - units_[start - 1].length;
    if (units_[previous].state == State::kFree) {
      Unlink(previous);
      units_[start].state = State::kInside;
      length += start - previous;
      start = previous;
    }
  }
  Mark(start, length, State::kFree);
  Link(start);
}

void RunMap::Withdraw(uint32_t start) {
  TERRACE_CHECK(units_[start].state == State::kFree) << "unit " << start;
  Unlink(start);
  units_[start].state = State::kTaken;
  free_units_ -= units_[start].length;
}

void RunMap::Merge(uint32_t start, uint32_t length) {
  for (uint32_t at = start; at < start + length;) {
    TERRACE_CHECK(units_[at].state == State::kTaken) << "unit " << at;
    const uint32_t next = at + units_[at].length;
    TERRACE_CHECK(next <= start + length) << "run " << at << " to " << next;
    units_[at].state = State::kInside;
    at = next;
  }
  Mark(start, length, State::kTaken);
}

void RunMap::Split(uint32_t start, uint32_t first_length) {
  TERRACE_CHECK(units_[start].state == State::kTaken) << "unit " << start;
  const uint32_t length = units_[start].length;
  TERRACE_CHECK(first_length > 0 && first_length < length) << first_length << " of " << length;
  Mark(start, first_length, State::kTaken);
  Mark(start + first_length, length - first_length, State::kTaken);
}

}  // namespace terrace
