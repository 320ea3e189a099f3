#include "backends/nvme/superblock.h"

#include <openssl/rand.h>

#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TERRDIR1";
constexpr size_t kHashedBytes = 72;

Hash128 HashOf(std::string_view bytes) {
  return HashBytes({reinterpret_cast<const std::byte*>(bytes.data()), kHashedBytes});
}

Status Randomize(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1) {
    return UnavailableError("the system gave no random bytes");
  }
  return OkStatus();
}

}  // namespace

std::string EncodeSuperblock(const Superblock& superblock) {
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(kSuperblockVersion);
  out.Write<uint32_t>(0);
  out.WriteBytes(Bytes(superblock.directory));
  out.WriteBytes(Bytes(superblock.secret));
  out.Write<uint64_t>(superblock.segment_bytes);
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
  if (version != kSuperblockVersion) {
    return DataLossError("superblock: version " + std::to_string(version) + ", this program reads version " +
                         std::to_string(kSuperblockVersion));
  }
  if (bytes.size() != kSuperblockBytes)
    return DataLossError("superblock: " + std::to_string(bytes.size()) + " bytes");
  in.Read<uint32_t>();
  Superblock superblock;
  const std::string_view directory = in.ReadBytes(superblock.directory.size());
  const std::string_view secret = in.ReadBytes(superblock.secret.size());
  std::memcpy(superblock.directory.data(), directory.data(), directory.size());
  std::memcpy(superblock.secret.data(), secret.data(), secret.size());
  superblock.segment_bytes = in.Read<uint64_t>();
  Hash128 stored;
  stored.low = in.Read<uint64_t>();
  stored.high = in.Read<uint64_t>();
  if (!in.ok() || stored != HashOf(bytes)) return DataLossError("superblock: checksum is wrong");
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
