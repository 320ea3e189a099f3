// ModelPayload: bytes that follow from an object's id and the number of the save. Two saves of one object
// differ, and whatever is loaded says which save it is and can be told right from wrong.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "terrace/bytes.h"
#include "terrace/object_id.h"

namespace terrace {

class ModelPayload {
 public:
  static constexpr size_t kMinBytes = 16;

  ModelPayload(const ObjectId& id, uint64_t save) : save_(save) {
    uint64_t word = id.key.Prefix64() ^ (save * 0x9e3779b97f4a7c15ull) ^
                    (uint64_t{id.part.group} << 48 | uint64_t{id.part.shard} << 32);
    for (uint64_t& w : block_) {
      word = word * 6364136223846793005ull + 1442695040888963407ull;
      w = word;
    }
  }

  void Fill(MutableBytes payload) {
    ForEachBlock(payload.size(), [&](size_t at, size_t n) {
      std::memcpy(payload.data() + at, block_.data(), n);
      return true;
    });
  }
  bool Equals(Bytes payload) {
    return ForEachBlock(payload.size(), [&](size_t at, size_t n) {
      return std::memcmp(payload.data() + at, block_.data(), n) == 0;
    });
  }
  // The save that the bytes claim to be.
  static uint64_t SaveOf(Bytes payload) {
    uint64_t save = 0;
    if (payload.size() >= kMinBytes) std::memcpy(&save, payload.data() + 8, sizeof(save));
    return save;
  }

 private:
  template <typename Visit>
  bool ForEachBlock(size_t size, const Visit& visit) {
    block_[1] = save_;
    for (size_t at = 0; at < size; at += sizeof(block_)) {
      block_[0] = at;  // no block may stand in another's place
      if (!visit(at, std::min(sizeof(block_), size - at))) return false;
    }
    return true;
  }

  const uint64_t save_;
  std::array<uint64_t, 512> block_;
};

}  // namespace terrace
