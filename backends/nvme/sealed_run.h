// A sealed run: how an object's frame is encrypted. Where the parts lie is drawn in lib/wire/sealed_layout.h;
// the tier page in front is plain, names key id, salt and object, and its code covers the plain header area.
//
//   run key   HKDF-SHA-256(key of the page's key id, salt = the page's salt,
//                          info = "terrace-object-1\0" || directory id || u64 generation || record key)
//   piece i   AES-256-GCM under the run key; nonce = u64 i || u32 0;
//             associated = record key || u64 generation || u64 frame_bytes || u64 i
//
// little-endian; record key as in lib/wire/object_record.h. The salt is random and of one run: no nonce is
// ever used twice under a key, also where a directory is copied and both copies go on giving out the same
// generations. A piece is right at its own place in its own run only: what was moved, or belongs to another
// object, save, directory or length, does not open.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backends/nvme/key_ring.h"
#include "lib/wire/sealed_layout.h"
#include "lib/wire/tier_page.h"
#include "terrace/bytes.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

struct RunIdentity {
  DirectoryId directory{};
  ObjectId id;
  uint64_t generation = 0;
  uint64_t frame_bytes = 0;
};

CipherKey DeriveRunKey(const CipherKey& key, const ObjectSalt& salt, const RunIdentity& run);
// kUnavailable where the system gives no random bytes.
Result<ObjectSalt> NewSalt();

// Length of a piece.
uint64_t SealedPieceLength(uint64_t frame_bytes, uint64_t piece);

// Encrypts one frame, once, from its first byte to its last.
class RunSealer {
 public:
  RunSealer(const CipherKey& run_key, const RunIdentity& run, MutableBytes tag_area);
  // The frame's next bytes; `out` has as many. The tags are written as pieces end.
  void Seal(Bytes plain, std::byte* out);
  // Every byte was sealed, and every tag is in its place.
  bool done() const { return done_bytes_ == run_.frame_bytes; }

 private:
  CipherKey key_;
  const RunIdentity run_;
  const MutableBytes tags_;
  std::optional<GcmStream> stream_;  // from the first byte to the last: most writes wait for their turn
  uint64_t done_bytes_ = 0;
};

class RunOpener {
 public:
  RunOpener(const CipherKey& run_key, const RunIdentity& run);
  // Opens piece `piece` in place; `tag_area` is the run's, or what of it has this piece's tag. kDataLoss: it
  // is not this piece of this run, and `bytes` hold nothing of worth.
  Status Open(uint64_t piece, MutableBytes bytes, Bytes tag_area);

 private:
  GcmStream stream_;
  const RunIdentity run_;
};

// Reads bytes of one run, from an offset in it; false where that is not possible.
using RunReader = std::function<bool(uint64_t run_offset, MutableBytes to)>;
// For a scan: the plain header area of the frame behind a tier page that says it is sealed. Every piece of
// it is authenticated; the page is not, before ParseTierPage took this header area. Bounded by the header's
// 1 MiB and 64 KiB. kDataLoss: it cannot be read, the key is not there, or a piece does not open.
Result<std::vector<std::byte>> OpenHeaderArea(const PeekedTierPage& page, const KeyRing& keys,
                                              const RunReader& read);

}  // namespace terrace
