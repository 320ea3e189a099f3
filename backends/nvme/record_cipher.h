// RecordCipher: the manifest's values that hold a caller's content (tokens, specs), sealed.
//
//   u32 key id | nonce[12], random | ciphertext, as long as the value | tag[16]
//
// AES-256-GCM under HKDF-SHA-256(key of that id, salt = directory id, info = "terrace-record-1\0"); the
// record's key is authenticated with it, so that no value serves under another. Random nonces serve 2^32
// values of one key id; a rotation begins anew.
//
// Immutable; from every thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "backends/nvme/key_ring.h"
#include "terrace/status.h"

namespace terrace {

class RecordCipher {
 public:
  // What a sealed value is longer by.
  static constexpr size_t kExtraBytes = 4 + 12 + 16;

  // `keys` are the directory's, and not empty.
  RecordCipher(const KeyRing& keys, const DirectoryId& directory);

  // With the newest key. kUnavailable where the system gives no random bytes.
  Result<std::string> Seal(std::string_view record_key, std::string_view value) const;
  // kDataLoss: cut off, a key that nobody has, or not what was sealed under this record key.
  Result<std::string> Open(std::string_view record_key, std::string_view sealed) const;

 private:
  std::map<uint32_t, CipherKey> keys_;
};

}  // namespace terrace
