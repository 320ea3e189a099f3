// For the tests of loads: a manager with canonical payloads on a MemoryDisk, of which the host tier has
// nothing.
#pragma once

#include <string>
#include <vector>

#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {

// `num_layers` layers of one K and one V plane of `plane_bytes` per token each.
inline KvSpec CanonicalSpec(uint32_t num_layers, uint32_t plane_bytes) {
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  const uint32_t heads = 4;
  const auto plane = [&](PlaneKind kind) {
    return PlaneSpec{.kind = kind,
                     .dtype = DType::kU8,
                     .heads = heads,
                     .head_dim = plane_bytes / heads,
                     .bytes_per_token = plane_bytes};
  };
  spec.layers.assign(num_layers, LayerSpec{0, {plane(PlaneKind::kK), plane(PlaneKind::kV)}});
  return spec;
}

inline constexpr uint32_t kWideLayers = 4;
inline constexpr uint32_t kWidePlane = 32 * 1024;
inline constexpr uint64_t kWideLayerBytes = uint64_t{2} * kWidePlane * kTestChunk;  // 1 MiB
inline constexpr uint64_t kWidePayload = kWideLayers * kWideLayerBytes;

struct LoadFixture : ManagerFixture {
  KvSpec spec;
  std::vector<Token> prompt;

  explicit LoadFixture(KvSpec s = CanonicalSpec(kWideLayers, kWidePlane)) : spec(std::move(s)) {
    options.pool_bytes = 64 << 20;
  }

  // Stores a prompt of `num_tokens` on the disk and opens anew.
  void Begin(size_t num_tokens) {
    prompt = TestTokens(num_tokens);
    const uint64_t pool_bytes = std::exchange(options.pool_bytes, uint64_t{128} << 20);
    Open(spec);
    StorePayloads(prompt);
    ASSERT_TRUE(manager->Flush().ok());
    ASSERT_TRUE(manager->Close().ok());
    options.pool_bytes = pool_bytes;
    Open(spec);
    platters->gets = platters->get_bytes = 0;
  }

  void StorePayloads(const std::vector<Token>& tokens) {
    StorePrompt(*manager, root, tokens, {0, tokens.size()}, [this](TokenRange range, ObjectPart part) {
      return spec.PayloadBytes(part, static_cast<uint32_t>(range.end - range.begin));
    });
  }

  ObjectId Id(size_t chunk) const {
    TokenHasher hasher(root, kTestChunk);
    EXPECT_TRUE(hasher.Append(prompt).ok());
    const bool is_full = chunk < hasher.full_keys().size();
    return {is_full ? hasher.full_keys()[chunk] : hasher.TailKey(), {}};
  }

  std::vector<std::byte> Payload(size_t chunk) const {
    const size_t tokens = std::min<size_t>(kTestChunk, prompt.size() - chunk * kTestChunk);
    std::vector<std::byte> payload(spec.PayloadBytes({}, static_cast<uint32_t>(tokens)));
    ExpectedPayload(Id(chunk)).Fill(payload);
    return payload;
  }

  Lease Look() { return *manager->Lookup(root, prompt); }

  // Flips a bit of the payload of a chunk on the disk.
  void Corrupt(size_t chunk, uint64_t payload_offset) {
    std::vector<std::byte>& frame = platters->objects.at(Id(chunk)).frame;
    const uint64_t header_bytes = frame.size() - (Payload(chunk).size() + 4095) / 4096 * 4096;
    frame[header_bytes + payload_offset] ^= std::byte{1};
  }
};

// Memory for the objects of a load, one after another, filled with a pattern that no payload has.
struct SinkMemory {
  static constexpr std::byte kUntouched{0xa5};
  std::vector<std::vector<std::byte>> objects;
  std::vector<MutableBytes> spans;

  SinkMemory(size_t num_objects, uint64_t payload_bytes)
      : objects(num_objects, std::vector<std::byte>(payload_bytes, kUntouched)),
        spans(objects.begin(), objects.end()) {}
  LoadSink sink() const { return {.memory = spans, .views = {}}; }
  bool IsUntouched(size_t object) const {
    return std::all_of(objects[object].begin(), objects[object].end(),
                       [](std::byte b) { return b == kUntouched; });
  }
};

}  // namespace terrace
