// BulkMessage: what stands in front of bytes on a bulk socket, one version for TCP, Unix sockets and TLS.
//
// A connection begins with the client's hello, answered by the server's; then both sides send data messages,
// each followed by its bytes. Little-endian:
//
//   hello    8 magic "TERRBLK1" | u32 version = 1 | u32 connection (the client's number for it)
//            | 16 session id | 32 token                                                           64 bytes
//   welcome  8 magic "TERRBLK1" | u32 version = 1 | u32 code (BulkCode) | u64 max_message_bytes   24 bytes
//   data     u32 magic "DATA" | u32 flags = 0 | u64 transfer | u64 offset | u64 length            32 bytes
//            then `length` bytes [offset, offset + length) of the transfer's frame
//   abort    u32 magic "ABRT" | u32 code | u64 transfer | u64 0 | u64 0                           32 bytes
//            the sender gives the transfer up: no more bytes of it follow on any connection
//
// The token is one of those that OpenSession gave: good for one connection, once, for ten seconds. A message
// is 4,096 B to 4 MiB, whole multiples of 4,096, and names a transfer of the connection's session; a message
// that breaks a rule ends the connection, and with it the session's transfers that still lack bytes. Data to
// the server are the bytes of a put, data to the client those of a get: transfer numbers of the two
// directions are apart.
#pragma once

#include <array>
#include <cstdint>

#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kBulkVersion = 1;
inline constexpr size_t kBulkHelloBytes = 64;
inline constexpr size_t kBulkWelcomeBytes = 24;
inline constexpr size_t kBulkMessageBytes = 32;
inline constexpr uint64_t kMaxBulkMessageBytes = uint64_t{4} << 20;

using SessionId = std::array<std::byte, 16>;
using OneTimeToken = std::array<std::byte, 32>;

enum class BulkCode : uint32_t { kOk = 0, kRefused = 1, kVersion = 2, kDraining = 3, kGivenUp = 4 };

struct BulkHello {
  uint32_t version = kBulkVersion;
  uint32_t connection = 0;
  SessionId session{};
  OneTimeToken token{};
};

struct BulkWelcome {
  uint32_t version = kBulkVersion;
  BulkCode code = BulkCode::kOk;
  uint64_t max_message_bytes = kMaxBulkMessageBytes;
};

enum class BulkKind : uint8_t { kData, kAbort };

struct BulkMessage {
  BulkKind kind = BulkKind::kData;
  uint64_t transfer = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  BulkCode code = BulkCode::kOk;  // of an abort
};

// Parsers take exactly the bytes that the constants above name; anything wrong is kDataLoss with the reason.
// Another version is not wrong: its receiver answers kVersion, or gives the connection up.
std::array<std::byte, kBulkHelloBytes> EncodeBulkHello(const BulkHello& hello);
Result<BulkHello> DecodeBulkHello(Bytes bytes);
std::array<std::byte, kBulkWelcomeBytes> EncodeBulkWelcome(const BulkWelcome& welcome);
Result<BulkWelcome> DecodeBulkWelcome(Bytes bytes);
std::array<std::byte, kBulkMessageBytes> EncodeBulkMessage(const BulkMessage& message);
Result<BulkMessage> DecodeBulkMessage(Bytes bytes);

}  // namespace terrace
