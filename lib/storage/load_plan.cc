#include "lib/storage/load_plan.h"

#include <algorithm>
#include <map>

namespace terrace {
namespace {

constexpr uint64_t kMinReadBytes = uint64_t{1} << 20;
// Of one layer group over all objects: with few objects larger reads, so that a device has enough to do.
constexpr uint64_t kMinGroupBytes = uint64_t{4} << 20;

uint64_t NumTokens(const KvSpec& spec, const LeaseItem& item) {
  return spec.PayloadTokens(item.id.part, item.payload_tokens.end - item.payload_tokens.begin);
}

// A part that the load asks for: which of the model's layers it holds, and how large they are.
struct LoadedPart {
  PayloadLayout layout;
  std::vector<uint32_t> model_layers;  // of each of the part's layers
  uint64_t max_tokens = 0;             // of an object

  LoadedPart(const KvSpec& spec, ObjectPart part) : layout(spec, part) {
    for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
      if (spec.LayerBytesPerToken(layer, part) > 0) model_layers.push_back(layer);
    }
  }

  // The part's layers among the model's layers [begin, end).
  LayerSpan Within(uint32_t begin, uint32_t end) const {
    const auto index_of = [this](uint32_t layer) {
      return static_cast<uint32_t>(std::lower_bound(model_layers.begin(), model_layers.end(), layer) -
                                   model_layers.begin());
    };
    return {index_of(begin), index_of(end)};
  }
};

using LoadedParts = std::map<ObjectPart, LoadedPart>;

// Boundaries of the layer groups in the model's layers, the last one the number of layers.
std::vector<uint32_t> GroupEnds(uint32_t num_layers, const LoadedParts& parts, size_t num_items) {
  const uint64_t wanted = std::max(kMinReadBytes, kMinGroupBytes / std::max<size_t>(num_items, 1));
  const auto read_bytes = [&](uint32_t begin, uint32_t end) {
    uint64_t largest = 0;
    for (const auto& [id, part] : parts) {
      const LayerSpan layers = part.Within(begin, end);
      largest = std::max(largest, part.layout.LayerRange(layers.begin, layers.end, part.max_tokens).length);
    }
    return largest;
  };
  std::vector<uint32_t> ends;
  uint32_t begin = 0;
  for (uint32_t end = 1; end <= num_layers; ++end) {
    if (read_bytes(begin, end) < wanted && end < num_layers) continue;
    ends.push_back(end);
    begin = end;
  }
  // What is left over is no read of its own.
  if (ends.size() > 1 && read_bytes(ends[ends.size() - 2], num_layers) < wanted) ends.erase(ends.end() - 2);
  return ends;
}

}  // namespace

std::vector<LoadUnit> PlanChunkMajor(const KvSpec& spec, std::span<const LeaseItem> items) {
  std::map<ObjectPart, uint32_t> layers;
  std::vector<LoadUnit> units(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const ObjectPart part = items[i].id.part;
    const auto [known, is_new] = layers.try_emplace(part, 0);
    if (is_new) known->second = PayloadLayout(spec, part).num_layers();
    units[i].item = i;
    units[i].payload_end = items[i].meta.payload_bytes;
    units[i].layers = {0, known->second};
  }
  return units;
}

std::vector<LoadUnit> PlanLayerMajor(const KvSpec& spec, std::span<const LeaseItem> items) {
  const auto num_layers = static_cast<uint32_t>(spec.layers.size());
  LoadedParts parts;
  for (const LeaseItem& item : items) {
    if (item.remote_tier != LeaseItem::kLocal) continue;
    LoadedPart& part = parts.try_emplace(item.id.part, spec, item.id.part).first->second;
    part.max_tokens = std::max(part.max_tokens, NumTokens(spec, item));
  }
  std::vector<LoadUnit> units;
  uint32_t begin = 0;
  for (const uint32_t end : GroupEnds(num_layers, parts, items.size())) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].remote_tier != LeaseItem::kLocal) {
        const uint32_t part_layers = PayloadLayout(spec, items[i].id.part).num_layers();
        if (begin == 0) units.push_back({.item = i, .layers = {0, part_layers}, .end_layer = end});
        continue;
      }
      const LoadedPart& part = parts.at(items[i].id.part);
      const LayerSpan layers = part.Within(begin, end);
      if (layers.begin == layers.end) continue;
      const PayloadRange range = part.layout.LayerRange(layers.begin, layers.end, NumTokens(spec, items[i]));
      units.push_back({.item = i,
                       .payload_begin = range.offset,
                       .payload_end = range.offset + range.length,
                       .layers = layers,
                       .end_layer = end,
                       .is_first = layers.begin == 0,
                       .is_last = layers.end == part.layout.num_layers()});
    }
    begin = end;
  }
  return units;
}

}  // namespace terrace
