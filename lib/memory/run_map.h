// RunMap: which runs of units are free, with the best fit found in constant time. It knows units only, no
// memory.
//
//   units    | run 0 (3 units) | run 3 (1) | run 4 (5)          | ...
//   state    | taken  .   .    | free      | taken  .  .  .  .  |      of a run's first unit; "." is inside
//   length   |   3    .   3    |   1       |   5    .  .  .  5  |      at both ends, so that neighbours are
//   found
//
// Free runs of one length form a list whose links lie in their first units; a bitmap says which lengths have
// one. There are two sets of lists: free runs beside a short taken run (or at a piece's low end), and those
// apart from them. Short runs are taken beside short ones and at the low end of a free run, long ones
// elsewhere and at the high end: a short run that is pinned then lies among short ones, and not in the midst
// of what a long one needs.
//
// No run crosses the border of a piece. All memory is taken by the constructor.
//
// Invariants: the runs of a piece cover it without gap; no two free runs touch inside a piece.
// Threads: none of its own; the owner locks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace terrace {

class RunMap {
 public:
  struct Run {
    uint32_t start = 0;
    uint32_t length = 0;  // in units
    bool free = false;
  };

  // All free at first. `piece_units` > 0; the last piece may be shorter. Runs of up to `short_units` are
  // short.
  RunMap(uint32_t units, uint32_t piece_units, uint32_t short_units);

  // Makes `length` units taken, from the shortest free run of the preferred lists that holds them, else of
  // the others: the start. Nothing only when no free run holds them. O(1).
  std::optional<uint32_t> Take(uint32_t length);
  // A taken run becomes free and joins its free neighbours. O(1).
  void Give(uint32_t start);

  // A free run becomes taken as a whole.
  void Withdraw(uint32_t start);
  // The taken runs that fill `length` units from `start` become one taken run.
  void Merge(uint32_t start, uint32_t length);
  // A taken run becomes two taken runs, the first of `first_length` units.
  void Split(uint32_t start, uint32_t first_length);

  bool StartsRun(uint32_t unit) const { return units_[unit].state != State::kInside; }
  // The run that starts there.
  Run At(uint32_t start) const { return {start, units_[start].length, units_[start].state == State::kFree}; }

  // Taken at the low end of a free run; else at the high end.
  bool IsShort(uint32_t length) const { return length <= short_units_; }
  uint32_t units() const { return static_cast<uint32_t>(units_.size()); }
  uint32_t piece_units() const { return piece_units_; }
  uint32_t free_units() const { return free_units_; }
  // Length of the longest run that could ever be taken.
  uint32_t longest_possible() const { return units() < piece_units_ ? units() : piece_units_; }

 private:
  enum class State : uint8_t { kInside, kFree, kTaken };
  struct Unit {
    uint32_t length = 0;
    uint32_t next = 0;  // of a free run: its neighbours in the list of its length
    uint32_t previous = 0;
    State state = State::kInside;
    bool beside_short = false;  // of a free run: which lists it is in
  };

  // Free runs by length.
  struct FreeLists {
    explicit FreeLists(uint32_t longest);
    // The shortest length >= `length` of which there is a free run; 0 when there is none.
    uint32_t ShortestFrom(uint32_t length) const;

    std::vector<uint32_t> first;        // by length: a free run's start
    std::vector<uint64_t> lengths;      // bit n: a free run of n units
    std::vector<uint64_t> word_in_use;  // bit n: lengths[n] is not 0
  };

  void Mark(uint32_t start, uint32_t length, State state);
  void Link(uint32_t start);
  void Unlink(uint32_t start);
  bool IsBesideShort(uint32_t start) const;
  // Start of the free run to take `length` units from; UINT32_MAX when there is none.
  uint32_t Choose(uint32_t length) const;

  uint32_t piece_units_;
  uint32_t short_units_;
  uint32_t free_units_;
  std::vector<Unit> units_;
  FreeLists apart_;         // free runs between long ones
  FreeLists beside_short_;  // free runs with a short taken neighbour
};

}  // namespace terrace
