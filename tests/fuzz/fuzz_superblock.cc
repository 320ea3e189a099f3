// DecodeSuperblock on any bytes.
#include "backends/nvme/superblock.h"
#include "lib/wire/frame.h"
#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {
namespace {

constexpr size_t kVersionAt = 8;

// Where the hash stands, which is also how much is hashed.
size_t HashAt(uint32_t version) { return version == 1 ? 72 : 280; }

bool SameFields(const Superblock& a, const Superblock& b) {
  return a.directory == b.directory && a.secret == b.secret && a.segment_bytes == b.segment_bytes &&
         a.rebuild_floor == b.rebuild_floor && a.keys == b.keys;
}

void CheckDecoded(std::string_view bytes, const Superblock& superblock) {
  FUZZ_CHECK(superblock.keys.size() <= kMaxKeys);
  const std::string encoded = EncodeSuperblock(superblock);
  FUZZ_CHECK(encoded.size() == kSuperblockBytes);
  // What an older version says has one form in the current one, and the current one has no other.
  FUZZ_CHECK(encoded == bytes || encoded[kVersionAt] != bytes[kVersionAt]);
  const Result<Superblock> again = DecodeSuperblock(encoded);
  FUZZ_CHECK(again.ok() && SameFields(*again, superblock));
}

void Reseal(MutableBytes bytes) {
  if (bytes.size() < kVersionAt + 4) return;
  uint32_t version;
  std::memcpy(&version, bytes.data() + kVersionAt, sizeof(version));
  const size_t at = HashAt(version);
  if (bytes.size() < at + 16) return;
  const Hash128 hash = HashBytes(bytes.first(at));
  std::memcpy(bytes.data() + at, &hash.low, 8);
  std::memcpy(bytes.data() + at + 8, &hash.high, 8);
}

void CheckChoices(FuzzInput input) {
  Superblock superblock;
  input.Fill(superblock.directory);
  input.Fill(superblock.secret);
  superblock.segment_bytes = input.Take<uint64_t>();
  superblock.rebuild_floor = input.Take<uint64_t>();
  uint32_t id = 0;
  for (uint64_t n = input.TakeIn(0, kMaxKeys); n > 0; --n) {
    KeyCheck key{.id = id += static_cast<uint32_t>(input.TakeIn(1, UINT32_MAX / kMaxKeys))};
    input.Fill(key.check);
    superblock.keys.push_back(key);
  }
  const std::string encoded = EncodeSuperblock(superblock);
  const ExactCopy bytes(std::as_bytes(std::span(encoded)));
  const Result<Superblock> decoded = DecodeSuperblock(bytes.text());
  FUZZ_CHECK(decoded.ok() && SameFields(*decoded, superblock));
  FUZZ_CHECK(EncodeSuperblock(*decoded) == encoded);
  FUZZ_CHECK(!DecodeSuperblock(std::string_view(encoded).substr(0, encoded.size() - 1)).ok());
  FUZZ_CHECK(!DecodeSuperblock(encoded + '\0').ok());
  if (!ChangeOneRun(input, HashAt(kSuperblockVersion), bytes.bytes())) return;
  FUZZ_CHECK(!DecodeSuperblock(bytes.text()).ok());
}

}  // namespace

TERRACE_FUZZ_TARGET(FuzzSuperblock) {
  FuzzInput input(data, size);
  const auto mode = static_cast<Mode>(input.Take<uint8_t>() % kNumModes);
  if (mode == kFromChoices) {
    CheckChoices(input);
    return 0;
  }
  const ExactCopy bytes(input.rest());
  if (mode == kResealed) Reseal(bytes.bytes());
  const Result<Superblock> superblock = DecodeSuperblock(bytes.text());
  if (superblock.ok()) CheckDecoded(bytes.text(), *superblock);
  return 0;
}

}  // namespace terrace::fuzz
