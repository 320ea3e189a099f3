// KvSpec: geometry and identity of the KV that one model run produces, and the root of its keys.
// Everything that changes the bytes of a payload must be in here. A plain value; Validate() before
// use. Many specs live in one manager.
//
// Serialisation (version 1), little-endian, the input of every root, frozen:
//
//   "TKVS" | u16 version = 1 | { u16 number | u32 length | bytes }*      numbers ascending
//
//   1 model_id            bytes
//   2 model_revision      bytes
//   3 payload_form        u8
//   4 payload_version     u32
//   5 tokens_per_chunk    u32
//   6 cut                 u8
//   7 groups              u32 n | n x { u8 rule | u32 window_tokens }
//   8 layers              u32 n | n x { u16 group | u16 n_planes |
//                           n_planes x { u8 kind | u8 dtype | u32 heads | u32 head_dim | u32 bytes_per_token
//                           } }
//   9 engine_extras       bytes
//  10 shards              u32 n | n x { u32 tensor_rank | u32 tensor_size | u32 layer_begin | u32 layer_end }
//                         (left out of the root: a chunk's key does not know how a rank cuts it)
//
// A reader refuses unknown versions and unknown numbers: a field that it does not know could change
// the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "terrace/bytes.h"
#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

enum class PayloadForm : uint8_t {
  kCanonical = 1,  // [layer][plane][token][bytes_per_token]
  kOpaque = 2,     // the engine's own form
};

// How a match that ends inside a chunk may be used.
enum class Cut : uint8_t {
  kNone = 1,    // only whole stored chunks count
  kWhole = 2,   // the whole payload is loaded, the engine cuts it afterwards
  kRanged = 3,  // token ranges can be read (canonical payloads)
};

enum class DType : uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
  kI8 = 6,
  kU8 = 7,
  kI4 = 8,
  kPacked = 9,
};

enum class PlaneKind : uint8_t {
  kK = 1,
  kV = 2,
  kLatent = 3,
  kKScale = 4,
  kVScale = 5,
  kRaw = 6,
};

struct PlaneSpec {
  PlaneKind kind = PlaneKind::kK;
  DType dtype = DType::kF16;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t bytes_per_token = 0;  // of all heads together
  friend bool operator==(const PlaneSpec&, const PlaneSpec&) = default;
};

struct LayerSpec {
  uint16_t group = 0;  // index into KvSpec::groups
  std::vector<PlaneSpec> planes;
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

enum class Retention : uint8_t {
  kFull = 1,    // attention reads all earlier tokens
  kWindow = 2,  // only the last window_tokens
  kState = 3,   // token-independent state: only the boundary matters; as one "token" of a canonical payload
};

struct GroupSpec {
  Retention rule = Retention::kFull;
  uint32_t window_tokens = 0;  // kWindow only
  friend bool operator==(const GroupSpec&, const GroupSpec&) = default;
};

// A rank's part: heads [rank, rank + 1) of tensor_size equal ranges (planes with fewer heads than
// ranks, and latent planes, are replicated), layers [layer_begin, layer_end).
struct ShardSpec {
  uint32_t tensor_rank = 0;
  uint32_t tensor_size = 1;
  uint32_t layer_begin = 0;
  uint32_t layer_end = 0;
  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};

inline constexpr uint32_t kMaxTokensPerChunk = 4096;

struct TERRACE_API KvSpec {
  std::string model_id;  // e.g. hex SHA-256 of the weights; not empty
  std::string model_revision;
  PayloadForm payload_form = PayloadForm::kOpaque;
  uint32_t payload_version = 1;
  uint32_t tokens_per_chunk = 256;  // 1..4,096
  Cut cut = Cut::kNone;
  std::vector<GroupSpec> groups = {GroupSpec{}};
  std::vector<LayerSpec> layers;  // required for canonical payloads, may be empty for opaque ones
  std::vector<ShardSpec> shards;  // empty = one shard that holds everything
  std::string engine_extras;      // bytes; for opaque payloads all that changes them

  friend bool operator==(const KvSpec&, const KvSpec&) = default;

  // kInvalidArgument naming field, value and what is allowed.
  Status Validate() const;
  uint32_t num_shards() const { return shards.empty() ? 1 : static_cast<uint32_t>(shards.size()); }
  // Tells divisions into shards apart: 0 without shards, else the first 32 bits of SHA-256 over field 10 (0
  // taken as 1). Keys and roots do not know the division, so frames and records name it: shard 0 of two ranks
  // is never taken for shard 0 of four.
  uint32_t DivisionTag() const;
  // Bytes of one token of one plane of one layer in this part: all of the plane, or the shard's heads of it.
  // 0 where the part does not hold the layer or the layer has no such plane.
  uint64_t PlaneBytesPerToken(uint32_t layer, uint32_t plane, ObjectPart part) const;
  // The sum over the layer's planes; 0 where the part does not hold the layer.
  uint64_t LayerBytesPerToken(uint32_t layer, ObjectPart part) const;
  // Of a chunk of `num_tokens` tokens, how many a canonical payload of the part holds: all of them; in a
  // state group the last one alone, whose bytes are the state after it.
  uint64_t PayloadTokens(ObjectPart part, uint64_t num_tokens) const;
  // Bytes of a canonical payload of a chunk of `num_tokens` tokens: PayloadTokens times those of a token. 0
  // for opaque specs.
  uint64_t PayloadBytes(ObjectPart part, uint32_t num_tokens) const;
  // All fields. Equal specs give equal bytes in every process and language.
  std::string Serialize() const;
  // Without the shards: what a root hashes.
  std::string SerializeIdentity() const;
  // kDataLoss for anything but the exact output of Serialize or SerializeIdentity.
  static Result<KvSpec> Parse(std::string_view bytes);
};

// A LoRA or similar adapter that is active in a request.
struct Adapter {
  Digest content;
  float scale = 1.0f;
};

// What a roots table keeps of a root: enough to erase by spec or by salt after a restart, never the
// salt itself.
struct RootRecord {
  ChunkKey root;
  std::string spec;      // KvSpec::SerializeIdentity()
  std::string adapters;  // canonical form, see ComputeRoot
  Digest salt_sha256{};  // all zero without a salt
  friend bool operator==(const RootRecord&, const RootRecord&) = default;
};

// root = SHA-256("terrace-root-1\0" | u32 n | spec | u32 n | adapters | u32 n | salt), absent parts with
// n = 0. adapters: {digest[32] | u32 scale bits}*, ordered by digest, then by scale bits; scale 0 (and
// -0) dropped. kInvalidArgument for an invalid spec or a scale that is not finite.
TERRACE_API Result<RootRecord> ComputeRoot(const KvSpec& spec, std::span<const Adapter> adapters,
                                           std::string_view salt);

}  // namespace terrace
