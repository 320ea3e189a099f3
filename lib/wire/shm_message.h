// ShmMessage: the handshake on the Unix socket that passes memory to a client on the same host. Afterwards
// the socket carries nothing; it is the client's sign of life, and its end gives back what the session holds
// in shared memory.
//
//   hello    8 magic "TERRSHM1" | u32 version = 1 | u32 0 | 16 session id | 32 token              64 bytes
//   welcome  8 magic "TERRSHM1" | u32 version = 1 | u32 code (BulkCode) | u64 pool_bytes
//            | u64 generations_bytes | u64 staging_bytes                                          40 bytes
//            with SCM_RIGHTS, where code = 0: pool, generations (both sealed, see terrace/shared_pool.h) and
//            the session's staging area (F_SEAL_SHRINK | F_SEAL_GROW; the client writes it, the server copies
//            out of it, checks its copy, and publishes that)
//
// The server checks the peer's credentials before anything else, and refuses users other than its own and
// those that its configuration names.
#pragma once

#include <array>
#include <cstdint>

#include "lib/wire/bulk_message.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kShmVersion = 1;
inline constexpr size_t kShmHelloBytes = 64;
inline constexpr size_t kShmWelcomeBytes = 40;

struct ShmHello {
  uint32_t version = kShmVersion;
  SessionId session{};
  OneTimeToken token{};
};

struct ShmWelcome {
  uint32_t version = kShmVersion;
  BulkCode code = BulkCode::kOk;
  uint64_t pool_bytes = 0;
  uint64_t generations_bytes = 0;
  uint64_t staging_bytes = 0;
};

std::array<std::byte, kShmHelloBytes> EncodeShmHello(const ShmHello& hello);
Result<ShmHello> DecodeShmHello(Bytes bytes);
std::array<std::byte, kShmWelcomeBytes> EncodeShmWelcome(const ShmWelcome& welcome);
Result<ShmWelcome> DecodeShmWelcome(Bytes bytes);

}  // namespace terrace
