#include "tests/conformance/test_object.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace terrace {
namespace {

// splitmix64
uint64_t Mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

Digest RandomDigest(uint64_t& state) {
  Digest digest;
  for (size_t i = 0; i < digest.bytes.size(); i += 8) {
    const uint64_t word = Mix(state);
    std::memcpy(digest.bytes.data() + i, &word, 8);
  }
  return digest;
}

}  // namespace

BufferRef MakeTestBuffer(uint64_t frame_bytes, std::byte fill) {
  auto* control = new BufferControl;
  control->size_bytes = kTierPageBytes + frame_bytes;
  control->data = static_cast<std::byte*>(std::aligned_alloc(kFrameAlignment, control->size_bytes));
  if (control->data == nullptr) throw std::bad_alloc();
  control->release = [](BufferControl* released) {
    std::free(released->data);
    delete released;
  };
  std::memset(control->data, static_cast<int>(fill), control->size_bytes);
  return BufferRef(control);
}

bool TestObject::Holds(const BufferRef& other) const {
  return other.frame().size() >= meta.frame_bytes &&
         std::memcmp(other.frame().data(), frame.frame().data(), meta.frame_bytes) == 0;
}

TestObject MakeTestObject(uint64_t seed, uint64_t frame_bytes, const HeaderWriter& header, uint64_t version,
                          ObjectPart part) {
  uint64_t state = seed * 1000003 + 17;
  TestObject object;
  object.id.key = RandomDigest(state);
  object.id.part = part;
  object.meta.root = RandomDigest(state);
  object.meta.parent = RandomDigest(state);
  object.meta.first_token = 256 * (seed % 7);
  auto content = std::make_shared<ChunkContent>();
  content->tokens.resize(1 + seed % 256);
  for (Token& token : content->tokens) token = static_cast<Token>(Mix(state));
  for (size_t i = 0; i < seed % 3; ++i) {
    const uint64_t position = i * 7;
    if (position < content->tokens.size())
      content->items.push_back({position, std::vector<std::byte>(8 + i, std::byte(i))});
  }
  object.meta.content = std::move(content);
  object.meta.frame_bytes = frame_bytes;
  object.meta.payload_bytes = frame_bytes;
  object.meta.priority = static_cast<int32_t>(seed % 11) - 5;
  // Whole seconds far from now: a backend that expires objects must not drop them during the test.
  if (seed % 2 == 1)
    object.meta.expiry = WallTime(std::chrono::seconds(4'000'000'000 + static_cast<int64_t>(seed)));
  object.frame = MakeTestBuffer(frame_bytes);
  uint64_t bytes_state = state ^ (version * 0x51ed270b2ull);
  std::byte* data = object.frame.mutable_frame().data();
  for (uint64_t i = 0; i < frame_bytes; i += 8) {
    const uint64_t word = Mix(bytes_state);
    std::memcpy(data + i, &word, 8);
  }
  if (header) {
    const Status status = header(object.id, object.meta, object.frame.mutable_frame().first(frame_bytes));
    if (!status.ok()) DieOfBadResult(status);
  }
  return object;
}

PutOp PutOpOf(const TestObject& object) {
  return {.id = object.id, .frame = object.frame, .meta = object.meta};
}
GetOp GetOpOf(const TestObject& object, BufferRef dst) { return {.id = object.id, .dst = std::move(dst)}; }

}  // namespace terrace
