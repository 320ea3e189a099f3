// KeyRing: the keys of encryption at rest that the caller gave, and whether they are a directory's.
//
//   the directory            keys given      then
//   is new                   any             the superblock is made with their checks; none: never encrypted
//   is not encrypted         some            kInvalidArgument: a new directory is needed
//   is encrypted             none            kPermissionDenied, naming the ids that are missing
//   knows an id              another key     kPermissionDenied, naming the id
//   knows an id              not that one    kPermissionDenied, naming the id
//   does not know an id      highest of all  a rotation: its check is added to the superblock, durably,
//   before
//                                            anything is encrypted with it
//   does not know an id      a lower one     kInvalidArgument: keys rise
//
// Immutable; from every thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "backends/nvme/aes_gcm.h"
#include "backends/nvme/superblock.h"
#include "terrace/nvme_backend.h"
#include "terrace/status.h"

namespace terrace {

// Ids above 0, each once, at most kMaxKeys. kInvalidArgument naming what is wrong, never a key.
Status ValidateKeys(std::span<const EncryptionKey> keys);

// What tells a directory whether this is the key that it knows under the id.
KeyCheck CheckOf(uint32_t id, const CipherKey& key, const DirectoryId& directory);

class KeyRing {
 public:
  KeyRing() = default;  // nothing is encrypted
  // `keys` are valid.
  explicit KeyRing(std::span<const EncryptionKey> keys);

  bool empty() const { return keys_.empty(); }
  // The one that encrypts; 0 where there is none.
  uint32_t newest_id() const { return keys_.empty() ? 0 : keys_.rbegin()->first; }
  // Null for an id that was not given.
  const CipherKey* Find(uint32_t id) const;
  const std::map<uint32_t, CipherKey>& keys() const { return keys_; }

  // Of a new directory.
  std::vector<KeyCheck> Checks(const DirectoryId& directory) const;
  // Against a directory that is there: the checks that its superblock is to hold, `stored` itself where no
  // key is new. The table above says what is refused.
  Result<std::vector<KeyCheck>> Match(const DirectoryId& directory,
                                      const std::vector<KeyCheck>& stored) const;

 private:
  std::map<uint32_t, CipherKey> keys_;
};

}  // namespace terrace
