// PartMessage: GetPart and PutPart of proto/terrace/v1/cache.proto with the payload outside, so that it is
// never copied into a protobuf object: what is sent is a short prefix and the frame's own bytes, what is
// received is read where it lies.
//
// On the wire it is plain protobuf. Field 15 (data) stands last, so a prefix is everything up to and
// including the length of data. A received message may be cut into slices anywhere, inside a number too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

enum class PartKind : uint8_t { kGet, kPut };

struct PartMessage {
  std::string session_id;  // of a PutPart; empty where absent
  uint64_t transfer = 0;
  uint64_t offset = 0;
  bool has_results = false;  // a GetPart that ends the stream: to be parsed as protobuf as a whole
  std::vector<Bytes> data;   // in order; inside the slices that were given
  uint64_t data_bytes = 0;
};

// The bytes that stand in front of `part.data_bytes` bytes of payload.
std::string EncodePartPrefix(PartKind kind, const PartMessage& part);
// Unknown fields are passed over (but for groups, which proto3 does not have). kDataLoss: not protobuf, a
// field of another type, data not last, longer than `max_data_bytes`, or beside results.
Result<PartMessage> DecodePart(PartKind kind, std::span<const Bytes> slices, uint64_t max_data_bytes);

}  // namespace terrace
