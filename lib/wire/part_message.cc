#include "lib/wire/part_message.h"

#include <algorithm>

#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kSized = 2, kFixed32 = 5 };

constexpr uint32_t kDataField = 15;
constexpr size_t kMaxSessionIdBytes = 64;

// The numbers of a kind's fields; zero where it has none.
struct Fields {
  uint32_t session_id;
  uint32_t transfer;
  uint32_t offset;
  uint32_t results;
};

constexpr Fields FieldsOf(PartKind kind) {
  return kind == PartKind::kGet ? Fields{.session_id = 0, .transfer = 1, .offset = 2, .results = 3}
                                : Fields{.session_id = 1, .transfer = 2, .offset = 3, .results = 0};
}

void WriteVarint(uint64_t value, ByteWriter& out) {
  for (; value >= 0x80; value >>= 7) out.Write<uint8_t>(static_cast<uint8_t>(value | 0x80));
  out.Write<uint8_t>(static_cast<uint8_t>(value));
}

void WriteTag(uint32_t field, WireType type, ByteWriter& out) {
  WriteVarint((field << 3) | static_cast<uint32_t>(type), out);
}

// Reads across the borders of slices; after a failed read ok() is false and everything else gives zeros.
class SliceReader {
 public:
  explicit SliceReader(std::span<const Bytes> slices) : slices_(slices) {
    for (const Bytes& slice : slices) remaining_ += slice.size();
  }

  bool ok() const { return ok_; }
  uint64_t remaining() const { return remaining_; }

  // Calls `take` with each of the pieces that the next `n` bytes lie in.
  template <typename Take>
  void Pieces(uint64_t n, const Take& take) {
    if (!ok_ || n > remaining_) {
      ok_ = false;
      return;
    }
    remaining_ -= n;
    while (n > 0) {
      const Bytes left = slices_.front().subspan(at_);
      const Bytes piece = left.first(std::min<uint64_t>(n, left.size()));
      if (!piece.empty()) take(piece);
      n -= piece.size();
      at_ += piece.size();
      if (at_ == slices_.front().size()) {
        slices_ = slices_.subspan(1);
        at_ = 0;
      }
    }
  }
  void Skip(uint64_t n) {
    Pieces(n, [](Bytes) {});
  }
  uint64_t Fixed64() {
    uint64_t value = 0;
    int shift = 0;
    Pieces(sizeof(value), [&](Bytes piece) {
      for (const std::byte byte : piece) {
        value |= static_cast<uint64_t>(byte) << shift;
        shift += 8;
      }
    });
    return ok_ ? value : 0;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = 0;
      Pieces(1, [&](Bytes piece) { byte = static_cast<uint8_t>(piece[0]); });
      if (shift == 63 && byte > 1) ok_ = false;  // more than 64 bits
      if (!ok_) return 0;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

 private:
  std::span<const Bytes> slices_;
  size_t at_ = 0;  // in the first of them
  uint64_t remaining_ = 0;
  bool ok_ = true;
};

class PartReader {
 public:
  PartReader(PartKind kind, std::span<const Bytes> slices, uint64_t max_data_bytes)
      : fields_(FieldsOf(kind)), in_(slices), max_data_bytes_(max_data_bytes) {}

  Result<PartMessage> Read() {
    while (in_.ok() && in_.remaining() > 0) {
      const uint64_t tag = in_.Varint();
      const uint64_t field = tag >> 3;
      if (!in_.ok() || tag > UINT32_MAX || field == 0) return DataLossError("part: not a field");
      const Status read = ReadField(static_cast<uint32_t>(field), static_cast<WireType>(tag & 7));
      if (!read.ok()) return read;
    }
    if (!in_.ok()) return DataLossError("part: cut off, or a number is too long");
    if (part_.has_results && part_.data_bytes > 0) return DataLossError("part: data beside results");
    return std::move(part_);
  }

 private:
  Status ReadField(uint32_t field, WireType type) {
    const auto is = [&](uint32_t number) { return number != 0 && field == number; };
    if (is(fields_.transfer)) {
      if (type != WireType::kFixed64) return OtherType("transfer");
      part_.transfer = in_.Fixed64();
    } else if (is(fields_.offset)) {
      if (type != WireType::kVarint) return OtherType("offset");
      part_.offset = in_.Varint();
    } else if (is(fields_.session_id)) {
      if (type != WireType::kSized) return OtherType("session_id");
      return ReadSessionId();
    } else if (is(fields_.results)) {
      if (type != WireType::kSized) return OtherType("results");
      part_.has_results = true;
      in_.Skip(in_.Varint());
    } else if (is(kDataField)) {
      if (type != WireType::kSized) return OtherType("data");
      return ReadPayload();
    } else {
      return SkipField(type);
    }
    return OkStatus();
  }

  Status ReadSessionId() {
    const uint64_t n = in_.Varint();
    if (n > kMaxSessionIdBytes) return DataLossError("part: session_id is too long");
    part_.session_id.clear();
    in_.Pieces(n, [&](Bytes piece) {
      part_.session_id.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return OkStatus();
  }

  Status ReadPayload() {
    const uint64_t n = in_.Varint();
    if (!in_.ok() || n > in_.remaining()) return DataLossError("part: data is cut off");
    if (n < in_.remaining()) return DataLossError("part: data is not last");
    if (n > max_data_bytes_) return DataLossError("part: more data than allowed");
    part_.data_bytes = n;
    in_.Pieces(n, [&](Bytes piece) { part_.data.push_back(piece); });
    return OkStatus();
  }

  Status SkipField(WireType type) {
    switch (type) {
      case WireType::kVarint:
        in_.Varint();
        return OkStatus();
      case WireType::kFixed64:
        in_.Skip(8);
        return OkStatus();
      case WireType::kSized:
        in_.Skip(in_.Varint());
        return OkStatus();
      case WireType::kFixed32:
        in_.Skip(4);
        return OkStatus();
    }
    return DataLossError("part: unknown wire type");
  }

  static Status OtherType(const char* field) {
    return DataLossError(std::string("part: ") + field + " is of another type");
  }

  const Fields fields_;
  SliceReader in_;
  const uint64_t max_data_bytes_;
  PartMessage part_;
};

}  // namespace

std::string EncodePartPrefix(PartKind kind, const PartMessage& part) {
  const Fields fields = FieldsOf(kind);
  ByteWriter out;
  if (fields.session_id != 0 && !part.session_id.empty()) {
    WriteTag(fields.session_id, WireType::kSized, out);
    WriteVarint(part.session_id.size(), out);
    out.WriteBytes(part.session_id);
  }
  if (part.transfer != 0) {
    WriteTag(fields.transfer, WireType::kFixed64, out);
    out.Write<uint64_t>(part.transfer);
  }
  if (part.offset != 0) {
    WriteTag(fields.offset, WireType::kVarint, out);
    WriteVarint(part.offset, out);
  }
  if (part.data_bytes != 0) {
    WriteTag(kDataField, WireType::kSized, out);
    WriteVarint(part.data_bytes, out);
  }
  return out.Take();
}

Result<PartMessage> DecodePart(PartKind kind, std::span<const Bytes> slices, uint64_t max_data_bytes) {
  return PartReader(kind, slices, max_data_bytes).Read();
}

}  // namespace terrace
