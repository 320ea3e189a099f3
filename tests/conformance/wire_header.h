// Real frame headers for the suite's objects, for the backends of this tree that read them.
#pragma once

#include "lib/wire/frame.h"
#include "terrace/backend.h"
#include "terrace/token_hasher.h"

namespace terrace {

inline Status WriteWireHeader(ObjectId& id, ObjectMeta& meta, MutableBytes frame) {
  id.key = TokenHasher::KeyOf(meta.parent, *meta.content);
  FrameHeader header;
  header.root = meta.root;
  header.parent = meta.parent;
  header.key = id.key;
  header.first_token = meta.first_token;
  header.content = *meta.content;
  header.part = id.part;
  // The area's length depends on the number of pieces, which depends on the payload: two rounds settle it.
  uint64_t header_bytes = kFrameAlignment;
  for (int round = 0; round < 2; ++round) {
    header.payload_bytes = header.stored_bytes = frame.size() - header_bytes;
    header.pieces = PlanPieces(header.payload_bytes, {});
    Result<uint32_t> needed = HeaderBytes(header);
    if (!needed.ok()) return needed.status();
    header_bytes = *needed;
  }
  for (Piece& piece : header.pieces) {
    piece.hash = HashBytes(frame.subspan(header_bytes + piece.stored_offset, piece.stored_bytes));
  }
  meta.payload_bytes = header.payload_bytes;
  return WriteFrameHeader(header, frame);
}

}  // namespace terrace
