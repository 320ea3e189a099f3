// PayloadLayout: where layers and planes lie in a canonical payload of one part:
//
//   [layer][plane][token][bytes_per_token]
//
//   plane p of layer l of a payload of n tokens:  [n * begin(l, p), n * (begin(l, p) + bytes_per_token(l,
//   p))) begin(l, p) = the sum of bytes_per_token over all planes before it
//
// Layers are counted from the part's first one. Made once per part, then used for payloads of any number of
// tokens. Immutable; safe everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "terrace/kv_spec.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

// Bytes [offset, offset + length) of a payload.
struct PayloadRange {
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct PlanePlace {
  uint64_t begin_per_token = 0;  // times the payload's number of tokens: where the plane begins
  uint64_t bytes_per_token = 0;
};

class PayloadLayout {
 public:
  // Without layers where the spec is opaque or the part holds none. `spec` is valid.
  PayloadLayout(const KvSpec& spec, ObjectPart part);

  ObjectPart part() const { return part_; }
  // Of a chunk's tokens, those whose bytes its payload holds: all, or a state's one; see
  // KvSpec::PayloadTokens.
  TokenRange HeldTokens(TokenRange chunk) const {
    return {is_state_ && chunk.begin < chunk.end ? chunk.end - 1 : chunk.begin, chunk.end};
  }
  uint32_t num_layers() const { return static_cast<uint32_t>(layer_begin_.size() - 1); }
  std::span<const PlanePlace> planes(uint32_t layer) const {
    return std::span(planes_).subspan(layer_begin_[layer], layer_begin_[layer + 1] - layer_begin_[layer]);
  }
  std::span<const PlanePlace> all_planes() const { return planes_; }  // layers in order, of each the planes
  // Each layer has the first one's number of planes, with the same bytes per token.
  bool is_uniform() const { return is_uniform_; }
  uint64_t bytes_per_token() const {
    return planes_.empty() ? 0 : planes_.back().begin_per_token + planes_.back().bytes_per_token;
  }
  // Of layers [begin, end) in a payload of `num_tokens` tokens.
  PayloadRange LayerRange(uint32_t begin, uint32_t end, uint64_t num_tokens) const;

 private:
  ObjectPart part_;
  std::vector<PlanePlace> planes_;
  std::vector<uint32_t> layer_begin_;  // index of each layer's first plane, and one past the last layer's
  bool is_uniform_ = true;
  bool is_state_ = false;
};

}  // namespace terrace
