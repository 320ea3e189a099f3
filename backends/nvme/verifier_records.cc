// Reading the manifest and the log of erased objects.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "backends/nvme/tier_directory.h"
#include "backends/nvme/verifier.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"
#include "lib/wire/sealed_layout.h"
#include "terrace/token_hasher.h"

namespace terrace {
namespace {

constexpr std::string_view kQuarantinePrefix = "quarantine/";

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(byte));
    hex += digits.data();
  }
  return hex;
}

// What DecodePlace leaves to those who know the frame.
bool IsPlausible(const ObjectRecord& record) {
  return record.header_bytes > 0 && record.header_bytes <= kMaxHeaderBytes &&
         record.header_bytes % kFrameAlignment == 0 && record.header_bytes <= record.meta.frame_bytes &&
         !record.extents.empty();
}

uint64_t ReadBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

// nullopt: malformed.
std::optional<Extent> DecodeQuarantine(std::string_view place, std::string_view value) {
  Extent extent;
  if (place.size() != sizeof(extent.segment) + sizeof(extent.offset)) return std::nullopt;
  extent.segment = static_cast<uint32_t>(ReadBigEndian(place.substr(0, sizeof(extent.segment))));
  extent.offset = ReadBigEndian(place.substr(sizeof(extent.segment)));
  ByteReader in(value);
  extent.length = in.Read<uint64_t>();
  const bool is_whole = in.ok() && in.remaining() == 0 && extent.length > 0;
  return is_whole && extent.offset <= UINT64_MAX - extent.length ? std::optional(extent) : std::nullopt;
}

}  // namespace

Status Verifier::ReadRecords() {
  std::vector<uint64_t> sizes;
  for (const Segment& segment : segments_) sizes.push_back(segment.size_bytes);
  places_.emplace(sizes);
  quarantine_.emplace(sizes);
  Status read = OpenManifest();
  // A tier that died while it was made has neither.
  if (read.code() == StatusCode::kNotFound && segments_.empty()) return OkStatus();
  if (read.ok()) {
    read = manifest_->ForEachObject(
        [this](std::string_view key, const std::string_view* place, const std::string_view* content) {
          TakeRecords(key, place, content);
        });
  }
  if (read.ok()) {
    read = manifest_->ForEach(RecordFamily::kRoots, [this](std::string_view key, std::string_view value) {
      ++report_.roots;
      const Status right = RightRoot(key, value);
      if (right.ok()) return;
      Find(NvmeFindingKind::kRootRecord, Hex(key), std::string(right.message()), 0);
      drops_.roots.emplace_back(key);
    });
  }
  if (!read.ok()) Find(NvmeFindingKind::kManifest, kManifestDirectoryName, std::string(read.message()), 0);
  return OkStatus();
}

Status Verifier::OpenManifest() {
  TERRACE_ASSIGN_OR_RETURN(manifest_, ManifestReader::Open(disk_));
  TERRACE_ASSIGN_OR_RETURN(const bool has_identity, CheckIdentity());
  ReadErased(has_identity);
  return ReadQuarantine();
}

Result<bool> Verifier::CheckIdentity() {
  TERRACE_ASSIGN_OR_RETURN(const std::optional<std::string> identity,
                           manifest_->Get(RecordFamily::kOwn, "identity"));
  if (!identity) {
    // Older than there were identities, or the tier died while it was made.
    TERRACE_ASSIGN_OR_RETURN(const std::optional<std::string> generations,
                             manifest_->Get(RecordFamily::kOwn, "next_generation"));
    if (!generations && !segments_.empty()) return DataLossError("manifest: it was not finished");
    return false;
  }
  ByteReader in(*identity);
  const std::string_view directory = in.ReadBytes(superblock_.directory.size());
  const std::string_view secret_tag = in.ReadBytes(16);
  const auto floor = in.Read<uint64_t>();
  if (!in.ok() || in.remaining() != 0) return DataLossError("manifest: its identity is malformed");
  if (std::memcmp(directory.data(), superblock_.directory.data(), directory.size()) != 0) {
    return DataLossError("manifest: of another directory");
  }
  const Digest secret =
      Sha256({reinterpret_cast<const char*>(superblock_.secret.data()), superblock_.secret.size()});
  if (std::memcmp(secret_tag.data(), secret.bytes.data(), secret_tag.size()) != 0 ||
      floor < superblock_.rebuild_floor) {
    return DataLossError("manifest: older than the superblock");
  }
  return true;
}

Status Verifier::ReadQuarantine() {
  return manifest_->ForEach(RecordFamily::kOwn, [this](std::string_view key, std::string_view value) {
    if (!key.starts_with(kQuarantinePrefix)) return;
    if (const std::optional<Extent> extent = DecodeQuarantine(key.substr(kQuarantinePrefix.size()), value)) {
      quarantine_->Mark(*extent);
    } else {
      Find(NvmeFindingKind::kManifest, Hex(key), "quarantine: the entry is malformed", 0);
    }
  });
}

void Verifier::ReadErased(bool is_required) {
  Result<std::unique_ptr<const ErasedLog>> log = ErasedLog::OpenForReading(disk_);
  if (log.status().code() == StatusCode::kNotFound && !is_required) return;
  if (!log.ok()) {
    return Find(NvmeFindingKind::kErasedLog, kErasedLogName, std::string(log.status().message()), 0);
  }
  erased_ = std::move(*log);
  if (erased_->num_broken() == 0) return;
  Find(NvmeFindingKind::kErasedLog, kErasedLogName,
       "erased log: " + std::to_string(erased_->num_broken()) + " broken entries", 0);
}

void Verifier::TakeRecords(std::string_view key, const std::string_view* place,
                           const std::string_view* content) {
  ++report_.records;
  const auto wrong = [&](NvmeFindingKind kind, const std::string& reason, uint64_t bytes) {
    const Result<ObjectId> id = DecodeRecordKey(key);
    Find(kind, id.ok() ? NameOf(*id) : Hex(key), reason, bytes);
    drops_.objects.emplace_back(key);
  };
  const Result<ObjectId> id = DecodeRecordKey(key);
  if (!id.ok()) return wrong(NvmeFindingKind::kRecordKey, std::string(id.status().message()), 0);
  if (place == nullptr) return wrong(NvmeFindingKind::kContentRecord, "content record: it has no place", 0);
  const Result<ObjectRecord> record = DecodePlace(*place);
  if (!record.ok()) return wrong(NvmeFindingKind::kPlaceRecord, std::string(record.status().message()), 0);
  const uint64_t bytes = terrace::RunBytes(record->meta.frame_bytes, record->key_id != 0);
  if (!IsPlausible(*record)) {
    return wrong(NvmeFindingKind::kPlaceRecord,
                 "place record: header of " + std::to_string(record->header_bytes) + " bytes in a frame of " +
                     std::to_string(record->meta.frame_bytes),
                 bytes);
  }
  // In an encrypted directory every run is sealed, in another none.
  if (keys_.empty() ? record->key_id != 0 : keys_.Find(record->key_id) == nullptr) {
    return wrong(NvmeFindingKind::kPlaceRecord,
                 "place record: key id " + std::to_string(record->key_id) + " is not the directory's", bytes);
  }
  if (erased_) {
    const auto erased = erased_->Floors().find(*id);
    if (erased != erased_->Floors().end() && record->meta.generation < erased->second) {
      return wrong(NvmeFindingKind::kErased,
                   "generation " + std::to_string(record->meta.generation) + " was erased, below " +
                       std::to_string(erased->second),
                   bytes);
    }
  }
  if (std::optional<FrameFault> fault = ContentFault(*id, *record, content)) {
    content_faults_.emplace(objects_.size(), std::move(*fault));
  }
  objects_.push_back({.id = *id,
                      .generation = record->meta.generation,
                      .first_extent = extents_.size(),
                      .num_extents = static_cast<uint32_t>(record->extents.size())});
  extents_.insert(extents_.end(), record->extents.begin(), record->extents.end());
}

std::optional<FrameFault> Verifier::ContentFault(const ObjectId& id, const ObjectRecord& record,
                                                 const std::string_view* content) const {
  const uint64_t stored_bytes = content == nullptr ? 0 : content->size();
  if (content != nullptr) {
    const Result<std::string> value = FromStored(EncodeRecordKey(id), *content);
    if (!value.ok())
      return FrameFault{NvmeFindingKind::kContentRecord, std::string(value.status().message())};
    const Result<ChunkContent> decoded = DecodeRecordContent(*value);
    if (!decoded.ok()) {
      return FrameFault{NvmeFindingKind::kContentRecord, std::string(decoded.status().message())};
    }
    if (TokenHasher::KeyOf(record.meta.parent, *decoded) != id.key) {
      return FrameFault{NvmeFindingKind::kIdentity, "content record: the key is not that of its tokens"};
    }
  }
  if (!record.content_bytes || *record.content_bytes == stored_bytes) return std::nullopt;
  return FrameFault{NvmeFindingKind::kContentRecord, "content record: " + std::to_string(stored_bytes) +
                                                         " bytes, its place names " +
                                                         std::to_string(*record.content_bytes)};
}

Status Verifier::RightRoot(std::string_view key, std::string_view value) const {
  ChunkKey root;
  if (key.size() != root.bytes.size()) {
    return DataLossError("root record: the key has " + std::to_string(key.size()) + " bytes");
  }
  std::memcpy(root.bytes.data(), key.data(), key.size());
  TERRACE_ASSIGN_OR_RETURN(const std::string plain, FromStored(key, value));
  return DecodeRootRecord(root, plain).status();
}

Result<std::string> Verifier::FromStored(std::string_view key, std::string_view stored) const {
  if (!cipher_) return std::string(stored);
  return cipher_->Open(key, stored);
}

}  // namespace terrace
