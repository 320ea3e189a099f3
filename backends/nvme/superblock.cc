#include "backends/nvme/superblock.h"

#include <openssl/rand.h>

#include <cstring>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TERRDIR1";
constexpr size_t kHashedBytesV1 = 72;
constexpr size_t kHashedBytes = 280;

Hash128 HashOf(std::string_view bytes) {
  return HashBytes({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

template <size_t kSize>
std::array<std::byte, kSize> ReadArray(ByteReader& in) {
  std::array<std::byte, kSize> out{};
  const std::string_view bytes = in.ReadBytes(kSize);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// What version 2 has behind segment_bytes.
Status ReadKeys(ByteReader& in, Superblock* superblock) {
  superblock->rebuild_floor = in.Read<uint64_t>();
  const uint32_t num_keys = in.Read<uint32_t>();
  if (num_keys > kMaxKeys) return DataLossError("superblock: " + std::to_string(num_keys) + " keys");
  if (in.Read<uint32_t>() != 0) return DataLossError("superblock: a reserved field is not zero");
  for (size_t i = 0; i < kMaxKeys; ++i) {
    KeyCheck key;
    key.id = in.Read<uint32_t>();
    const uint32_t reserved = in.Read<uint32_t>();
    key.check = ReadArray<sizeof(key.check)>(in);
    if (reserved != 0) return DataLossError("superblock: a reserved field is not zero");
    if (i >= num_keys) {
      if (key != KeyCheck()) return DataLossError("superblock: an unused key is not zero");
      continue;
    }
    if (key.id <= (superblock->keys.empty() ? 0 : superblock->keys.back().id)) {
      return DataLossError("superblock: key ids do not rise");
    }
    superblock->keys.push_back(key);
  }
  return OkStatus();
}

Status Randomize(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1) {
    return UnavailableError("the system gave no random bytes");
  }
  return OkStatus();
}

}  // namespace

std::string EncodeSuperblock(const Superblock& superblock) {
  TERRACE_CHECK(superblock.keys.size() <= kMaxKeys) << superblock.keys.size() << " keys";
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(kSuperblockVersion);
  out.Write<uint32_t>(0);
  out.WriteBytes(Bytes(superblock.directory));
  out.WriteBytes(Bytes(superblock.secret));
  out.Write<uint64_t>(superblock.segment_bytes);
  out.Write<uint64_t>(superblock.rebuild_floor);
  out.Write<uint32_t>(static_cast<uint32_t>(superblock.keys.size()));
  out.Write<uint32_t>(0);
  std::vector<KeyCheck> keys = superblock.keys;
  keys.resize(kMaxKeys);
  for (const KeyCheck& key : keys) {
    out.Write<uint32_t>(key.id);
    out.Write<uint32_t>(0);
    out.WriteBytes(Bytes(key.check));
  }
  const Hash128 hash = HashOf(out.str());
  out.Write<uint64_t>(hash.low);
  out.Write<uint64_t>(hash.high);
  std::string bytes = out.Take();
  bytes.resize(kSuperblockBytes, '\0');
  return bytes;
}

Result<Superblock> DecodeSuperblock(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.ReadBytes(kMagic.size()) != kMagic) return DataLossError("superblock: magic is wrong");
  const uint32_t version = in.Read<uint32_t>();
  if (version < 1 || version > kSuperblockVersion) {
    return DataLossError("superblock: version " + std::to_string(version) +
                         ", this program reads versions 1 to " + std::to_string(kSuperblockVersion));
  }
  if (bytes.size() != kSuperblockBytes)
    return DataLossError("superblock: " + std::to_string(bytes.size()) + " bytes");
  const size_t hashed_bytes = version == 1 ? kHashedBytesV1 : kHashedBytes;
  ByteReader behind(bytes.substr(hashed_bytes));
  Hash128 stored;
  stored.low = behind.Read<uint64_t>();
  stored.high = behind.Read<uint64_t>();
  if (stored != HashOf(bytes.substr(0, hashed_bytes))) return DataLossError("superblock: checksum is wrong");
  if (bytes.find_first_not_of('\0', hashed_bytes + sizeof(stored)) != std::string_view::npos) {
    return DataLossError("superblock: what follows the checksum is not zero");
  }
  if (in.Read<uint32_t>() != 0) return DataLossError("superblock: a reserved field is not zero");
  Superblock superblock;
  superblock.directory = ReadArray<sizeof(superblock.directory)>(in);
  superblock.secret = ReadArray<sizeof(superblock.secret)>(in);
  superblock.segment_bytes = in.Read<uint64_t>();
  if (version > 1) TERRACE_RETURN_IF_ERROR(ReadKeys(in, &superblock));
  return superblock;
}

Result<Superblock> NewSuperblock(uint64_t segment_bytes) {
  Superblock superblock;
  superblock.segment_bytes = segment_bytes;
  TERRACE_RETURN_IF_ERROR(Randomize(superblock.directory));
  TERRACE_RETURN_IF_ERROR(Randomize(superblock.secret));
  return superblock;
}

Result<DirectorySecret> NewSecret() {
  DirectorySecret secret;
  TERRACE_RETURN_IF_ERROR(Randomize(secret));
  return secret;
}

}  // namespace terrace
