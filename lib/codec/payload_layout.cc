#include "lib/codec/payload_layout.h"

#include <algorithm>

#include "lib/base/check.h"

namespace terrace {

PayloadLayout::PayloadLayout(const KvSpec& spec, ObjectPart part) : part_(part), layer_begin_{0} {
  is_state_ = part.group < spec.groups.size() && spec.groups[part.group].rule == Retention::kState;
  if (spec.payload_form != PayloadForm::kCanonical) return;
  uint64_t begin = 0;
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (spec.LayerBytesPerToken(layer, part) == 0) continue;
    for (uint32_t plane = 0; plane < spec.layers[layer].planes.size(); ++plane) {
      const uint64_t bytes = spec.PlaneBytesPerToken(layer, plane, part);
      planes_.push_back({.begin_per_token = begin, .bytes_per_token = bytes});
      begin += bytes;
    }
    layer_begin_.push_back(static_cast<uint32_t>(planes_.size()));
  }
  const auto same_bytes = [](const PlanePlace& a, const PlanePlace& b) {
    return a.bytes_per_token == b.bytes_per_token;
  };
  for (uint32_t layer = 1; layer < num_layers() && is_uniform_; ++layer) {
    is_uniform_ = std::ranges::equal(planes(layer), planes(0), same_bytes);
  }
}

PayloadRange PayloadLayout::LayerRange(uint32_t begin, uint32_t end, uint64_t num_tokens) const {
  TERRACE_CHECK(begin <= end && end <= num_layers()) << begin << " " << end << " of " << num_layers();
  const auto begin_per_token = [this](uint32_t layer) {
    return layer < num_layers() ? planes(layer).front().begin_per_token : bytes_per_token();
  };
  const uint64_t first = begin_per_token(begin);
  return {.offset = num_tokens * first, .length = num_tokens * (begin_per_token(end) - first)};
}

}  // namespace terrace
