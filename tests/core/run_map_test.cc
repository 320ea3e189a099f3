// RunMap and CheapestWindow against plain references, over random operations.
#include "lib/memory/run_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "lib/memory/eviction_window.h"

namespace terrace {
namespace {

// The same rules on a plain vector: which unit belongs to which taken run.
class PlainMap {
 public:
  PlainMap(uint32_t units, uint32_t piece, uint32_t short_units)
      : piece_(piece), short_(short_units), owner_(units, 0) {}

  struct Hole {
    uint32_t start, length;
    bool beside_short;
  };
  std::vector<Hole> Holes() const {
    std::vector<Hole> holes;
    for (uint32_t at = 0; at < owner_.size();) {
      uint32_t end = at;
      while (end < owner_.size() && owner_[end] == 0 && (end == at || end % piece_ != 0)) ++end;
      if (end == at) {
        ++at;
        continue;
      }
      const bool low = at % piece_ == 0 || IsShort(owner_[at - 1]);
      const bool high = end < owner_.size() && end % piece_ != 0 && IsShort(owner_[end]);
      holes.push_back({at, end - at, low || high});
      at = end;
    }
    return holes;
  }
  // Length of the hole that a run of `length` comes from; 0 for none.
  uint32_t BestFit(uint32_t length) const {
    const bool is_short = length <= short_;
    const auto shortest = [&](bool beside_short, uint32_t least) {
      uint32_t best = 0;
      for (const Hole& hole : Holes()) {
        if (hole.beside_short == beside_short && hole.length >= least && (best == 0 || hole.length < best)) {
          best = hole.length;
        }
      }
      return best;
    };
    if (const uint32_t best = shortest(is_short, length); best != 0) return best;
    if (const uint32_t best = is_short ? shortest(false, 2 * short_) : 0; best != 0) return best;
    return shortest(!is_short, length);
  }
  void Set(uint32_t start, uint32_t length, uint32_t owner) {
    for (uint32_t i = start; i < start + length; ++i) owner_[i] = owner == 0 ? 0 : start + 1;
    if (owner != 0) lengths_[start + 1] = length;
  }
  bool AllFree(uint32_t start, uint32_t length) const {
    return std::all_of(owner_.begin() + start, owner_.begin() + start + length,
                       [](uint32_t owner) { return owner == 0; });
  }

 private:
  bool IsShort(uint32_t owner) const { return owner != 0 && lengths_.at(owner) <= short_; }
  uint32_t piece_;
  uint32_t short_;
  std::vector<uint32_t> owner_;  // 0: free; else the run's start + 1
  std::map<uint32_t, uint32_t> lengths_;
};

TEST(RunMapTest, AgreesWithAPlainMapOverRandomOperations) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    constexpr uint32_t kUnits = 700, kPiece = 256, kShort = 3;
    RunMap map(kUnits, kPiece, kShort);
    PlainMap plain(kUnits, kPiece, kShort);
    std::vector<std::pair<uint32_t, uint32_t>> taken;
    for (int i = 0; i < 6000; ++i) {
      if (random() % 100 < (i / 1000 % 2 == 0 ? 60 : 45)) {
        const uint32_t length = 1 + (random() % 3 == 0 ? random() % 100 : random() % 6);
        const uint32_t hole = plain.BestFit(length);
        const std::optional<uint32_t> start = map.Take(length);
        ASSERT_EQ(start.has_value(), hole != 0) << length;
        if (!start) continue;
        ASSERT_LE(*start / kPiece, (*start + length - 1) / kPiece);
        ASSERT_EQ(*start / kPiece, (*start + length - 1) / kPiece) << "crosses a piece";
        ASSERT_TRUE(plain.AllFree(*start, length));
        const auto holes = plain.Holes();
        const auto from = std::find_if(holes.begin(), holes.end(), [&](const auto& each) {
          return each.start <= *start && *start < each.start + each.length;
        });
        ASSERT_EQ(from->length, hole) << "not the best fit for " << length;
        ASSERT_EQ(*start, length <= kShort ? from->start : from->start + from->length - length);
        plain.Set(*start, length, 1);
        taken.emplace_back(*start, length);
      } else if (!taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        map.Give(taken.back().first);
        plain.Set(taken.back().first, taken.back().second, 0);
        taken.pop_back();
      }
      uint32_t free_units = 0;
      for (const auto& hole : plain.Holes()) {
        free_units += hole.length;
        ASSERT_TRUE(map.StartsRun(hole.start));
        ASSERT_EQ(map.At(hole.start).length, hole.length);
        ASSERT_TRUE(map.At(hole.start).free);
      }
      ASSERT_EQ(map.free_units(), free_units);
    }
    for (const auto& [start, length] : taken) map.Give(start);
    EXPECT_EQ(map.free_units(), kUnits);
    for (const uint32_t length : {kPiece, kPiece, kUnits - 2 * kPiece})
      EXPECT_TRUE(map.Take(length).has_value());
    EXPECT_FALSE(map.Take(1).has_value());
  }
}

TEST(RunMapTest, WithdrawMergeAndSplitCoverThePieceAlways) {
  std::mt19937_64 random(7);
  constexpr uint32_t kUnits = 300, kPiece = 128;
  RunMap map(kUnits, kPiece, 2);
  for (int i = 0; i < 20000; ++i) {
    // A random stretch of whole runs becomes one taken run, of which a part is given back.
    std::vector<RunMap::Run> runs;
    const uint32_t begin = random() % 3 * kPiece;
    const uint32_t end = std::min(begin + kPiece, kUnits);
    for (uint32_t unit = begin; unit < end; unit += runs.back().length) {
      ASSERT_TRUE(map.StartsRun(unit));
      runs.push_back(map.At(unit));
      ASSERT_TRUE(runs.size() < 2 || !runs.back().free || !runs[runs.size() - 2].free) << "free runs touch";
    }
    ASSERT_EQ(runs.back().start + runs.back().length, end);
    const size_t first = random() % runs.size();
    const size_t last = first + random() % std::min<size_t>(4, runs.size() - first);
    uint32_t length = 0;
    for (size_t r = first; r <= last; ++r) {
      if (runs[r].free) map.Withdraw(runs[r].start);
      length += runs[r].length;
    }
    const uint32_t start = runs[first].start;
    map.Merge(start, length);
    if (length > 1) {
      const uint32_t cut = 1 + random() % (length - 1);
      map.Split(start, cut);
      map.Give(random() % 2 ? start : start + cut);
    } else if (random() % 2) {
      map.Give(start);
    }
    if (random() % 2) map.Take(1 + random() % 5);
  }
}

TEST(RunMapTest, EveryLengthIsFoundThroughTheBitmaps) {
  constexpr uint32_t kPiece = 16384;
  for (const uint32_t length : {1u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 8191u, 16383u, 16384u}) {
    RunMap map(kPiece, kPiece, 32);
    if (length < kPiece) {
      ASSERT_TRUE(map.Take(kPiece - length).has_value());
    }
    EXPECT_EQ(map.Take(length + 1), std::nullopt) << length;
    EXPECT_TRUE(map.Take(length).has_value()) << length;
    EXPECT_EQ(map.free_units(), 0u);
    EXPECT_EQ(map.Take(1), std::nullopt);
  }
}

TEST(EvictionWindowTest, CheapestOfAllWindows) {
  using Kind = WindowCandidate::Kind;
  std::mt19937_64 random(3);
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<WindowCandidate> runs;
    uint32_t at = 100;
    for (uint64_t i = random() % 20; i > 0; --i) {
      WindowCandidate run{.start = at, .length = static_cast<uint32_t>(1 + random() % 9)};
      run.kind = static_cast<Kind>(random() % 8 == 0 ? 2 : random() % 2);
      run.cost = 1000000 + random() % 50;
      at += run.length;
      runs.push_back(run);
    }
    uint64_t coldest = UINT64_MAX, hottest = 0;
    for (const WindowCandidate& run : runs) {
      if (run.kind != Kind::kEvictable) continue;
      coldest = std::min(coldest, run.cost);
      hottest = std::max(hottest, run.cost);
    }
    const auto price = [&](size_t first, size_t last) {
      double sum = 0;
      for (size_t i = first; i <= last; ++i) {
        if (runs[i].kind != Kind::kEvictable) continue;
        const double place = hottest == coldest ? 0.0
                                                : static_cast<double>(runs[i].cost - coldest) /
                                                      static_cast<double>(hottest - coldest);
        sum += runs[i].length * (1 + (kHottestUnit - 1) * place);
      }
      return sum;
    };
    const uint32_t wanted = 1 + random() % 25;
    double best = -1;
    double chosen = -1;
    const std::optional<EvictionWindow> window = CheapestWindow(runs, wanted);
    for (size_t first = 0; first < runs.size(); ++first) {
      uint32_t length = 0;
      for (size_t last = first; last < runs.size() && runs[last].kind != Kind::kFixed; ++last) {
        length += runs[last].length;
        if (length < wanted) continue;
        if (best < 0 || price(first, last) < best) best = price(first, last);
        if (window && window->start == runs[first].start && window->length == length)
          chosen = price(first, last);
      }
    }
    ASSERT_EQ(window.has_value(), best >= 0) << round;
    if (!window) continue;
    ++found;
    ASSERT_GE(window->length, wanted);
    ASSERT_GE(chosen, 0) << "not a window of whole runs without fixed ones";
    ASSERT_NEAR(chosen, best, 1e-6) << round;
  }
  EXPECT_GT(found, 500);
}

}  // namespace
}  // namespace terrace
