#include "lib/wire/object_record.h"

#include <xxhash.h>

#include <utility>

#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/sealed_layout.h"

namespace terrace {
namespace {

constexpr uint8_t kVersion = 1;
constexpr uint8_t kSealedPlaceVersion = 2;
constexpr size_t kSumBytes = 8;
constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 40;

std::string WithSum(ByteWriter out) {
  out.Write<uint64_t>(XXH3_64bits(out.str().data(), out.size()));
  return out.Take();
}

// The bytes without version and sum, once both are right.
Result<std::string_view> Opened(std::string_view value, std::string_view what, uint8_t version = kVersion) {
  if (value.size() < 1 + kSumBytes) return DataLossError(std::string(what) + ": cut off");
  const std::string_view body = value.substr(0, value.size() - kSumBytes);
  uint64_t sum;
  std::memcpy(&sum, value.data() + body.size(), kSumBytes);
  if (XXH3_64bits(body.data(), body.size()) != sum)
    return DataLossError(std::string(what) + ": checksum is wrong");
  if (static_cast<uint8_t>(body[0]) != version) return DataLossError(std::string(what) + ": unknown version");
  return body.substr(1);
}

int64_t ToNanoseconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

WallTime FromNanoseconds(int64_t ns) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(ns)));
}

void AppendBigEndian(uint16_t value, std::string& out) {
  out.push_back(static_cast<char>(value >> 8));
  out.push_back(static_cast<char>(value & 0xff));
}

uint16_t BigEndianAt(std::string_view bytes, size_t at) {
  return static_cast<uint16_t>((static_cast<uint8_t>(bytes[at]) << 8) | static_cast<uint8_t>(bytes[at + 1]));
}

// All that is left of the place record; the extents hold `run_bytes`.
Status ReadExtents(ByteReader& in, uint64_t run_bytes, ObjectRecord& record) {
  const auto n = in.Read<uint32_t>();
  if (!in.ok() || in.remaining() != size_t{n} * 24) return DataLossError("place record: malformed");
  record.extents.clear();
  record.extents.reserve(n);
  record.content_bytes.reset();
  uint64_t left = run_bytes;
  for (uint32_t i = 0; i < n; ++i) {
    Extent extent;
    extent.segment = in.Read<uint32_t>();
    const auto content_word = in.Read<uint32_t>();
    if (i == 0 && content_word != 0) record.content_bytes = content_word - 1;
    if (i > 0 && content_word != 0) return DataLossError("place record: unknown flags are set");
    extent.offset = in.Read<uint64_t>();
    extent.length = in.Read<uint64_t>();
    if (extent.length > left) return DataLossError("place record: extent length");
    left -= extent.length;
    record.extents.push_back(extent);
  }
  return left == 0 ? OkStatus() : DataLossError("place record: extents do not hold the run");
}

}  // namespace

std::string EncodeRecordKey(const ObjectId& id) {
  std::string out(reinterpret_cast<const char*>(id.key.bytes.data()), id.key.bytes.size());
  AppendBigEndian(id.part.group, out);
  AppendBigEndian(id.part.shard, out);
  return out;
}

Result<ObjectId> DecodeRecordKey(std::string_view key) {
  ObjectId id;
  if (key.size() != id.key.bytes.size() + 4) return DataLossError("record key: wrong length");
  std::memcpy(id.key.bytes.data(), key.data(), id.key.bytes.size());
  id.part.group = BigEndianAt(key, 32);
  id.part.shard = BigEndianAt(key, 34);
  return id;
}

std::string EncodePlace(const ObjectRecord& record) {
  const ObjectMeta& meta = record.meta;
  const bool sealed = record.key_id != 0;
  ByteWriter out;
  out.Write<uint8_t>(sealed ? kSealedPlaceVersion : kVersion);
  out.Write<uint8_t>(static_cast<uint8_t>(meta.codec));
  out.Write<uint16_t>(meta.flags);
  out.Write<uint32_t>(meta.division);
  out.Write<int32_t>(meta.priority);
  out.Write<uint32_t>(record.header_bytes);
  out.Write<int64_t>(ToNanoseconds(meta.expiry));
  out.Write<uint64_t>(meta.generation);
  out.Write<uint64_t>(meta.first_token);
  out.Write<uint64_t>(meta.frame_bytes);
  out.Write<uint64_t>(meta.payload_bytes);
  out.WriteDigest(meta.root);
  out.WriteDigest(meta.parent);
  if (sealed) out.Write<uint32_t>(record.key_id);
  out.Write<uint32_t>(static_cast<uint32_t>(record.extents.size()));
  uint32_t content_word = record.content_bytes ? *record.content_bytes + 1 : 0;
  for (const Extent& extent : record.extents) {
    out.Write<uint32_t>(extent.segment);
    out.Write<uint32_t>(std::exchange(content_word, 0));
    out.Write<uint64_t>(extent.offset);
    out.Write<uint64_t>(extent.length);
  }
  return WithSum(std::move(out));
}

Status DecodePlace(std::string_view value, ObjectRecord& record) {
  const bool sealed = !value.empty() && static_cast<uint8_t>(value[0]) == kSealedPlaceVersion;
  const Result<std::string_view> body =
      Opened(value, "place record", sealed ? kSealedPlaceVersion : kVersion);
  if (!body.ok()) return body.status();
  ByteReader in(*body);
  ObjectMeta& meta = record.meta;
  meta.codec = static_cast<Codec>(in.Read<uint8_t>());
  meta.flags = in.Read<uint16_t>();
  meta.division = in.Read<uint32_t>();
  meta.priority = in.Read<int32_t>();
  record.header_bytes = in.Read<uint32_t>();
  meta.expiry = FromNanoseconds(in.Read<int64_t>());
  meta.generation = in.Read<uint64_t>();
  meta.first_token = in.Read<uint64_t>();
  meta.frame_bytes = in.Read<uint64_t>();
  meta.payload_bytes = in.Read<uint64_t>();
  meta.root = in.ReadDigest();
  meta.parent = in.ReadDigest();
  record.key_id = sealed ? in.Read<uint32_t>() : 0;
  if (!in.ok() || sealed != (record.key_id != 0)) return DataLossError("place record: malformed");
  if (meta.frame_bytes % kFrameAlignment != 0 || meta.frame_bytes > kMaxFrameBytes ||
      meta.payload_bytes > kMaxFrameBytes) {
    return DataLossError("place record: frame length");
  }
  return ReadExtents(in, RunBytes(meta.frame_bytes, sealed), record);
}

Result<ObjectRecord> DecodePlace(std::string_view value) {
  ObjectRecord record;
  if (Status decoded = DecodePlace(value, record); !decoded.ok()) return decoded;
  return record;
}

std::string EncodeRecordContent(const ChunkContent& content) {
  ByteWriter out;
  out.Write<uint8_t>(kVersion);
  WriteContent(content, out);
  return WithSum(std::move(out));
}

Result<ChunkContent> DecodeRecordContent(std::string_view value) {
  Result<std::string_view> body = Opened(value, "content record");
  if (!body.ok()) return body.status();
  ByteReader in(*body);
  ChunkContent content = ReadContent(in);
  if (!in.ok() || in.remaining() != 0) return DataLossError("content record: malformed");
  return content;
}

std::string EncodeRootRecord(const RootRecord& record) {
  ByteWriter out;
  out.Write<uint8_t>(kVersion);
  out.WriteSized(record.spec);
  out.WriteSized(record.adapters);
  out.WriteDigest(record.salt_sha256);
  return WithSum(std::move(out));
}

Result<RootRecord> DecodeRootRecord(const ChunkKey& root, std::string_view value) {
  Result<std::string_view> body = Opened(value, "root record");
  if (!body.ok()) return body.status();
  ByteReader in(*body);
  RootRecord record;
  record.root = root;
  record.spec = in.ReadSized();
  record.adapters = in.ReadSized();
  record.salt_sha256 = in.ReadDigest();
  if (!in.ok() || in.remaining() != 0) return DataLossError("root record: malformed");
  return record;
}

}  // namespace terrace
