// The manifest's records on any bytes. After the mode, the second byte says which: 0 place, 1 content,
// 2 root, 3 record key.
#include <xxhash.h>

#include "lib/wire/object_record.h"
#include "lib/wire/sealed_layout.h"
#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {
namespace {

constexpr size_t kSumBytes = 8;
enum Kind : uint8_t { kPlace = 0, kContent = 1, kRoot = 2, kKey = 3, kNumKinds = 4 };

// What a value of this kind decodes to, encoded again; empty where it does not decode.
std::string Recoded(Kind kind, std::string_view value) {
  if (kind == kPlace) {
    const Result<ObjectRecord> record = DecodePlace(value);
    if (!record.ok()) return {};
    const uint64_t run_bytes = RunBytes(record->meta.frame_bytes, record->key_id != 0);
    uint64_t total = 0;
    for (const Extent& extent : record->extents) {
      FUZZ_CHECK(extent.length <= run_bytes);
      total += extent.length;
    }
    FUZZ_CHECK(total == run_bytes);
    return EncodePlace(*record);
  }
  if (kind == kContent) {
    const Result<ChunkContent> content = DecodeRecordContent(value);
    return content.ok() ? EncodeRecordContent(*content) : std::string();
  }
  if (kind == kRoot) {
    const Result<RootRecord> record = DecodeRootRecord(ChunkKey{}, value);
    return record.ok() ? EncodeRootRecord(*record) : std::string();
  }
  const Result<ObjectId> id = DecodeRecordKey(value);
  return id.ok() ? EncodeRecordKey(*id) : std::string();
}

void Reseal(MutableBytes bytes) {
  if (bytes.size() < kSumBytes) return;
  const size_t body = bytes.size() - kSumBytes;
  const uint64_t sum = XXH3_64bits(bytes.data(), body);
  std::memcpy(bytes.data() + body, &sum, kSumBytes);
}

std::string PlaceFrom(FuzzInput& input) {
  ObjectRecord record;
  ObjectMeta& meta = record.meta;
  meta.codec = static_cast<Codec>(input.Take<uint8_t>());
  meta.flags = input.Take<uint16_t>();
  meta.division = input.Take<uint32_t>();
  meta.priority = input.Take<int32_t>();
  record.header_bytes = input.Take<uint32_t>();
  meta.expiry = WallTime(std::chrono::nanoseconds(input.Take<int64_t>()));
  meta.generation = input.Take<uint64_t>();
  meta.first_token = input.Take<uint64_t>();
  meta.payload_bytes = input.TakeIn(0, uint64_t{1} << 30);
  input.Fill(meta.root.bytes);
  input.Fill(meta.parent.bytes);
  if (input.Take<uint8_t>() % 2 == 1) record.content_bytes = input.Take<uint16_t>();
  meta.frame_bytes = kFrameAlignment * input.TakeIn(0, 1 << 14);
  record.key_id = input.Take<uint8_t>() % 2 == 1 ? input.Take<uint32_t>() : 0;
  uint64_t left = RunBytes(meta.frame_bytes, record.key_id != 0);
  while (left > 0) {
    const uint64_t length = record.extents.size() == 8 ? left : input.TakeIn(1, left);
    record.extents.push_back({input.Take<uint32_t>(), input.Take<uint64_t>(), length});
    left -= length;
  }
  return EncodePlace(record);
}

std::string ContentFrom(FuzzInput& input) {
  ChunkContent content;
  content.tokens.resize(input.TakeIn(0, 600));
  input.Fill(std::as_writable_bytes(std::span(content.tokens)));
  uint64_t position = input.Take<uint8_t>();
  for (size_t n = input.TakeIn(0, 6); n > 0 && position < content.tokens.size(); --n) {
    Item item{position, std::vector<std::byte>(input.TakeIn(1, kMaxItemBytes))};
    input.Fill(item.bytes);
    content.items.push_back(std::move(item));
    position += input.TakeIn(1, 40);
  }
  return EncodeRecordContent(content);
}

std::string RootFrom(FuzzInput& input) {
  RootRecord record;
  record.spec.resize(input.TakeIn(0, 300));
  input.Fill(std::as_writable_bytes(std::span(record.spec)));
  record.adapters.resize(input.TakeIn(0, 100));
  input.Fill(std::as_writable_bytes(std::span(record.adapters)));
  input.Fill(record.salt_sha256.bytes);
  return EncodeRootRecord(record);
}

std::string KeyFrom(FuzzInput& input) {
  ObjectId id;
  input.Fill(id.key.bytes);
  id.part = {input.Take<uint16_t>(), input.Take<uint16_t>()};
  return EncodeRecordKey(id);
}

void CheckChoices(Kind kind, FuzzInput input) {
  const std::string value = kind == kPlace     ? PlaceFrom(input)
                            : kind == kContent ? ContentFrom(input)
                            : kind == kRoot    ? RootFrom(input)
                                               : KeyFrom(input);
  const ExactCopy bytes(std::as_bytes(std::span(value)));
  FUZZ_CHECK(Recoded(kind, bytes.text()) == value);
  const size_t keep = input.Take<uint16_t>() % value.size();
  FUZZ_CHECK(Recoded(kind, std::string_view(value).substr(0, keep)).empty());
  const size_t end = kind == kKey ? value.size() : value.size() - kSumBytes;
  if (!ChangeOneRun(input, end, bytes.bytes())) return;
  const std::string changed = Recoded(kind, bytes.text());
  // A record key has no checksum: each names another object.
  FUZZ_CHECK(kind == kKey ? changed == bytes.text() && changed != value : changed.empty());
}

}  // namespace

TERRACE_FUZZ_TARGET(FuzzManifestRecord) {
  FuzzInput input(data, size);
  const auto mode = static_cast<Mode>(input.Take<uint8_t>() % kNumModes);
  const auto kind = static_cast<Kind>(input.Take<uint8_t>() % kNumKinds);
  if (mode == kFromChoices) {
    CheckChoices(kind, input);
    return 0;
  }
  const ExactCopy value(input.rest());
  if (mode == kResealed && kind != kKey) Reseal(value.bytes());
  const std::string recoded = Recoded(kind, value.text());
  FUZZ_CHECK(recoded.empty() || recoded == value.text());
  return 0;
}

}  // namespace terrace::fuzz
