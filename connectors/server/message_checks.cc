#include "connectors/server/message_checks.h"

#include <algorithm>

#include "lib/wire/byte_codec.h"
#include "terrace/token_hasher.h"

namespace terrace::server {
namespace {

constexpr size_t kMaxRanges = 4096;

Status WrongField(std::string_view field, std::string_view what) {
  return InvalidArgumentError(std::string(field) + ": " + std::string(what));
}

// As ReadContent, for the tokens of many chunks.
Result<ChunkContent> PromptContentOf(std::string_view bytes) {
  ByteReader in(bytes);
  ChunkContent content;
  const uint32_t n_tokens = in.Read<uint32_t>();
  if (n_tokens > kMaxLookupTokens || in.remaining() / sizeof(Token) < n_tokens) {
    return WrongField("content", "more tokens than it has bytes for, or than are allowed");
  }
  content.tokens.resize(n_tokens);
  const std::string_view raw = in.ReadBytes(size_t{n_tokens} * sizeof(Token));
  if (!raw.empty()) std::memcpy(content.tokens.data(), raw.data(), raw.size());
  const uint32_t n_items = in.Read<uint32_t>();
  if (n_items > n_tokens) return WrongField("content", "more items than tokens");
  uint64_t next_position = 0;
  for (uint32_t i = 0; i < n_items && in.ok(); ++i) {
    Item item;
    item.position = in.Read<uint32_t>();
    const std::string_view value = in.ReadSized();
    if (value.empty() || value.size() > kMaxItemBytes || item.position < next_position ||
        item.position >= n_tokens) {
      return WrongField("content", "an item's position or length is wrong");
    }
    next_position = item.position + 1;
    const auto* first = reinterpret_cast<const std::byte*>(value.data());
    item.bytes.assign(first, first + value.size());
    content.items.push_back(std::move(item));
  }
  if (!in.ok() || in.remaining() > 0) return WrongField("content", "its lengths do not fit its bytes");
  return content;
}

Result<ObjectPart> PartOf(uint32_t group, uint32_t shard) {
  if (group > UINT16_MAX) return WrongField("group", "above 65,535");
  if (shard > UINT16_MAX) return WrongField("shard", "above 65,535");
  return ObjectPart{static_cast<uint16_t>(group), static_cast<uint16_t>(shard)};
}

std::string ContentBytes(const ChunkContent& content) {
  ByteWriter out;
  WriteContent(content, out);
  return out.Take();
}

v1::ResultCode ResultCodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return v1::RESULT_CODE_OK;
    case StatusCode::kCancelled:
      return v1::RESULT_CODE_CANCELLED;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return v1::RESULT_CODE_INVALID_ARGUMENT;
    case StatusCode::kDeadlineExceeded:
      return v1::RESULT_CODE_DEADLINE_EXCEEDED;
    case StatusCode::kNotFound:
      return v1::RESULT_CODE_NOT_FOUND;
    case StatusCode::kAlreadyExists:
      return v1::RESULT_CODE_ALREADY_EXISTS;
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
      return v1::RESULT_CODE_PERMISSION_DENIED;
    case StatusCode::kResourceExhausted:
      return v1::RESULT_CODE_RESOURCE_EXHAUSTED;
    case StatusCode::kFailedPrecondition:
      return v1::RESULT_CODE_FAILED_PRECONDITION;
    case StatusCode::kAborted:
    case StatusCode::kUnavailable:
      return v1::RESULT_CODE_UNAVAILABLE;
    case StatusCode::kDataLoss:
      return v1::RESULT_CODE_DATA_LOSS;
    case StatusCode::kUnknown:
    case StatusCode::kUnimplemented:
    case StatusCode::kInternal:
      break;
  }
  return v1::RESULT_CODE_INTERNAL;
}

}  // namespace

Result<Digest> DigestOf(std::string_view bytes, std::string_view field) {
  Digest digest;
  if (bytes.size() != digest.bytes.size()) return WrongField(field, "a digest has 32 bytes");
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return digest;
}

Result<SessionId> SessionIdOf(std::string_view bytes) {
  SessionId id;
  if (bytes.size() != id.size()) return WrongField("session_id", "it has 16 bytes");
  std::memcpy(id.data(), bytes.data(), bytes.size());
  return id;
}

Result<ObjectId> ObjectIdOf(const v1::ObjectName& name) {
  const Result<Digest> key = DigestOf(name.key(), "name.key");
  if (!key.ok()) return key.status();
  const Result<ObjectPart> part = PartOf(name.group(), name.shard());
  if (!part.ok()) return part.status();
  return ObjectId{*key, *part};
}

Result<PrefixQuery> PrefixQueryOf(const v1::LookupRequest& request) {
  PrefixQuery query;
  const Result<Digest> root = DigestOf(request.root(), "root");
  if (!root.ok()) return root.status();
  const Result<Digest> parent = DigestOf(request.parent(), "parent");
  if (!parent.ok()) return parent.status();
  query.root = *root;
  query.parent = *parent;
  query.tokens_per_chunk = request.tokens_per_chunk();
  if (request.has_division()) query.division = request.division();
  query.first_token = request.first_token();
  if (query.tokens_per_chunk == 0 || query.tokens_per_chunk > kMaxTokensPerChunk) {
    return WrongField("tokens_per_chunk", "allowed are 1 to 4,096");
  }
  if (query.first_token % query.tokens_per_chunk != 0) {
    return WrongField("first_token", "not a multiple of tokens_per_chunk");
  }
  if (request.parts_size() == 0) return WrongField("parts", "there is none");
  const uint64_t num_presences =
      (static_cast<uint64_t>(request.keys_size()) + 1) * static_cast<uint64_t>(request.parts_size());
  if (num_presences > kMaxLookupKeys + uint64_t{1}) return WrongField("keys", "too many, times parts");
  for (const v1::Part& wanted : request.parts()) {
    const Result<ObjectPart> part = PartOf(wanted.group(), wanted.shard());
    if (!part.ok()) return part.status();
    query.parts.push_back(*part);
  }
  for (const std::string& bytes : request.keys()) {
    const Result<Digest> key = DigestOf(bytes, "keys");
    if (!key.ok()) return key.status();
    query.keys.push_back(*key);
  }
  Result<ChunkContent> content = PromptContentOf(request.content());
  if (!content.ok()) return content.status();
  query.content = std::move(*content);
  if (query.content.tokens.size() / query.tokens_per_chunk < query.keys.size()) {
    return WrongField("keys", "more than the content has full chunks");
  }
  return query;
}

Result<PutNames> PutNamesOf(const v1::PutObject& object, uint64_t largest_frame_bytes) {
  PutNames names;
  const Result<ObjectId> id = ObjectIdOf(object.name());
  if (!id.ok()) return id.status();
  const Result<Digest> root = DigestOf(object.root(), "root");
  if (!root.ok()) return root.status();
  const Result<Digest> parent = DigestOf(object.parent(), "parent");
  if (!parent.ok()) return parent.status();
  ByteReader in{std::string_view(object.content())};
  const ChunkContent content = ReadContent(in);
  if (!in.ok() || in.remaining() > 0 || content.tokens.empty()) {
    return WrongField("content", "its lengths do not fit its bytes, or it has no token");
  }
  if (object.frame_bytes() == 0 || object.frame_bytes() % kFrameAlignment != 0) {
    return WrongField("frame_bytes", "not a multiple of 4,096");
  }
  if (object.frame_bytes() > largest_frame_bytes) {
    return ResourceExhaustedError("frame_bytes: at most " + std::to_string(largest_frame_bytes) +
                                  " ever fit");
  }
  if (object.payload_bytes() >= object.frame_bytes()) {
    return WrongField("payload_bytes", "not below frame_bytes");
  }
  // The key stands for the content from here on: a transfer that waits does not keep what no limit counts.
  if (TokenHasher::KeyOf(*parent, content) != id->key) {
    return DataLossError("name.key is not that of parent and content");
  }
  names.id = *id;
  names.meta.root = *root;
  names.meta.parent = *parent;
  names.meta.first_token = object.first_token();
  names.meta.frame_bytes = object.frame_bytes();
  names.meta.payload_bytes = object.payload_bytes();
  names.meta.division = object.division();
  names.meta.priority = object.priority();
  if (object.expiry_ns() > static_cast<uint64_t>(INT64_MAX)) return WrongField("expiry_ns", "too far away");
  names.meta.expiry = WallTime(std::chrono::duration_cast<WallTime::duration>(
      std::chrono::nanoseconds(static_cast<int64_t>(object.expiry_ns()))));
  return names;
}

Result<std::vector<FrameRange>> RangesOf(const v1::GetObject& object) {
  std::vector<FrameRange> ranges;
  if (static_cast<size_t>(object.ranges_size()) > kMaxRanges) return WrongField("ranges", "too many");
  for (const v1::ByteRange& range : object.ranges()) {
    if (range.length() == 0 || range.offset() % kFrameAlignment != 0 ||
        range.length() % kFrameAlignment != 0 || range.offset() + range.length() < range.offset()) {
      return WrongField("ranges", "offset and length are multiples of 4,096");
    }
    ranges.push_back({range.offset(), range.length(), range.offset()});
  }
  std::vector<FrameRange> ordered = ranges;
  std::sort(ordered.begin(), ordered.end(),
            [](const FrameRange& a, const FrameRange& b) { return a.frame_offset < b.frame_offset; });
  for (size_t i = 1; i < ordered.size(); ++i) {
    if (ordered[i - 1].frame_offset + ordered[i - 1].length > ordered[i].frame_offset) {
      return WrongField("ranges", "two of them overlap");
    }
  }
  return ranges;
}

Result<uint64_t> BytesWithin(const std::vector<FrameRange>& ranges, uint64_t frame_bytes) {
  if (ranges.empty()) return frame_bytes;
  uint64_t total = 0;
  for (const FrameRange& range : ranges) {
    if (range.frame_offset + range.length > frame_bytes) {
      return WrongField("ranges", "not inside the frame of " + std::to_string(frame_bytes) + " bytes");
    }
    total += range.length;
  }
  return total;
}

Result<RootRecord> RootRecordOf(const v1::RootRecord& record) {
  RootRecord known;
  const Result<Digest> root = DigestOf(record.root(), "root");
  if (!root.ok()) return root.status();
  known.root = *root;
  known.spec = record.spec();
  known.adapters = record.adapters();
  if (!record.salt_sha256().empty()) {
    const Result<Digest> salt = DigestOf(record.salt_sha256(), "salt_sha256");
    if (!salt.ok()) return salt.status();
    known.salt_sha256 = *salt;
  }
  return known;
}

void SetDigest(const Digest& digest, std::string* out) {
  out->assign(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

void SetResult(const Status& status, v1::Result* result) {
  result->set_code(ResultCodeOf(status.code()));
  if (!status.ok() && status.code() != StatusCode::kNotFound && status.code() != StatusCode::kAlreadyExists) {
    result->set_message(std::string(status.message()));
  }
}

void SetScanned(const ScannedObject& scanned, v1::ScannedObject* out) {
  v1::PutObject* object = out->mutable_object();
  const ObjectMeta& meta = scanned.meta;
  SetDigest(scanned.id.key, object->mutable_name()->mutable_key());
  object->mutable_name()->set_group(scanned.id.part.group);
  object->mutable_name()->set_shard(scanned.id.part.shard);
  SetDigest(meta.root, object->mutable_root());
  SetDigest(meta.parent, object->mutable_parent());
  object->set_first_token(meta.first_token);
  if (meta.content) object->set_content(ContentBytes(*meta.content));
  object->set_frame_bytes(meta.frame_bytes);
  object->set_payload_bytes(meta.payload_bytes);
  object->set_division(meta.division);
  object->set_priority(meta.priority);
  const auto expiry = std::chrono::duration_cast<std::chrono::nanoseconds>(meta.expiry.time_since_epoch());
  object->set_expiry_ns(static_cast<uint64_t>(std::max<int64_t>(0, expiry.count())));
}

void SetRoot(const RootRecord& record, v1::RootRecord* out) {
  SetDigest(record.root, out->mutable_root());
  out->set_spec(record.spec);
  out->set_adapters(record.adapters);
  if (record.salt_sha256 != Digest{}) SetDigest(record.salt_sha256, out->mutable_salt_sha256());
}

void SetEvent(const NumberedEvent& numbered, v1::WatchEvent* out) {
  const KvEvent& event = numbered.event;
  out->set_sequence(numbered.sequence);
  switch (event.kind) {
    case KvEventKind::kStored:
      out->set_kind(v1::EVENT_KIND_STORED);
      break;
    case KvEventKind::kRemoved:
      out->set_kind(v1::EVENT_KIND_REMOVED);
      break;
    case KvEventKind::kCleared:
      out->set_kind(v1::EVENT_KIND_CLEARED);
      return;
  }
  SetDigest(event.id.key, out->mutable_name()->mutable_key());
  out->mutable_name()->set_group(event.id.part.group);
  out->mutable_name()->set_shard(event.id.part.shard);
  SetDigest(event.root, out->mutable_root());
  SetDigest(event.parent, out->mutable_parent());
  out->set_first_token(event.first_token);
  if (event.content) out->set_content(ContentBytes(*event.content));
}

}  // namespace terrace::server
