// Bytes of one plane in one layer (a Place) are runs at low + sum of index * stride over blocks, tokens and
// heads. Three steps, each sure:
//
// 1. Inside a place, strides must nest: ascending, each at least the bytes that the smaller ones span. Then
// no
//    two of its runs meet. (A lattice may be free of overlaps without nesting; no engine has such a one.)
// 2. Places are told apart in groups. From first to last byte, those that do not touch are apart. Of the
//    rest, where all step by one stride S at the outermost, only the position within S counts: their inner
//    bytes, taken modulo S, do not touch (K and V of a block; layers of a cross-layer block), or are looked
//    at again with the next stride. That costs one sort each.
// 3. What is left (few, of an engine's layouts: none) is compared two by two, exactly: do two runs meet for
//    any indices? A search by descending stride, where nesting leaves a handful of candidates at each step. A
//    common stride of blocks is exact in the block table too: the two blocks must be in it.
#include "lib/codec/view_overlap.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

__extension__ using Wide = __int128;

// What two-by-two comparisons may cost in all: some milliseconds at the worst.
constexpr int64_t kMaxSteps = int64_t{1} << 18;

struct Dimension {
  const char* field;
  int64_t stride = 0;  // without its sign
  int64_t count = 0;
  bool is_reversed = false;
  bool is_block = false;
};

// What all layers of an entry share. Dimensions of more than one step, strides descending; spans[i]: bytes
// from the first to the last one of dimensions i and up; the last is run_bytes.
struct Shape {
  std::array<Dimension, 3> dimensions;
  size_t num_dimensions = 0;
  std::array<int64_t, 4> spans{};
  int64_t low = 0;  // offset from the base of the lowest byte
};

struct Place {
  size_t entry = 0;
  uint32_t layer = 0;  // of the entry
  int64_t low = 0;     // address of its lowest byte
  int64_t at = 0;      // the same modulo what is being looked at
};

int64_t Distance(int64_t stride) { return stride < 0 ? -stride : stride; }

Result<Shape> ShapeOf(const PagedKvView& view, size_t entry, std::span<const int64_t> blocks) {
  const PlaneView& plane = view.planes[entry];
  const auto tokens = static_cast<int64_t>(std::min<uint64_t>(view.tokens_per_block, view.num_tokens));
  Shape shape;
  const auto add = [&](const char* field, int64_t stride, int64_t first, int64_t last) {
    if (stride < 0) std::swap(first, last);
    shape.low += stride * first;
    const int64_t count = Distance(last - first) + 1;
    if (count == 1) return;
    size_t place = shape.num_dimensions++;  // behind the larger ones
    for (; place > 0 && shape.dimensions[place - 1].stride < Distance(stride); --place)
      shape.dimensions[place] = shape.dimensions[place - 1];
    shape.dimensions[place] = {.field = field,
                               .stride = Distance(stride),
                               .count = count,
                               .is_reversed = stride < 0,
                               .is_block = field[0] == 'b'};
  };
  add("block_stride", plane.block_stride, blocks.front(), blocks.back());
  add("token_stride", plane.token_stride, 0, tokens - 1);
  add("head_stride", plane.head_stride, 0, int64_t{plane.num_heads} - 1);
  const std::span used = std::span(shape.dimensions).first(shape.num_dimensions);
  shape.spans[used.size()] = plane.run_bytes;
  for (size_t i = used.size(); i-- > 0;) {
    const int64_t inner = shape.spans[i + 1];
    if (used[i].stride < inner) {
      return InvalidArgumentError("PagedKvView.planes[" + std::to_string(entry) + "]." + used[i].field +
                                  " is " +
                                  std::to_string(used[i].is_reversed ? -used[i].stride : used[i].stride) +
                                  "; allowed: " + std::to_string(inner) +
                                  " and more in a destination, which a run and the smaller strides span");
    }
    shape.spans[i] = used[i].stride * (used[i].count - 1) + inner;
  }
  return shape;
}

class OverlapCheck {
 public:
  OverlapCheck(const PagedKvView& view, std::span<const int64_t> blocks) : view_(view), blocks_(blocks) {}

  Status Run(const PayloadLayout& layout) {
    const uint32_t layers = view_.planes.size() == layout.all_planes().size() ? 1 : layout.num_layers();
    std::vector<Place> places;
    for (size_t entry = 0; entry < view_.planes.size(); ++entry) {
      TERRACE_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(view_, entry, blocks_));
      shapes_.push_back(shape);
      const PlaneView& plane = view_.planes[entry];
      for (uint32_t layer = 0; layer < layers; ++layer) {
        std::byte* const base = plane.layer_bases.empty() ? plane.base : plane.layer_bases[layer];
        Wide low = Wide{reinterpret_cast<uintptr_t>(base)} + shape.low;
        if (plane.layer_bases.empty()) low += Wide{plane.layer_stride} * layer;
        places.push_back({.entry = entry, .layer = layer, .low = static_cast<int64_t>(low)});
        places.back().at = places.back().low;
      }
    }
    return Split(places, 0, 0);
  }

 private:
  const Shape& ShapeAt(const Place& place) const { return shapes_[place.entry]; }
  int64_t SpanAt(const Place& place, size_t level) const { return ShapeAt(place).spans[level]; }

  // The places' dimensions from `level` on begin at `at`; what does not touch there is apart. `modulus`: `at`
  // is modulo this; 0 = it is an address.
  Status Split(std::span<Place> places, size_t level, int64_t modulus) {
    std::ranges::sort(places, [](const Place& a, const Place& b) { return a.at < b.at; });
    if (modulus != 0 && !StartBehindAGap(places, level, modulus)) return Descend(places, level);
    for (size_t begin = 0; begin < places.size();) {
      int64_t end_at = places[begin].at + SpanAt(places[begin], level);
      size_t end = begin + 1;
      for (; end < places.size() && places[end].at < end_at; ++end)
        end_at = std::max(end_at, places[end].at + SpanAt(places[end], level));
      if (end - begin > 1) TERRACE_RETURN_IF_ERROR(Descend(places.subspan(begin, end - begin), level));
      begin = end;
    }
    return OkStatus();
  }

  // In a circle of `modulus` bytes there is no first place, but what follows a gap. False: there is no gap.
  bool StartBehindAGap(std::span<Place> places, size_t level, int64_t modulus) const {
    const auto end_of = [&](const Place& place) { return place.at + SpanAt(place, level); };
    int64_t reached = 0;  // by those that go over the end
    for (const Place& place : places) reached = std::max(reached, end_of(place) - modulus);
    size_t first = 0;
    for (; first < places.size() && places[first].at < reached; ++first)
      reached = std::max(reached, end_of(places[first]));
    if (first == places.size()) return false;
    for (Place& place : places.first(first)) place.at += modulus;
    std::ranges::rotate(places, places.begin() + static_cast<std::ptrdiff_t>(first));
    return true;
  }

  // These touch at `level`: by the position within their common stride, if they have one, else two by two.
  Status Descend(std::span<Place> places, size_t level) {
    const Shape& first = ShapeAt(places.front());
    const bool is_common = std::ranges::all_of(places, [&](const Place& place) {
      const Shape& shape = ShapeAt(place);
      if (level >= shape.num_dimensions || level >= first.num_dimensions) return false;
      const int64_t stride = first.dimensions[level].stride;
      if (shape.dimensions[level].stride != stride) return false;
      // Positions within a stride mean something where larger strides are multiples of it.
      return std::all_of(shape.dimensions.begin(), shape.dimensions.begin() + static_cast<int>(level),
                         [&](const Dimension& outer) { return outer.stride % stride == 0; });
    });
    if (!is_common) return CompareAll(places);
    const int64_t stride = first.dimensions[level].stride;
    for (Place& place : places) place.at = place.low % stride;
    return Split(places, level + 1, stride);
  }

  Status CompareAll(std::span<const Place> places) {
    for (size_t i = 1; i < places.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const bool in_order =
            std::pair(places[j].entry, places[j].layer) < std::pair(places[i].entry, places[i].layer);
        TERRACE_RETURN_IF_ERROR(in_order ? Compare(places[j], places[i]) : Compare(places[i], places[j]));
      }
    }
    return OkStatus();
  }

  // A sum of terms, each a stride times an index from a range.
  struct Term {
    Wide stride = 0;
    Wide first = 0;
    Wide last = 0;
    bool is_block = false;  // the index is the difference of two blocks of the table
  };
  struct Sum {
    std::array<Term, 6> terms;  // strides descending
    size_t num_terms = 0;
    std::array<Wide, 7> least{};  // of the terms from here on
    std::array<Wide, 7> most{};
    Wide first = 0;  // looked for: a value in [first, last]
    Wide last = 0;
  };

  // Addresses of runs of `a` minus those of `b`.
  static Sum DifferenceOf(const Shape& a, const Shape& b) {
    Sum sum;
    std::array<bool, 3> is_paired{};
    for (size_t i = 0; i < a.num_dimensions; ++i) {
      const Dimension& of_a = a.dimensions[i];
      Term term{.stride = of_a.stride, .first = 0, .last = of_a.count - 1};
      for (size_t j = 0; j < b.num_dimensions; ++j) {
        const Dimension& of_b = b.dimensions[j];
        if (of_b.stride != of_a.stride) continue;
        is_paired[j] = true;
        term.first = 1 - of_b.count;
        term.is_block = of_a.is_block && of_b.is_block && of_a.is_reversed == of_b.is_reversed;
      }
      sum.terms[sum.num_terms++] = term;
    }
    for (size_t j = 0; j < b.num_dimensions; ++j) {
      if (!is_paired[j])
        sum.terms[sum.num_terms++] = {.stride = b.dimensions[j].stride, .first = 1 - b.dimensions[j].count};
    }
    std::sort(sum.terms.begin(), sum.terms.begin() + static_cast<int>(sum.num_terms),
              [](const Term& x, const Term& y) { return x.stride > y.stride; });
    for (size_t i = sum.num_terms; i-- > 0;) {
      sum.least[i] = sum.least[i + 1] + sum.terms[i].stride * sum.terms[i].first;
      sum.most[i] = sum.most[i + 1] + sum.terms[i].stride * sum.terms[i].last;
    }
    sum.first = 1 - a.spans[a.num_dimensions];
    sum.last = b.spans[b.num_dimensions] - 1;
    return sum;
  }

  // `b` is the later one of the view.
  Status Compare(const Place& a, const Place& b) {
    bool meet = false;
    if (--steps_left_ > 0 && a.low < b.low + SpanAt(b, 0) && b.low < a.low + SpanAt(a, 0)) {
      const Sum sum = DifferenceOf(ShapeAt(a), ShapeAt(b));
      meet = Reaches(sum, 0, Wide{a.low} - b.low, 0);
    }
    if (!meet && steps_left_ > 0) return OkStatus();
    const std::string other =
        "planes[" + std::to_string(a.entry) + "], layer " + std::to_string(a.layer) + " of it";
    return InvalidArgumentError(
        "PagedKvView." + BaseOf(b) + "; allowed in a destination: one with bytes that " +
        (meet ? "are not those of " + other : "can be told from those of " + other + " in fewer steps"));
  }

  // Whether `value` and the terms from `i` on can be in the sum's range. `block`: the difference of blocks so
  // far.
  bool Reaches(const Sum& sum, size_t i, Wide value, Wide block) {
    if (--steps_left_ <= 0) return false;
    if (i == sum.num_terms) return value >= sum.first && value <= sum.last && HasBlocksApart(block);
    const Term& term = sum.terms[i];
    const auto floor = [&](Wide x) {
      return x >= 0 ? x / term.stride : -((-x + term.stride - 1) / term.stride);
    };
    const Wide first = std::max(term.first, -floor(-(sum.first - sum.most[i + 1] - value)));
    const Wide last = std::min(term.last, floor(sum.last - sum.least[i + 1] - value));
    for (Wide index = first; index <= last && steps_left_ > 0; ++index) {
      if (Reaches(sum, i + 1, value + index * term.stride, term.is_block ? index : block)) return true;
    }
    return false;
  }

  bool HasBlocksApart(Wide difference) {
    const Wide distance = difference < 0 ? -difference : difference;
    if (distance == 0) return true;
    steps_left_ -= static_cast<int64_t>(blocks_.size() / 4);
    for (size_t low = 0, high = 0; high < blocks_.size();) {
      const Wide apart = Wide{blocks_[high]} - blocks_[low];
      if (apart == distance) return true;
      ++(apart < distance ? high : low);
    }
    return false;
  }

  std::string BaseOf(const Place& place) const {
    const PlaneView& plane = view_.planes[place.entry];
    const std::string where = "planes[" + std::to_string(place.entry) + "].";
    if (plane.layer_bases.empty()) {
      if (place.layer > 0) return where + "layer_stride is " + std::to_string(plane.layer_stride);
      return where + "base is " + std::to_string(reinterpret_cast<uintptr_t>(plane.base));
    }
    return where + "layer_bases[" + std::to_string(place.layer) + "] is " +
           std::to_string(reinterpret_cast<uintptr_t>(plane.layer_bases[place.layer]));
  }

  const PagedKvView& view_;
  const std::span<const int64_t> blocks_;
  std::vector<Shape> shapes_;  // one per entry
  int64_t steps_left_ = kMaxSteps;
};

}  // namespace

Status CheckNoByteTwice(const PagedKvView& view, const PayloadLayout& layout,
                        std::span<const int64_t> blocks) {
  if (blocks.empty()) return OkStatus();  // nothing is named
  return OverlapCheck(view, blocks).Run(layout);
}

}  // namespace terrace
