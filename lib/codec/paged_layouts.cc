#include "terrace/paged_layouts.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

Status Bad(const std::string& what, uint64_t value, const std::string& allowed) {
  return InvalidArgumentError("PagedGeometry." + what + " is " + std::to_string(value) +
                              "; allowed: " + allowed);
}

// Sizes that were checked, in the type that strides have.
struct Sizes {
  int64_t layers = 0;
  int64_t blocks = 0;
  int64_t tokens = 0;  // of a block
  int64_t heads = 0;
  int64_t k_bytes = 0;  // of a head
  int64_t v_bytes = 0;
  uint64_t element_bytes = 1;
  // A block of one plane in one layer.
  int64_t KBlock() const { return tokens * heads * k_bytes; }
  int64_t VBlock() const { return tokens * heads * v_bytes; }
};

enum class Values { kLikeK, kOwnSize, kNone };

Result<Sizes> CheckSizes(const PagedGeometry& geometry, Values values) {
  const std::pair<const char*, uint64_t> nonzero[] = {
      {"num_layers", geometry.num_layers},
      {"num_blocks", geometry.num_blocks},
      {"tokens_per_block", geometry.tokens_per_block},
      {"num_heads", geometry.num_heads},
      {"head_bytes", geometry.head_bytes},
  };
  for (const auto& [name, value] : nonzero) {
    if (value == 0) return Bad(name, 0, "1 and more");
  }
  const uint32_t element = geometry.element_bytes;
  if (element != 1 && element != 2 && element != 4 && element != 8)
    return Bad("element_bytes", element, "1, 2, 4, 8");
  const uint32_t v_bytes = geometry.v_head_bytes == 0 ? geometry.head_bytes : geometry.v_head_bytes;
  for (const auto& [name, bytes] :
       {std::pair{"head_bytes", geometry.head_bytes}, {"v_head_bytes", v_bytes}}) {
    if (bytes % element != 0)
      return Bad(name, bytes, "multiples of element_bytes (" + std::to_string(element) + ")");
  }
  if (values == Values::kNone && geometry.num_heads != 1)
    return Bad("num_heads", geometry.num_heads, "1, latents are of all heads");
  if (values == Values::kNone && geometry.v_head_bytes != 0)
    return Bad("v_head_bytes", geometry.v_head_bytes, "0, latents have no V");
  if (values == Values::kLikeK && v_bytes != geometry.head_bytes)
    return Bad("v_head_bytes", v_bytes, "0 or head_bytes: K and V are slices of one tensor here");
  // The whole of it, all layers: no stride or offset is larger. uint32 sizes first: three of them may already
  // be beyond 64 bits.
  uint64_t bytes = 1;
  const uint64_t of_head = uint64_t{geometry.head_bytes} + (values == Values::kNone ? 0 : v_bytes);
  for (const uint64_t factor : {of_head, uint64_t{geometry.num_heads}, uint64_t{geometry.tokens_per_block},
                                uint64_t{geometry.num_layers}, geometry.num_blocks}) {
    if (factor > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / bytes)
      return Bad("num_blocks", geometry.num_blocks, "as many as keep all bytes below 2^63");
    bytes *= factor;
  }
  return Sizes{.layers = geometry.num_layers,
               .blocks = static_cast<int64_t>(geometry.num_blocks),
               .tokens = geometry.tokens_per_block,
               .heads = geometry.num_heads,
               .k_bytes = geometry.head_bytes,
               .v_bytes = v_bytes,
               .element_bytes = element};
}

// One piece of an engine's memory: not null, long enough, aligned.
Status CheckMemory(const Sizes& sizes, const std::string& name, MutableBytes memory, int64_t needed) {
  if (memory.data() == nullptr)
    return InvalidArgumentError(name + " is null; allowed: the address of memory");
  if (memory.size() < static_cast<uint64_t>(needed)) {
    return InvalidArgumentError(name + " has " + std::to_string(memory.size()) + " bytes; allowed: " +
                                std::to_string(needed) + " and more, which the geometry needs");
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  if (address % sizes.element_bytes != 0) {
    return InvalidArgumentError(name + " is at " + std::to_string(address) +
                                "; allowed: multiples of element_bytes (" +
                                std::to_string(sizes.element_bytes) + ")");
  }
  return OkStatus();
}

// One per layer, or (two lists) one of K and one of V per layer, of which none may share bytes.
struct LayerMemory {
  const char* name;
  std::span<const MutableBytes> layers;
  int64_t needed = 0;
};

Status CheckLayers(const Sizes& sizes, std::span<const LayerMemory> lists) {
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  for (const LayerMemory& list : lists) {
    if (list.layers.size() != static_cast<uint64_t>(sizes.layers)) {
      return InvalidArgumentError(std::string(list.name) + " has " + std::to_string(list.layers.size()) +
                                  " entries; allowed: num_layers (" + std::to_string(sizes.layers) + ")");
    }
    for (size_t i = 0; i < list.layers.size(); ++i) {
      const std::string name = std::string(list.name) + "[" + std::to_string(i) + "]";
      TERRACE_RETURN_IF_ERROR(CheckMemory(sizes, name, list.layers[i], list.needed));
      const auto begin = reinterpret_cast<uintptr_t>(list.layers[i].data());
      ranges.emplace_back(begin, begin + static_cast<uint64_t>(list.needed));
    }
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first >= ranges[i - 1].second) continue;
    return InvalidArgumentError(std::string(lists.back().name) + ": the layer's memory at " +
                                std::to_string(ranges[i].first) +
                                " overlaps another one's; allowed: memory of its own for each");
  }
  return OkStatus();
}

// Of a plane that is dense inside its blocks.
PlaneView Strides(const Sizes& sizes, int64_t head_bytes, HeadOrder order, int64_t block_stride) {
  PlaneView view{.block_stride = block_stride,
                 .num_heads = static_cast<uint32_t>(sizes.heads),
                 .run_bytes = static_cast<uint32_t>(head_bytes)};
  const bool tokens_first = order == HeadOrder::kTokensFirst;
  view.token_stride = tokens_first ? sizes.heads * head_bytes : head_bytes;
  view.head_stride = tokens_first ? head_bytes : sizes.tokens * head_bytes;
  return view;
}

std::vector<std::byte*> Bases(std::span<const MutableBytes> layers, int64_t offset) {
  std::vector<std::byte*> bases;
  for (const MutableBytes layer : layers) bases.push_back(layer.data() + offset);
  return bases;
}

Status CheckOrder(HeadOrder order) {
  if (order == HeadOrder::kTokensFirst || order == HeadOrder::kHeadsFirst) return OkStatus();
  return InvalidArgumentError("HeadOrder is " + std::to_string(static_cast<int>(order)) +
                              "; allowed: kTokensFirst, kHeadsFirst");
}

// K and V of a layer in one tensor: all blocks of K, then those of V, or each block's V beside its K.
Result<PagedPlanes> TensorPerLayer(const PagedGeometry& geometry, std::span<const MutableBytes> layers,
                                   HeadOrder order, bool v_is_beside_k) {
  TERRACE_RETURN_IF_ERROR(CheckOrder(order));
  TERRACE_ASSIGN_OR_RETURN(const Sizes sizes, CheckSizes(geometry, Values::kLikeK));
  const int64_t block = sizes.KBlock();
  const LayerMemory memory{"layers", layers, 2 * sizes.blocks * block};
  TERRACE_RETURN_IF_ERROR(CheckLayers(sizes, {&memory, 1}));
  const PlaneView strides = Strides(sizes, sizes.k_bytes, order, v_is_beside_k ? 2 * block : block);
  PagedPlanes planes;
  planes.Add(strides, Bases(layers, 0));
  planes.Add(strides, Bases(layers, v_is_beside_k ? block : sizes.blocks * block));
  return planes;
}

}  // namespace

void PagedPlanes::Add(const PlaneView& strides, std::vector<std::byte*> layer_bases) {
  layer_bases_.push_back(std::move(layer_bases));
  planes_.push_back(strides);
  planes_.back().layer_bases = layer_bases_.back();  // its bytes stay where they are when the owner moves
  planes_.back().base = nullptr;
}

void PagedPlanes::Add(const PlaneView& plane) {
  if (!plane.layer_bases.empty()) return Add(plane, {plane.layer_bases.begin(), plane.layer_bases.end()});
  planes_.push_back(plane);
}

void PagedPlanes::Append(PagedPlanes more) {
  planes_.insert(planes_.end(), more.planes_.begin(), more.planes_.end());
  for (std::vector<std::byte*>& bases : more.layer_bases_) layer_bases_.push_back(std::move(bases));
}

Result<PagedPlanes> FlashAttentionPlanes(const PagedGeometry& geometry, std::span<const MutableBytes> layers,
                                         HeadOrder order) {
  return TensorPerLayer(geometry, layers, order, /*v_is_beside_k=*/false);
}

Result<PagedPlanes> FlashInferPlanes(const PagedGeometry& geometry, std::span<const MutableBytes> layers,
                                     HeadOrder order) {
  return TensorPerLayer(geometry, layers, order, /*v_is_beside_k=*/true);
}

Result<PagedPlanes> CrossLayerPlanes(const PagedGeometry& geometry, MutableBytes memory, HeadOrder order) {
  TERRACE_RETURN_IF_ERROR(CheckOrder(order));
  TERRACE_ASSIGN_OR_RETURN(const Sizes sizes, CheckSizes(geometry, Values::kLikeK));
  const int64_t block = sizes.KBlock();
  const int64_t of_all_layers = 2 * sizes.layers * block;
  TERRACE_RETURN_IF_ERROR(CheckMemory(sizes, "memory", memory, sizes.blocks * of_all_layers));
  PagedPlanes planes;
  for (const int64_t kv : {0, 1}) {
    PlaneView plane = Strides(sizes, sizes.k_bytes, order, of_all_layers);
    plane.base = memory.data() + kv * block;
    plane.layer_stride = 2 * block;
    planes.Add(plane);
  }
  return planes;
}

Result<PagedPlanes> FusedPlanes(const PagedGeometry& geometry, std::span<const MutableBytes> layers) {
  TERRACE_ASSIGN_OR_RETURN(const Sizes sizes, CheckSizes(geometry, Values::kOwnSize));
  const int64_t block = sizes.KBlock() + sizes.VBlock();
  const LayerMemory memory{"layers", layers, sizes.blocks * block};
  TERRACE_RETURN_IF_ERROR(CheckLayers(sizes, {&memory, 1}));
  const int64_t token = sizes.k_bytes + sizes.v_bytes;
  PlaneView view{.block_stride = block,
                 .token_stride = token,
                 .head_stride = sizes.tokens * token,
                 .num_heads = geometry.num_heads,
                 .run_bytes = static_cast<uint32_t>(sizes.k_bytes)};
  PagedPlanes planes;
  planes.Add(view, Bases(layers, 0));
  view.run_bytes = static_cast<uint32_t>(sizes.v_bytes);
  planes.Add(view, Bases(layers, sizes.k_bytes));
  return planes;
}

Result<PagedPlanes> KAndVApartPlanes(const PagedGeometry& geometry, std::span<const MutableBytes> k_layers,
                                     std::span<const MutableBytes> v_layers) {
  TERRACE_ASSIGN_OR_RETURN(const Sizes sizes, CheckSizes(geometry, Values::kOwnSize));
  const LayerMemory memory[] = {{"k_layers", k_layers, sizes.blocks * sizes.KBlock()},
                                {"v_layers", v_layers, sizes.blocks * sizes.VBlock()}};
  TERRACE_RETURN_IF_ERROR(CheckLayers(sizes, memory));
  PagedPlanes planes;
  planes.Add(Strides(sizes, sizes.k_bytes, HeadOrder::kTokensFirst, sizes.KBlock()), Bases(k_layers, 0));
  planes.Add(Strides(sizes, sizes.v_bytes, HeadOrder::kTokensFirst, sizes.VBlock()), Bases(v_layers, 0));
  return planes;
}

Result<PagedPlanes> LatentPlanes(const PagedGeometry& geometry, std::span<const MutableBytes> layers) {
  TERRACE_ASSIGN_OR_RETURN(const Sizes sizes, CheckSizes(geometry, Values::kNone));
  const LayerMemory memory{"layers", layers, sizes.blocks * sizes.KBlock()};
  TERRACE_RETURN_IF_ERROR(CheckLayers(sizes, {&memory, 1}));
  PagedPlanes planes;
  planes.Add(Strides(sizes, sizes.k_bytes, HeadOrder::kTokensFirst, sizes.KBlock()), Bases(layers, 0));
  return planes;
}

}  // namespace terrace
