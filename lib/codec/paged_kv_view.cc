#include "terrace/paged_kv_view.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_macros.h"
#include "lib/codec/payload_layout.h"
#include "lib/codec/view_overlap.h"

namespace terrace {
namespace {

__extension__ using Wide = __int128;  // holds every product of a 64-bit stride and a count

Status Bad(const std::string& field, const std::string& value, const std::string& allowed) {
  return InvalidArgumentError("PagedKvView." + field + " is " + value + "; allowed: " + allowed);
}

// What offsets from a plane's base reach, ends included.
struct Reach {
  Wide lowest = 0;
  Wide highest = 0;
  // Steps first..last of `stride` bytes.
  void Add(int64_t stride, Wide first, Wide last) {
    lowest += std::min(stride * first, stride * last);
    highest += std::max(stride * first, stride * last);
  }
};

// Blocks that num_tokens uses, ascending, without the negative ones.
std::vector<int64_t> UsedBlocks(const PagedKvView& view) {
  const bool partly = view.num_tokens % view.tokens_per_block != 0;
  const auto in_use = view.block_table.first(view.num_tokens / view.tokens_per_block + (partly ? 1 : 0));
  std::vector<int64_t> used;
  std::ranges::copy_if(in_use, std::back_inserter(used), [](int64_t block) { return block >= 0; });
  std::ranges::sort(used);
  return used;
}

Status ValidatePart(const PagedKvView& view, const KvSpec& spec, const PayloadLayout& layout) {
  if (spec.payload_form != PayloadForm::kCanonical) {
    return InvalidArgumentError("PagedKvView of an opaque spec; allowed: canonical payloads");
  }
  if (view.part.group >= spec.groups.size()) {
    return Bad("part.group", std::to_string(view.part.group), "below " + std::to_string(spec.groups.size()));
  }
  if (view.part.shard >= spec.num_shards()) {
    return Bad("part.shard", std::to_string(view.part.shard), "below " + std::to_string(spec.num_shards()));
  }
  if (layout.num_layers() == 0) return Bad("part", "a shard without layers of the group", "one with layers");
  const size_t all = layout.all_planes().size();
  const size_t per_layer = layout.planes(0).size();
  if (view.planes.size() == all || (layout.is_uniform() && view.planes.size() == per_layer))
    return OkStatus();
  const std::string per_plane = layout.is_uniform() ? std::to_string(per_layer) + " (one per plane) or " : "";
  return Bad("planes", std::to_string(view.planes.size()) + " entries",
             per_plane + std::to_string(all) + " (one per layer and plane)");
}

Status ValidateTokens(const PagedKvView& view) {
  if (view.tokens_per_block == 0) return Bad("tokens_per_block", "0", "1 and more");
  if (view.num_tokens > std::numeric_limits<uint64_t>::max() - view.first_token) {
    return Bad("num_tokens", std::to_string(view.num_tokens),
               "a sum with first_token (" + std::to_string(view.first_token) + ") within 64 bits");
  }
  const uint64_t entries = view.block_table.size();
  const bool partly = view.num_tokens % view.tokens_per_block != 0;
  if (entries < view.num_tokens / view.tokens_per_block + (partly ? 1 : 0)) {
    return Bad("block_table", std::to_string(entries) + " entries",
               "as many as num_tokens (" + std::to_string(view.num_tokens) + ") needs");
  }
  return OkStatus();
}

Status ValidateBlocksDiffer(std::span<const int64_t> used) {
  const auto twice = std::ranges::adjacent_find(used);
  if (twice == used.end()) return OkStatus();
  return Bad("block_table", std::to_string(*twice) + " twice", "each block once in a destination");
}

uint64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    default:
      return 1;
  }
}

// Checks a view's entries, one after another.
class PlaneValidation {
 public:
  PlaneValidation(const PagedKvView& view, const KvSpec& spec, const PayloadLayout& layout,
                  std::span<const int64_t> blocks)
      : view_(view),
        layout_(layout),
        blocks_(blocks),
        num_layers_(view.planes.size() == layout.all_planes().size() ? 1 : layout.num_layers()) {
    // An entry of all layers has the largest element of them.
    elements_.assign(view.planes.size(), 1);
    size_t place = 0;
    for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
      if (spec.LayerBytesPerToken(layer, view.part) == 0) continue;
      for (const PlaneSpec& plane : spec.layers[layer].planes) {
        uint64_t& element = elements_[place++ % elements_.size()];
        element = std::max(element, ElementBytes(plane.dtype));
      }
    }
    for (const MutableBytes memory : view.memory) {
      const auto begin = reinterpret_cast<uintptr_t>(memory.data());
      memory_.emplace_back(begin, Wide{begin} + memory.size());
    }
    std::ranges::sort(memory_);
  }

  Status Validate(size_t index) {
    plane_ = &view_.planes[index];
    where_ = "planes[" + std::to_string(index) + "]";
    const uint64_t bytes_per_token = layout_.all_planes()[index].bytes_per_token;
    if (uint64_t{plane_->num_heads} * plane_->run_bytes != bytes_per_token) {
      return Bad(where_ + ".num_heads * run_bytes",
                 std::to_string(plane_->num_heads) + " * " + std::to_string(plane_->run_bytes),
                 std::to_string(bytes_per_token) + ", the plane's bytes per token in this part");
    }
    TERRACE_RETURN_IF_ERROR(ValidateElements(elements_[index]));
    Reach reach;
    if (!blocks_.empty()) reach.Add(plane_->block_stride, blocks_.front(), blocks_.back());
    reach.Add(plane_->token_stride, 0, view_.tokens_per_block - 1);
    reach.Add(plane_->head_stride, 0, Wide{plane_->num_heads} - 1);
    reach.highest += plane_->run_bytes;
    return ValidateBases(reach, elements_[index]);
  }

 private:
  Status ValidateElements(uint64_t element) const {
    const auto element_size = static_cast<int64_t>(element);
    const auto whole = [&](const char* field, int64_t bytes, bool in_use) {
      if (!in_use || bytes % element_size == 0) return OkStatus();
      return Bad(where_ + "." + field, std::to_string(bytes),
                 "multiples of " + std::to_string(element) + ", the bytes of the plane's dtype");
    };
    const bool one_base = plane_->layer_bases.empty();
    TERRACE_RETURN_IF_ERROR(whole("run_bytes", plane_->run_bytes, true));
    TERRACE_RETURN_IF_ERROR(whole("head_stride", plane_->head_stride, plane_->num_heads > 1));
    TERRACE_RETURN_IF_ERROR(whole("token_stride", plane_->token_stride, view_.tokens_per_block > 1));
    TERRACE_RETURN_IF_ERROR(whole("block_stride", plane_->block_stride, true));
    return whole("layer_stride", plane_->layer_stride, one_base && num_layers_ > 1);
  }

  // `reach`: of every layer, from its base.
  Status ValidateBases(const Reach& reach, uint64_t element) const {
    const bool single = plane_->layer_bases.empty();
    if (!single && plane_->layer_bases.size() != num_layers_) {
      return Bad(where_ + ".layer_bases", std::to_string(plane_->layer_bases.size()) + " entries",
                 "none or " + std::to_string(num_layers_));
    }
    for (uint32_t layer = 0; layer < num_layers_; ++layer) {
      std::byte* const base = single ? plane_->base : plane_->layer_bases[layer];
      const std::string name = where_ + (single ? ".base" : ".layer_bases[" + std::to_string(layer) + "]");
      if (base == nullptr) return Bad(name, "null", "the address of memory");
      const auto address = reinterpret_cast<uintptr_t>(base);
      if (address % element != 0) {
        return Bad(name, std::to_string(address),
                   "multiples of " + std::to_string(element) + ", the bytes of the plane's dtype");
      }
      const Wide from = single ? Wide{address} + Wide{plane_->layer_stride} * layer : Wide{address};
      if (from + reach.lowest < 0 || from + reach.highest > std::numeric_limits<int64_t>::max()) {
        return Bad(name, std::to_string(address),
                   "one from which strides and blocks stay within the address space");
      }
      if (!IsInMemory(from + reach.lowest, from + reach.highest)) {
        return Bad(name, std::to_string(address) + " (layer " + std::to_string(layer) + ")",
                   "one from which strides and blocks up to " + std::to_string(blocks_.back()) +
                       " stay within one range of PagedKvView.memory");
      }
    }
    return OkStatus();
  }

  bool IsInMemory(Wide begin, Wide end) const {
    if (view_.memory.empty() || blocks_.empty()) return true;
    const auto behind =
        std::ranges::upper_bound(memory_, begin, {}, [](const auto& range) { return range.first; });
    // Ranges that begin before: of engines' memory, which does not overlap, the last one.
    return behind != memory_.begin() && std::prev(behind)->second >= end;
  }

  const PagedKvView& view_;
  const PayloadLayout& layout_;
  const std::span<const int64_t> blocks_;  // used ones, ascending
  const uint32_t num_layers_;              // of each entry
  std::vector<uint64_t> elements_;         // bytes, of each entry's dtype
  std::vector<std::pair<Wide, Wide>> memory_;
  const PlaneView* plane_ = nullptr;
  std::string where_;
};

}  // namespace

Status PagedKvView::Validate(const KvSpec& spec, bool is_destination) const {
  const PayloadLayout layout(spec, part);
  TERRACE_RETURN_IF_ERROR(ValidatePart(*this, spec, layout));
  TERRACE_RETURN_IF_ERROR(ValidateTokens(*this));
  const std::vector<int64_t> used = UsedBlocks(*this);
  if (is_destination) TERRACE_RETURN_IF_ERROR(ValidateBlocksDiffer(used));
  PlaneValidation validation(*this, spec, layout, used);
  for (size_t i = 0; i < planes.size(); ++i) TERRACE_RETURN_IF_ERROR(validation.Validate(i));
  return is_destination ? CheckNoByteTwice(*this, layout, used) : OkStatus();
}

}  // namespace terrace
