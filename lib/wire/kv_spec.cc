#include "terrace/kv_spec.h"

#include <algorithm>
#include <string>

#include "lib/wire/byte_codec.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TKVS";
constexpr uint16_t kVersion = 1;

enum Field : uint16_t {
  kModelId = 1,
  kModelRevision = 2,
  kPayloadForm = 3,
  kPayloadVersion = 4,
  kTokensPerChunk = 5,
  kCutField = 6,
  kGroups = 7,
  kLayers = 8,
  kEngineExtras = 9,
  kShards = 10,
};

template <typename T>
std::string Scalar(T value) {
  ByteWriter out;
  out.Write<T>(value);
  return out.Take();
}

std::string GroupBytes(const KvSpec& spec) {
  ByteWriter out;
  out.Write<uint32_t>(static_cast<uint32_t>(spec.groups.size()));
  for (const GroupSpec& group : spec.groups) {
    out.Write<uint8_t>(static_cast<uint8_t>(group.rule));
    out.Write<uint32_t>(group.window_tokens);
  }
  return out.Take();
}

std::string LayerBytes(const KvSpec& spec) {
  ByteWriter out;
  out.Write<uint32_t>(static_cast<uint32_t>(spec.layers.size()));
  for (const LayerSpec& layer : spec.layers) {
    out.Write<uint16_t>(layer.group);
    out.Write<uint16_t>(static_cast<uint16_t>(layer.planes.size()));
    for (const PlaneSpec& plane : layer.planes) {
      out.Write<uint8_t>(static_cast<uint8_t>(plane.kind));
      out.Write<uint8_t>(static_cast<uint8_t>(plane.dtype));
      out.Write<uint32_t>(plane.heads);
      out.Write<uint32_t>(plane.head_dim);
      out.Write<uint32_t>(plane.bytes_per_token);
    }
  }
  return out.Take();
}

std::string ShardBytes(const KvSpec& spec) {
  ByteWriter out;
  out.Write<uint32_t>(static_cast<uint32_t>(spec.shards.size()));
  for (const ShardSpec& shard : spec.shards) {
    out.Write<uint32_t>(shard.tensor_rank);
    out.Write<uint32_t>(shard.tensor_size);
    out.Write<uint32_t>(shard.layer_begin);
    out.Write<uint32_t>(shard.layer_end);
  }
  return out.Take();
}

std::string SerializeFields(const KvSpec& spec, bool with_shards) {
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint16_t>(kVersion);
  const auto field = [&](Field number, std::string_view bytes) {
    out.Write<uint16_t>(number);
    out.WriteSized(bytes);
  };
  field(kModelId, spec.model_id);
  field(kModelRevision, spec.model_revision);
  field(kPayloadForm, Scalar<uint8_t>(static_cast<uint8_t>(spec.payload_form)));
  field(kPayloadVersion, Scalar<uint32_t>(spec.payload_version));
  field(kTokensPerChunk, Scalar<uint32_t>(spec.tokens_per_chunk));
  field(kCutField, Scalar<uint8_t>(static_cast<uint8_t>(spec.cut)));
  field(kGroups, GroupBytes(spec));
  field(kLayers, LayerBytes(spec));
  field(kEngineExtras, spec.engine_extras);
  if (with_shards) field(kShards, ShardBytes(spec));
  return out.Take();
}

void ReadGroups(ByteReader& in, KvSpec& spec) {
  spec.groups.clear();
  const auto n = in.Read<uint32_t>();
  for (uint32_t i = 0; i < n && in.ok(); ++i) {
    GroupSpec group;
    group.rule = static_cast<Retention>(in.Read<uint8_t>());
    group.window_tokens = in.Read<uint32_t>();
    spec.groups.push_back(group);
  }
}

void ReadLayers(ByteReader& in, KvSpec& spec) {
  const auto n = in.Read<uint32_t>();
  for (uint32_t i = 0; i < n && in.ok(); ++i) {
    LayerSpec layer;
    layer.group = in.Read<uint16_t>();
    const auto n_planes = in.Read<uint16_t>();
    for (uint32_t j = 0; j < n_planes && in.ok(); ++j) {
      PlaneSpec plane;
      plane.kind = static_cast<PlaneKind>(in.Read<uint8_t>());
      plane.dtype = static_cast<DType>(in.Read<uint8_t>());
      plane.heads = in.Read<uint32_t>();
      plane.head_dim = in.Read<uint32_t>();
      plane.bytes_per_token = in.Read<uint32_t>();
      layer.planes.push_back(plane);
    }
    spec.layers.push_back(std::move(layer));
  }
}

void ReadShards(ByteReader& in, KvSpec& spec) {
  const auto n = in.Read<uint32_t>();
  for (uint32_t i = 0; i < n && in.ok(); ++i) {
    ShardSpec shard;
    shard.tensor_rank = in.Read<uint32_t>();
    shard.tensor_size = in.Read<uint32_t>();
    shard.layer_begin = in.Read<uint32_t>();
    shard.layer_end = in.Read<uint32_t>();
    spec.shards.push_back(shard);
  }
}

bool ReadField(uint16_t number, std::string_view bytes, KvSpec& spec) {
  ByteReader in(bytes);
  switch (number) {
    case kModelId:
      spec.model_id = in.ReadBytes(bytes.size());
      break;
    case kModelRevision:
      spec.model_revision = in.ReadBytes(bytes.size());
      break;
    case kPayloadForm:
      spec.payload_form = static_cast<PayloadForm>(in.Read<uint8_t>());
      break;
    case kPayloadVersion:
      spec.payload_version = in.Read<uint32_t>();
      break;
    case kTokensPerChunk:
      spec.tokens_per_chunk = in.Read<uint32_t>();
      break;
    case kCutField:
      spec.cut = static_cast<Cut>(in.Read<uint8_t>());
      break;
    case kGroups:
      ReadGroups(in, spec);
      break;
    case kLayers:
      ReadLayers(in, spec);
      break;
    case kEngineExtras:
      spec.engine_extras = in.ReadBytes(bytes.size());
      break;
    case kShards:
      ReadShards(in, spec);
      break;
    default:
      return false;
  }
  return in.ok() && in.remaining() == 0;
}

Status Bad(const std::string& field, const std::string& value, const std::string& allowed) {
  return InvalidArgumentError("KvSpec." + field + " is " + value + "; allowed: " + allowed);
}

Status ValidatePlane(const PlaneSpec& plane, const std::string& where) {
  const auto kind = static_cast<int>(plane.kind);
  if (kind < 1 || kind > 6) return Bad(where + ".kind", std::to_string(kind), "1..6");
  const auto dtype = static_cast<int>(plane.dtype);
  if (dtype < 1 || dtype > 9) return Bad(where + ".dtype", std::to_string(dtype), "1..9");
  if (plane.bytes_per_token == 0 || plane.bytes_per_token > (1u << 26)) {
    return Bad(where + ".bytes_per_token", std::to_string(plane.bytes_per_token), "1..64 MiB");
  }
  return OkStatus();
}

Status ValidateLayers(const KvSpec& spec) {
  if (spec.layers.size() > 4096)
    return Bad("layers", std::to_string(spec.layers.size()) + " entries", "<= 4096");
  if (spec.payload_form == PayloadForm::kCanonical && spec.layers.empty()) {
    return Bad("layers", "empty", "one entry per layer for canonical payloads");
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string where = "layers[" + std::to_string(i) + "]";
    const LayerSpec& layer = spec.layers[i];
    if (layer.group >= spec.groups.size())
      return Bad(where + ".group", std::to_string(layer.group), "an index of groups");
    if (layer.planes.empty() || layer.planes.size() > 16) {
      return Bad(where + ".planes", std::to_string(layer.planes.size()) + " entries", "1..16");
    }
    for (const PlaneSpec& plane : layer.planes) {
      if (Status status = ValidatePlane(plane, where + ".planes"); !status.ok()) return status;
    }
  }
  return OkStatus();
}

Status ValidateShards(const KvSpec& spec) {
  if (spec.shards.size() > 64) return Bad("shards", std::to_string(spec.shards.size()) + " entries", "<= 64");
  for (size_t i = 0; i < spec.shards.size(); ++i) {
    const std::string where = "shards[" + std::to_string(i) + "]";
    const ShardSpec& shard = spec.shards[i];
    if (shard.tensor_size == 0 || shard.tensor_rank >= shard.tensor_size) {
      return Bad(where + ".tensor_rank", std::to_string(shard.tensor_rank), "below tensor_size");
    }
    if (spec.payload_form == PayloadForm::kCanonical &&
        (shard.layer_begin >= shard.layer_end || shard.layer_end > spec.layers.size())) {
      return Bad(where + ".layer_end", std::to_string(shard.layer_end),
                 "layer_begin + 1 .. number of layers");
    }
    for (size_t l = shard.layer_begin; l < std::min<size_t>(shard.layer_end, spec.layers.size()); ++l) {
      for (const PlaneSpec& plane : spec.layers[l].planes) {
        const bool split = plane.heads >= shard.tensor_size;
        if (split &&
            (plane.heads % shard.tensor_size != 0 || plane.bytes_per_token % shard.tensor_size != 0)) {
          return Bad(where + ".tensor_size", std::to_string(shard.tensor_size),
                     "a divisor of each plane's heads");
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace

Status KvSpec::Validate() const {
  if (model_id.empty() || model_id.size() > 4096) {
    return Bad("model_id", std::to_string(model_id.size()) + " bytes", "1..4096 bytes");
  }
  if (model_revision.size() > 4096) return Bad("model_revision", "too long", "<= 4096 bytes");
  if (engine_extras.size() > (1u << 16)) return Bad("engine_extras", "too long", "<= 64 KiB");
  const auto form = static_cast<int>(payload_form);
  if (form < 1 || form > 2) return Bad("payload_form", std::to_string(form), "canonical (1), opaque (2)");
  if (tokens_per_chunk < 1 || tokens_per_chunk > kMaxTokensPerChunk) {
    return Bad("tokens_per_chunk", std::to_string(tokens_per_chunk), "1..4096");
  }
  const auto cut_value = static_cast<int>(cut);
  if (cut_value < 1 || cut_value > 3)
    return Bad("cut", std::to_string(cut_value), "none (1), whole (2), ranged (3)");
  if (cut == Cut::kRanged && payload_form != PayloadForm::kCanonical) {
    return Bad("cut", "ranged", "none or whole for opaque payloads");
  }
  if (groups.empty() || groups.size() > 16)
    return Bad("groups", std::to_string(groups.size()) + " entries", "1..16");
  for (const GroupSpec& group : groups) {
    const auto rule = static_cast<int>(group.rule);
    if (rule < 1 || rule > 3)
      return Bad("groups.rule", std::to_string(rule), "full (1), window (2), state (3)");
    if ((group.rule == Retention::kWindow) != (group.window_tokens > 0)) {
      return Bad("groups.window_tokens", std::to_string(group.window_tokens),
                 "> 0 exactly for the window rule");
    }
    if (group.rule == Retention::kState && cut != Cut::kNone) {
      return Bad("cut", std::to_string(cut_value), "none where a group is a state");
    }
  }
  if (Status status = ValidateLayers(*this); !status.ok()) return status;
  return ValidateShards(*this);
}

uint64_t KvSpec::PlaneBytesPerToken(uint32_t layer, uint32_t plane, ObjectPart part) const {
  if (layer >= layers.size() || layers[layer].group != part.group || part.shard >= num_shards()) return 0;
  const ShardSpec shard =
      shards.empty() ? ShardSpec{0, 1, 0, static_cast<uint32_t>(layers.size())} : shards[part.shard];
  if (layer < shard.layer_begin || layer >= shard.layer_end || plane >= layers[layer].planes.size()) return 0;
  const PlaneSpec& spec = layers[layer].planes[plane];
  const bool split = spec.heads >= shard.tensor_size && spec.kind != PlaneKind::kLatent;
  return split ? spec.bytes_per_token / shard.tensor_size : spec.bytes_per_token;
}

uint64_t KvSpec::LayerBytesPerToken(uint32_t layer, ObjectPart part) const {
  if (layer >= layers.size()) return 0;
  uint64_t bytes = 0;
  for (uint32_t plane = 0; plane < layers[layer].planes.size(); ++plane) {
    bytes += PlaneBytesPerToken(layer, plane, part);
  }
  return bytes;
}

uint64_t KvSpec::PayloadTokens(ObjectPart part, uint64_t num_tokens) const {
  const bool is_state = part.group < groups.size() && groups[part.group].rule == Retention::kState;
  return is_state ? std::min<uint64_t>(num_tokens, 1) : num_tokens;
}

uint64_t KvSpec::PayloadBytes(ObjectPart part, uint32_t num_tokens) const {
  if (payload_form != PayloadForm::kCanonical) return 0;
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < layers.size(); ++layer)
    bytes += LayerBytesPerToken(layer, part) * PayloadTokens(part, num_tokens);
  return bytes;
}

uint32_t KvSpec::DivisionTag() const {
  if (shards.empty()) return 0;
  const Digest digest = Sha256(ShardBytes(*this));
  uint32_t tag;
  std::memcpy(&tag, digest.bytes.data(), sizeof(tag));
  return tag != 0 ? tag : 1;
}

std::string KvSpec::Serialize() const { return SerializeFields(*this, true); }
std::string KvSpec::SerializeIdentity() const { return SerializeFields(*this, false); }

Result<KvSpec> KvSpec::Parse(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.ReadBytes(kMagic.size()) != kMagic) return DataLossError("KvSpec: magic is wrong");
  if (in.Read<uint16_t>() != kVersion) return DataLossError("KvSpec: unknown version");
  KvSpec spec;
  uint16_t last = 0;
  while (in.ok() && in.remaining() > 0) {
    const auto number = in.Read<uint16_t>();
    const std::string_view value = in.ReadSized();
    if (!in.ok() || number <= last || !ReadField(number, value, spec)) {
      return DataLossError("KvSpec: field " + std::to_string(number) +
                           " is malformed, unknown or out of order");
    }
    last = number;
  }
  // What Serialize would not have written (a field left out) is refused with the rest.
  if (!in.ok() || (spec.Serialize() != bytes && spec.SerializeIdentity() != bytes)) {
    return DataLossError("KvSpec: not in canonical form");
  }
  if (Status status = spec.Validate(); !status.ok()) return DataLossError(status.ToString());
  return spec;
}

}  // namespace terrace
