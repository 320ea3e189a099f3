// DecodePart on any bytes, whole and cut into slices: both say the same, and the payload lies in the slices.
#include <algorithm>

#include "lib/wire/part_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {
namespace {

constexpr uint64_t kMaxPayloadBytes = 1 << 16;

std::string Joined(const std::vector<Bytes>& pieces) {
  std::string all;
  for (const Bytes& piece : pieces) all.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return all;
}

// Slices of `step` bytes, each on the heap alone so that a read across its end is seen; 0: one slice.
std::vector<ExactCopy> Cut(Bytes bytes, size_t step) {
  std::vector<ExactCopy> slices;
  if (step == 0) step = std::max<size_t>(bytes.size(), 1);
  for (size_t at = 0; at < bytes.size(); at += step) {
    slices.emplace_back(bytes.subspan(at, std::min(step, bytes.size() - at)));
  }
  return slices;
}

Result<PartMessage> Decode(PartKind kind, const std::vector<ExactCopy>& slices) {
  std::vector<Bytes> spans;
  for (const ExactCopy& slice : slices) spans.push_back(slice.bytes());
  return DecodePart(kind, spans, kMaxPayloadBytes);
}

void Check(PartKind kind, Bytes bytes, size_t step) {
  const std::vector<ExactCopy> whole_slices = Cut(bytes, 0);
  const std::vector<ExactCopy> cut_slices = Cut(bytes, step);
  const Result<PartMessage> whole = Decode(kind, whole_slices);
  const Result<PartMessage> cut = Decode(kind, cut_slices);
  FUZZ_CHECK(whole.ok() == cut.ok());
  if (!whole.ok()) {
    FUZZ_CHECK(whole.status().code() == StatusCode::kDataLoss);
    return;
  }
  const std::string payload = Joined(whole->data);
  FUZZ_CHECK(payload == Joined(cut->data) && payload.size() == whole->data_bytes);
  FUZZ_CHECK(whole->data_bytes == cut->data_bytes && whole->data_bytes <= kMaxPayloadBytes);
  FUZZ_CHECK(whole->transfer == cut->transfer && whole->offset == cut->offset);
  FUZZ_CHECK(whole->session_id == cut->session_id && whole->has_results == cut->has_results);
  FUZZ_CHECK(!whole->has_results || whole->data_bytes == 0);
  // In its one form it says the same, but for results and unknown fields.
  const std::string again = EncodePartPrefix(kind, *whole) + payload;
  const Result<PartMessage> decoded = Decode(kind, Cut(std::as_bytes(std::span(again)), step));
  FUZZ_CHECK(decoded.ok() && decoded->transfer == whole->transfer && decoded->offset == whole->offset);
  FUZZ_CHECK(decoded->session_id == whole->session_id && decoded->data_bytes == whole->data_bytes);
}

void CheckChoices(FuzzInput input) {
  const auto kind = input.Take<uint8_t>() % 2 == 0 ? PartKind::kGet : PartKind::kPut;
  const size_t step = input.Take<uint8_t>();
  PartMessage part{.transfer = input.Take<uint64_t>(), .offset = input.Take<uint64_t>()};
  if (kind == PartKind::kPut) part.session_id.assign(input.TakeIn(0, 16), 's');
  part.data_bytes = input.TakeIn(0, 300);
  const std::string wire = EncodePartPrefix(kind, part) + std::string(part.data_bytes, 'd');
  Check(kind, std::as_bytes(std::span(wire)), step);
  FUZZ_CHECK(Decode(kind, Cut(std::as_bytes(std::span(wire)), step)).ok());
}

}  // namespace

TERRACE_FUZZ_TARGET(FuzzPartMessage) {
  FuzzInput input(data, size);
  if (input.Take<uint8_t>() % kNumModes == kFromChoices) {
    CheckChoices(input);
    return 0;
  }
  const auto kind = input.Take<uint8_t>() % 2 == 0 ? PartKind::kGet : PartKind::kPut;
  const size_t step = input.Take<uint8_t>();
  const ExactCopy bytes(input.rest());
  Check(kind, bytes.bytes(), step);
  return 0;
}

}  // namespace terrace::fuzz
