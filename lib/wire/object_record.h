// ObjectRecord: what a manifest keeps of an object, in two values so that a start can read places without
// content.
//
// Place (version 1):    u8 version = 1 | u8 codec | u16 flags = 0 | u32 division | i32 priority | u32
// header_bytes |
//                       i64 expiry_ns | u64 generation | u64 first_token | u64 frame_bytes | u64
//                       payload_bytes | root[32] | parent[32] | u32 n_extents | { u32 segment | u32 w
//                       | u64 offset | u64 length }[] | u64 XXH3-64 of all before
// Place (version 2):    as version 1, with "u32 key_id" (above 0) in front of n_extents: the run is sealed
// Content (version 1):  u8 version = 1 | content as in the frame | u64 XXH3-64 of all before
// Key of both:          key[32] | u16 group | u16 shard, big-endian (records of one chunk lie together)
// Root (version 1):     u8 version = 1 | u32 n | spec | u32 n | adapters | salt_sha256[32] | u64 XXH3-64 of
// all before;
//                       its key is root[32]
//
// w, in the first extent: the bytes of the content's value as it is stored + 1, so that a start that reads
// places alone knows what the manifest holds; 1: there is none. 0 in the other extents, and where a former
// build wrote the record. The extents hold the run, in order: tier page and frame, sum of lengths = 4,096 +
// frame_bytes; a sealed one has the tag area between them (lib/wire/sealed_layout.h). Of encrypted
// directories contents and roots lie sealed in the manifest (backends/nvme/record_cipher.h); a place holds
// digests and lengths only.
#pragma once

#include <cstdint>
#include <optional>
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
  std::optional<uint32_t> content_bytes;  // of the other value; 0 = there is none
  uint32_t key_id = 0;                    // what the run is sealed with; 0 = it is not
};

std::string EncodeRecordKey(const ObjectId& id);
Result<ObjectId> DecodeRecordKey(std::string_view key);
std::string EncodePlace(const ObjectRecord& record);
Result<ObjectRecord> DecodePlace(std::string_view value);
// The same into a record that is used again and again; after a failure nothing is said of it.
Status DecodePlace(std::string_view value, ObjectRecord& record);
std::string EncodeRecordContent(const ChunkContent& content);
Result<ChunkContent> DecodeRecordContent(std::string_view value);
std::string EncodeRootRecord(const RootRecord& record);
Result<RootRecord> DecodeRootRecord(const ChunkKey& root, std::string_view value);

}  // namespace terrace
