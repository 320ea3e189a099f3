// ObjectRecord: what a manifest keeps of an object, in two values so that a start can read places without
// content.
//
// Place (version 1):    u8 version = 1 | u8 codec | u16 flags = 0 | u32 division | i32 priority | u32
// header_bytes |
//                       i64 expiry_ns | u64 generation | u64 first_token | u64 frame_bytes | u64
//                       payload_bytes | root[32] | parent[32] | u32 n_extents | { u32 segment | u32 reserved
//                       | u64 offset | u64 length }[] | u64 XXH3-64 of all before
// Content (version 1):  u8 version = 1 | content as in the frame | u64 XXH3-64 of all before
// Key of both:          key[32] | u16 group | u16 shard, big-endian (records of one chunk lie together)
// Root (version 1):     u8 version = 1 | u32 n | spec | u32 n | adapters | salt_sha256[32] | u64 XXH3-64 of
// all before;
//                       its key is root[32]
//
// The extents hold the tier page and the frame, in order: sum of lengths = 4,096 + frame_bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/kv_spec.h"
#include "terrace/object_meta.h"
#include "terrace/status.h"

namespace terrace {

struct Extent {
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct ObjectRecord {
  ObjectMeta meta;  // content stands in the other value
  uint32_t header_bytes = 0;
  std::vector<Extent> extents;
};

std::string EncodeRecordKey(const ObjectId& id);
Result<ObjectId> DecodeRecordKey(std::string_view key);
std::string EncodePlace(const ObjectRecord& record);
Result<ObjectRecord> DecodePlace(std::string_view value);
std::string EncodeRecordContent(const ChunkContent& content);
Result<ChunkContent> DecodeRecordContent(std::string_view value);
std::string EncodeRootRecord(const RootRecord& record);
Result<RootRecord> DecodeRootRecord(const ChunkKey& root, std::string_view value);

}  // namespace terrace
