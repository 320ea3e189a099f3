#include "terrace/paged_kv_view.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "lib/base/status_macros.h"
#include "lib/codec/payload_layout.h"

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
  // Steps 0..last of `stride` bytes.
  void Add(int64_t stride, Wide last) {
    const Wide farthest = Wide{stride} * last;
    lowest += std::min<Wide>(farthest, 0);
    highest += std::max<Wide>(farthest, 0);
  }
};

// The part of the block table that num_tokens uses.
std::span<const int64_t> UsedBlocks(const PagedKvView& view) {
  const bool partly = view.num_tokens % view.tokens_per_block != 0;
  return view.block_table.first(view.num_tokens / view.tokens_per_block + (partly ? 1 : 0));
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

Status ValidateBlocksDiffer(std::span<const int64_t> blocks) {
  std::vector<int64_t> used;
  std::ranges::copy_if(blocks, std::back_inserter(used), [](int64_t block) { return block >= 0; });
  std::ranges::sort(used);
  const auto twice = std::ranges::adjacent_find(used);
  if (twice == used.end()) return OkStatus();
  return Bad("block_table", std::to_string(*twice) + " twice", "each block once in a destination");
}

// Necessary (not sufficient) for a destination of which no two bytes are the same one.
Status ValidateApart(const PlaneView& plane, const std::string& where, const PagedKvView& view,
                     uint32_t num_layers) {
  const auto apart = [&](const char* field, int64_t stride, bool used) {
    const Wide distance = stride < 0 ? -Wide{stride} : Wide{stride};
    if (!used || distance >= plane.run_bytes) return OkStatus();
    return Bad(where + "." + field, std::to_string(stride),
               "run_bytes (" + std::to_string(plane.run_bytes) + ") and more in a destination");
  };
  TERRACE_RETURN_IF_ERROR(
      apart("layer_stride", plane.layer_stride, num_layers > 1 && plane.layer_bases.empty()));
  TERRACE_RETURN_IF_ERROR(apart("block_stride", plane.block_stride, view.num_tokens > view.tokens_per_block));
  TERRACE_RETURN_IF_ERROR(
      apart("token_stride", plane.token_stride, view.num_tokens > 1 && view.tokens_per_block > 1));
  return apart("head_stride", plane.head_stride, plane.num_heads > 1);
}

// Bases of an entry for `num_layers` layers, `reach` what is reached from each.
Status ValidateBases(const PlaneView& plane, const std::string& where, uint32_t num_layers, Reach reach) {
  const bool single = plane.layer_bases.empty();
  if (!single && plane.layer_bases.size() != num_layers) {
    return Bad(where + ".layer_bases", std::to_string(plane.layer_bases.size()) + " entries",
               "none or " + std::to_string(num_layers));
  }
  if (single) reach.Add(plane.layer_stride, num_layers - 1);
  const std::span<std::byte* const> bases = single ? std::span(&plane.base, 1) : plane.layer_bases;
  for (size_t i = 0; i < bases.size(); ++i) {
    const std::string name = where + (single ? ".base" : ".layer_bases[" + std::to_string(i) + "]");
    if (bases[i] == nullptr) return Bad(name, "null", "the address of memory");
    const auto address = static_cast<Wide>(reinterpret_cast<uintptr_t>(bases[i]));
    if (address + reach.lowest < 0 || address + reach.highest > std::numeric_limits<int64_t>::max()) {
      return Bad(name, std::to_string(reinterpret_cast<uintptr_t>(bases[i])),
                 "one from which strides and blocks stay within the address space");
    }
  }
  return OkStatus();
}

Status ValidatePlane(const PagedKvView& view, size_t index, const PayloadLayout& layout,
                     bool is_destination) {
  const PlaneView& plane = view.planes[index];
  const std::string where = "planes[" + std::to_string(index) + "]";
  const uint64_t bytes_per_token = layout.all_planes()[index].bytes_per_token;
  if (uint64_t{plane.num_heads} * plane.run_bytes != bytes_per_token) {
    return Bad(where + ".num_heads * run_bytes",
               std::to_string(plane.num_heads) + " * " + std::to_string(plane.run_bytes),
               std::to_string(bytes_per_token) + ", the plane's bytes per token in this part");
  }
  const uint32_t num_layers = view.planes.size() == layout.all_planes().size() ? 1 : layout.num_layers();
  if (is_destination) TERRACE_RETURN_IF_ERROR(ValidateApart(plane, where, view, num_layers));
  int64_t last_block = 0;
  for (const int64_t block : UsedBlocks(view)) last_block = std::max(last_block, block);
  Reach reach;
  reach.Add(plane.block_stride, last_block);
  reach.Add(plane.token_stride, view.tokens_per_block - 1);
  reach.Add(plane.head_stride, plane.num_heads - 1);
  reach.highest += plane.run_bytes;
  return ValidateBases(plane, where, num_layers, reach);
}

}  // namespace

Status PagedKvView::Validate(const KvSpec& spec, bool is_destination) const {
  const PayloadLayout layout(spec, part);
  TERRACE_RETURN_IF_ERROR(ValidatePart(*this, spec, layout));
  TERRACE_RETURN_IF_ERROR(ValidateTokens(*this));
  if (is_destination) TERRACE_RETURN_IF_ERROR(ValidateBlocksDiffer(UsedBlocks(*this)));
  for (size_t i = 0; i < planes.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(ValidatePlane(*this, i, layout, is_destination));
  }
  return OkStatus();
}

}  // namespace terrace
