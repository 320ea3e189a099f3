#include "lib/wire/shm_message.h"

#include <string>
#include <string_view>

#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TERRSHM1";

}  // namespace

std::array<std::byte, kShmHelloBytes> EncodeShmHello(const ShmHello& hello) {
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(hello.version);
  out.Write<uint32_t>(0);
  out.WriteBytes(Bytes(hello.session));
  out.WriteBytes(Bytes(hello.token));
  return out.TakeArray<kShmHelloBytes>();
}

Result<ShmHello> DecodeShmHello(Bytes bytes) {
  if (bytes.size() != kShmHelloBytes) return DataLossError("shm hello: wrong length");
  ByteReader in(bytes);
  if (in.ReadBytes(kMagic.size()) != kMagic) return DataLossError("shm hello: wrong magic");
  ShmHello hello;
  hello.version = in.Read<uint32_t>();
  if (in.Read<uint32_t>() != 0) return DataLossError("shm hello: unknown fields are set");
  hello.session = in.ReadArray<sizeof(hello.session)>();
  hello.token = in.ReadArray<sizeof(hello.token)>();
  return hello;
}

std::array<std::byte, kShmWelcomeBytes> EncodeShmWelcome(const ShmWelcome& welcome) {
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(welcome.version);
  out.Write<uint32_t>(static_cast<uint32_t>(welcome.code));
  out.Write<uint64_t>(welcome.pool_bytes);
  out.Write<uint64_t>(welcome.generations_bytes);
  out.Write<uint64_t>(welcome.staging_bytes);
  return out.TakeArray<kShmWelcomeBytes>();
}

Result<ShmWelcome> DecodeShmWelcome(Bytes bytes) {
  if (bytes.size() != kShmWelcomeBytes) return DataLossError("shm welcome: wrong length");
  ByteReader in(bytes);
  if (in.ReadBytes(kMagic.size()) != kMagic) return DataLossError("shm welcome: wrong magic");
  ShmWelcome welcome;
  welcome.version = in.Read<uint32_t>();
  const auto code = in.Read<uint32_t>();
  if (code > static_cast<uint32_t>(BulkCode::kGivenUp)) return DataLossError("shm welcome: unknown code");
  welcome.code = static_cast<BulkCode>(code);
  welcome.pool_bytes = in.Read<uint64_t>();
  welcome.generations_bytes = in.Read<uint64_t>();
  welcome.staging_bytes = in.Read<uint64_t>();
  return welcome;
}

}  // namespace terrace
