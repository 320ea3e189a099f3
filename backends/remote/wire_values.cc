#include "backends/remote/wire_values.h"

#include <algorithm>

#include "lib/wire/byte_codec.h"

namespace terrace::remote {
namespace {

constexpr size_t kMaxReasonBytes = 300;
constexpr size_t kMaxSpecBytes = size_t{1} << 20;

std::string Printable(std::string_view text) {
  std::string out(text.substr(0, kMaxReasonBytes));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

}  // namespace

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  const int code = status.error_code();
  const bool is_known = code > 0 && code <= static_cast<int>(StatusCode::kUnauthenticated);
  return Status(is_known ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
                Printable(status.error_message()));
}

Status FromResult(const v1::Result& result) {
  StatusCode code = StatusCode::kUnknown;
  switch (result.code()) {
    case v1::RESULT_CODE_OK:
      return OkStatus();
    case v1::RESULT_CODE_NOT_FOUND:
      code = StatusCode::kNotFound;
      break;
    case v1::RESULT_CODE_ALREADY_EXISTS:
      code = StatusCode::kAlreadyExists;
      break;
    case v1::RESULT_CODE_RESOURCE_EXHAUSTED:
      code = StatusCode::kResourceExhausted;
      break;
    case v1::RESULT_CODE_UNAVAILABLE:
      code = StatusCode::kUnavailable;
      break;
    case v1::RESULT_CODE_DATA_LOSS:
      code = StatusCode::kDataLoss;
      break;
    case v1::RESULT_CODE_INVALID_ARGUMENT:
      code = StatusCode::kInvalidArgument;
      break;
    case v1::RESULT_CODE_FAILED_PRECONDITION:
      code = StatusCode::kFailedPrecondition;
      break;
    case v1::RESULT_CODE_DEADLINE_EXCEEDED:
      code = StatusCode::kDeadlineExceeded;
      break;
    case v1::RESULT_CODE_CANCELLED:
      code = StatusCode::kCancelled;
      break;
    case v1::RESULT_CODE_PERMISSION_DENIED:
      code = StatusCode::kPermissionDenied;
      break;
    case v1::RESULT_CODE_INTERNAL:
      code = StatusCode::kInternal;
      break;
    default:  // of a later minor version, or none at all
      break;
  }
  return Status(code, Printable(result.message()));
}

bool ReadDigest(std::string_view bytes, Digest& digest) {
  if (bytes.size() != digest.bytes.size()) return false;
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return true;
}

void SetName(const ObjectId& id, v1::ObjectName* name) {
  name->set_key(DigestBytes(id.key));
  name->set_group(id.part.group);
  name->set_shard(id.part.shard);
}

void SetPutObject(const ObjectId& id, const ObjectMeta& meta, v1::PutObject* object) {
  SetName(id, object->mutable_name());
  object->set_root(DigestBytes(meta.root));
  object->set_parent(DigestBytes(meta.parent));
  object->set_first_token(meta.first_token);
  if (meta.content) {
    ByteWriter content;
    WriteContent(*meta.content, content);
    object->set_content(content.Take());
  }
  object->set_frame_bytes(meta.frame_bytes);
  object->set_payload_bytes(meta.payload_bytes);
  object->set_division(meta.division);
  object->set_priority(meta.priority);
  const auto expiry = std::chrono::duration_cast<std::chrono::nanoseconds>(meta.expiry.time_since_epoch());
  object->set_expiry_ns(static_cast<uint64_t>(std::max<int64_t>(0, expiry.count())));
}

Result<ScannedObject> FromPutObject(const v1::PutObject& object) {
  ScannedObject out;
  const v1::ObjectName& name = object.name();
  if (!ReadDigest(name.key(), out.id.key) || !ReadDigest(object.root(), out.meta.root) ||
      !ReadDigest(object.parent(), out.meta.parent))
    return DataLossError("a digest that has not 32 bytes");
  if (name.group() > UINT16_MAX || name.shard() > UINT16_MAX) return DataLossError("a part beyond 65535");
  out.id.part = {static_cast<uint16_t>(name.group()), static_cast<uint16_t>(name.shard())};
  if (object.frame_bytes() % kFrameAlignment != 0)
    return DataLossError("a frame that is no multiple of 4096");
  if (object.expiry_ns() > static_cast<uint64_t>(INT64_MAX))
    return DataLossError("an expiry beyond all time");
  out.meta.first_token = object.first_token();
  out.meta.frame_bytes = object.frame_bytes();
  out.meta.payload_bytes = object.payload_bytes();
  out.meta.division = object.division();
  out.meta.priority = object.priority();
  out.meta.expiry = WallTime(std::chrono::duration_cast<WallTime::duration>(
      std::chrono::nanoseconds(static_cast<int64_t>(object.expiry_ns()))));
  if (object.content().empty()) return out;
  ByteReader reader(std::string_view(object.content()));
  ChunkContent content = ReadContent(reader);
  if (!reader.ok() || reader.remaining() != 0) return DataLossError("tokens and items that do not parse");
  out.meta.content = std::make_shared<const ChunkContent>(std::move(content));
  return out;
}

void SetRoot(const RootRecord& record, v1::RootRecord* root) {
  root->set_root(DigestBytes(record.root));
  root->set_spec(record.spec);
  root->set_adapters(record.adapters);
  if (record.salt_sha256 != Digest{}) root->set_salt_sha256(DigestBytes(record.salt_sha256));
}

Result<RootRecord> FromRoot(const v1::RootRecord& root) {
  RootRecord record;
  if (!ReadDigest(root.root(), record.root)) return DataLossError("a root that has not 32 bytes");
  if (!root.salt_sha256().empty() && !ReadDigest(root.salt_sha256(), record.salt_sha256))
    return DataLossError("a salt's digest that has not 32 bytes");
  if (root.spec().size() > kMaxSpecBytes || root.adapters().size() > kMaxSpecBytes)
    return DataLossError("a root's record of more than 1 MiB");
  record.spec = root.spec();
  record.adapters = root.adapters();
  return record;
}

}  // namespace terrace::remote
