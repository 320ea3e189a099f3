// ParseTierPage on any bytes: the page, then the frame's header area.
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "lib/wire/frame.h"
#include "lib/wire/sealed_layout.h"
#include "lib/wire/tier_page.h"
#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {
namespace {

constexpr size_t kVersionAt = 8;
constexpr size_t kHeaderBytesAt = 12;
constexpr size_t kMacAt = 64;
constexpr size_t kMacBytes = 16;

// What the golden page was written under.
DirectorySecret Secret() {
  DirectorySecret secret{};
  secret[5] = std::byte{9};
  return secret;
}

bool SameFields(const TierPage& a, const TierPage& b) {
  return a.directory == b.directory && a.generation == b.generation && a.frame_bytes == b.frame_bytes &&
         a.expiry_ns == b.expiry_ns && a.priority == b.priority && a.sealed == b.sealed &&
         a.key_id == b.key_id && a.salt == b.salt && a.id == b.id && a.extents == b.extents;
}

void CheckDecoded(Bytes header_area, const TierPage& page) {
  std::vector<std::byte> encoded(kTierPageBytes);
  WriteTierPage(page, header_area, Secret(), encoded);
  const Result<TierPage> again = ParseTierPage(encoded, header_area, Secret());
  FUZZ_CHECK(again.ok() && SameFields(*again, page));
}

// The MAC of version 1 covers the fields, that of version 2 the whole page but itself.
void Reseal(MutableBytes page, Bytes header_area) {
  const auto header_bytes = static_cast<uint32_t>(header_area.size());
  std::memcpy(page.data() + kHeaderBytesAt, &header_bytes, sizeof(header_bytes));
  uint32_t version;
  std::memcpy(&version, page.data() + kVersionAt, sizeof(version));
  std::vector<std::byte> covered(page.begin(), page.begin() + kMacAt);
  if (version >= 2) covered.insert(covered.end(), page.begin() + kMacAt + kMacBytes, page.end());
  covered.insert(covered.end(), header_area.begin(), header_area.end());
  const DirectorySecret secret = Secret();
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  FUZZ_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                  reinterpret_cast<const unsigned char*>(covered.data()), covered.size(), mac.data(),
                  nullptr) != nullptr);
  std::memcpy(page.data() + kMacAt, mac.data(), kMacBytes);
}

TierPage PageFrom(FuzzInput& input) {
  constexpr uint64_t kUnit = 4096;
  TierPage page;
  input.Fill(page.directory);
  page.generation = input.Take<uint64_t>();
  page.frame_bytes = kUnit * input.TakeIn(0, 1 << 20);
  page.expiry_ns = input.Take<int64_t>();
  page.priority = input.Take<int32_t>();
  page.sealed = input.Take<uint8_t>() % 2 == 1;
  page.key_id = page.sealed ? std::max<uint32_t>(input.Take<uint32_t>(), 1) : 0;
  input.Fill(page.salt);
  if (page.sealed) {
    input.Fill(page.id.key.bytes);
    page.id.part = {input.Take<uint16_t>(), input.Take<uint16_t>()};
  }
  // None: more than fit.
  uint64_t units = input.Take<uint8_t>() % 4 == 0 ? 0 : RunBytes(page.frame_bytes, page.sealed) / kUnit;
  const size_t max_extents = page.sealed ? kMaxSealedPageExtents : kMaxPageExtents;
  while (units > 0) {
    const uint64_t length = page.extents.size() + 1 == max_extents ? units : input.TakeIn(1, units);
    page.extents.push_back({input.Take<uint32_t>(), kUnit * input.Take<uint32_t>(), kUnit * length});
    units -= length;
  }
  return page;
}

void CheckChoices(FuzzInput input) {
  const TierPage fields = PageFrom(input);
  std::vector<std::byte> area(4096 * input.TakeIn(1, 3));
  input.Fill(std::span(area).first(32));
  std::vector<std::byte> page(kTierPageBytes);
  WriteTierPage(fields, area, Secret(), page);
  const Result<TierPage> decoded = ParseTierPage(page, area, Secret());
  FUZZ_CHECK(decoded.ok() && SameFields(*decoded, fields));
  std::vector<std::byte> again(kTierPageBytes);
  WriteTierPage(*decoded, area, Secret(), again);
  FUZZ_CHECK(again == page);
  DirectorySecret other = Secret();
  other[input.Take<uint8_t>() % other.size()] ^= std::byte{1};
  FUZZ_CHECK(!ParseTierPage(page, area, other).ok());
  // A header area that is not the one that the page was written for.
  std::vector<std::byte> wrong = area;
  wrong[input.Take<uint16_t>() % wrong.size()] ^= std::byte{4};
  FUZZ_CHECK(!ParseTierPage(page, wrong, Secret()).ok());
  FUZZ_CHECK(!ParseTierPage(page, Bytes(area).first(area.size() - 1), Secret()).ok());
  FUZZ_CHECK(!ParseTierPage(Bytes(page).first(kTierPageBytes - 1), area, Secret()).ok());
  if (!ChangeOneRun(input, page.size(), page)) return;
  FUZZ_CHECK(!ParseTierPage(page, area, Secret()).ok());
}

}  // namespace

TERRACE_FUZZ_TARGET(FuzzTierPage) {
  FuzzInput input(data, size);
  const auto mode = static_cast<Mode>(input.Take<uint8_t>() % kNumModes);
  if (mode == kFromChoices) {
    CheckChoices(input);
    return 0;
  }
  const ExactCopy bytes(input.rest());
  const size_t page_bytes = std::min(bytes.bytes().size(), kTierPageBytes);
  const ExactCopy page(Bytes(bytes.bytes().first(page_bytes)));
  const ExactCopy area(Bytes(bytes.bytes().subspan(page_bytes)));
  if (mode == kResealed && page_bytes == kTierPageBytes) Reseal(page.bytes(), area.bytes());
  const Result<PeekedTierPage> peeked = PeekTierPage(page.bytes());
  FUZZ_CHECK(!peeked.ok() || peeked->header_bytes <= kMaxHeaderBytes);
  const Result<TierPage> fields = ParseTierPage(page.bytes(), area.bytes(), Secret());
  if (!fields.ok()) return 0;
  FUZZ_CHECK(!peeked.ok() || SameFields(peeked->fields, *fields));
  CheckDecoded(area.bytes(), *fields);
  return 0;
}

}  // namespace terrace::fuzz
