// Offsets above 4 GiB on both sides, in every term of the formula: address space without memory behind it but
// for the pages that are touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/host_launcher.h"
#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

class SparseMemory {
 public:
  explicit SparseMemory(uint64_t bytes) : bytes_(bytes) {
    void* mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TERRACE_CHECK(mapped != MAP_FAILED) << bytes;
    data_ = static_cast<std::byte*>(mapped);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() { munmap(data_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  const uint64_t bytes_;
  std::byte* data_;
};

// Which of the formula's terms is above 4 GiB.
struct Term {
  const char* name;
  int64_t base, block_stride, token_stride, head_stride;
  uint64_t payload_offset;
};

constexpr int64_t kFar = 5 * static_cast<int64_t>(kGiB) + 64;

const Term kTerms[] = {
    {"base", kFar, 4096, 256, 64, 0},
    {"block_stride", 0, kFar, 256, 64, 0},
    {"token_stride", 0, 4096, kFar, 64, 0},
    {"head_stride", 0, 4096, 64, kFar, 0},
    {"payload_offset", 0, 4096, 256, 64, static_cast<uint64_t>(kFar)},
    {"all_of_them", kFar, kFar, 10 * kFar, 5 * kFar, 2 * static_cast<uint64_t>(kFar)},
};

// The largest offset: base 1, block 3, token 2 * 10, head 1 * 5.
constexpr uint64_t kEngineBytes = 30 * static_cast<uint64_t>(kFar);
constexpr uint64_t kPayloadBytes = 3 * static_cast<uint64_t>(kFar);

class LargeOffsetsTest : public testing::TestWithParam<Term> {
 protected:
  static constexpr uint32_t kHeads = 2;
  static constexpr uint32_t kRunBytes = 64;
  static constexpr uint64_t kTokens = 8;
  static constexpr uint32_t kBlockTokens = 3;

  template <typename Run>
  void ForEachRun(const Run& run) const {
    for (uint64_t i = 0; i < kTokens; ++i) {
      const uint64_t slot = 1 + i;
      for (int64_t h = 0; h < kHeads; ++h) {
        run(engine_.data() + GetParam().base + blocks_[slot / kBlockTokens] * GetParam().block_stride +
                static_cast<int64_t>(slot % kBlockTokens) * GetParam().token_stride +
                h * GetParam().head_stride,
            payload_.data() + GetParam().payload_offset +
                (i * kHeads + static_cast<uint64_t>(h)) * kRunBytes);
      }
    }
  }

  PagedCopyArgs ArgsOf(CopyDirection direction) {
    plane_ = {.base = engine_.data() + GetParam().base,
              .payload_offset = GetParam().payload_offset,
              .block_stride = GetParam().block_stride,
              .token_stride = GetParam().token_stride,
              .head_stride = GetParam().head_stride,
              .num_heads = kHeads,
              .run_bytes = kRunBytes};
    return {.direction = direction,
            .payload = payload_.data(),
            .planes = &plane_,
            .num_planes = 1,
            .tokens_per_block = kBlockTokens,
            .blocks = blocks_.data(),
            .first_slot = 1,
            .num_tokens = kTokens};
  }

  void Check(CopyDirection direction, const char* way, void (*run)(const PagedCopyArgs&)) {
    std::mt19937_64 random(3);
    const bool to_host = direction == CopyDirection::kToHost;
    ForEachRun([&](std::byte* engine, std::byte* payload) {
      for (uint32_t b = 0; b < kRunBytes; ++b) {
        const auto value = static_cast<std::byte>(random());
        (to_host ? engine : payload)[b] = value;
        (to_host ? payload : engine)[b] = ~value;
      }
    });
    run(ArgsOf(direction));
    ForEachRun([&](const std::byte* engine, const std::byte* payload) {
      ASSERT_EQ(std::memcmp(engine, payload, kRunBytes), 0) << way;
    });
  }

  const SparseMemory engine_{kEngineBytes};
  const SparseMemory payload_{kPayloadBytes};
  const std::vector<int64_t> blocks_ = {3, 0, 2};
  PlaneArgs plane_;
};

TEST_P(LargeOffsetsTest, InBothDirections) {
  for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    Check(direction, "on the host", [](const PagedCopyArgs& args) {
      for (uint32_t part = 0; part < 2; ++part) RunOnHost(args, part, 2);
    });
    Check(direction, "emulated", [](const PagedCopyArgs& args) { RunEmulated(args, {2, 64, 9}); });
    Check(direction, "piece by piece", [](const PagedCopyArgs& args) {
      ForEachCopyPiece(args, [](const CopyPiece& piece) { std::memcpy(piece.dst, piece.src, piece.bytes); });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Terms, LargeOffsetsTest, testing::ValuesIn(kTerms),
                         [](const testing::TestParamInfo<Term>& term) { return term.param.name; });

// A plane whose first tokens are more than 4 GiB of payload: the last ones, copied alone and with all the
// tokens before them in blocks that are not there.
TEST(LargePayloadTest, TokensBehind4GiBOfOthers) {
  constexpr uint32_t kTokenBytes = 1 << 20;
  constexpr uint64_t kTokens = 5 * 1024 + 2;
  const SparseMemory payload(kTokens * kTokenBytes);
  std::vector<std::byte> engine(2 * kTokenBytes);
  std::vector<int64_t> blocks(kTokens, -1);
  blocks[kTokens - 2] = 1;
  blocks[kTokens - 1] = 0;
  std::mt19937_64 random(5);
  for (size_t at = 0; at < engine.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(engine.data() + at, &word, sizeof(word));
  }
  const PlaneArgs plane = {.base = engine.data(),
                           .block_stride = kTokenBytes,
                           .token_stride = kTokenBytes,
                           .head_stride = kTokenBytes,
                           .run_bytes = kTokenBytes};
  const PagedCopyArgs args = {.payload = payload.data(),
                              .planes = &plane,
                              .num_planes = 1,
                              .blocks = blocks.data(),
                              .num_tokens = kTokens};
  const std::byte* last = payload.data() + (kTokens - 2) * kTokenBytes;
  for (const bool emulated : {false, true}) {
    std::memset(payload.data() + (kTokens - 2) * kTokenBytes, 0, 2 * kTokenBytes);
    if (emulated) {
      RunEmulated(args, {1, 32, 0});
    } else {
      RunOnHost(args);
    }
    EXPECT_EQ(std::memcmp(last, engine.data() + kTokenBytes, kTokenBytes), 0) << emulated;
    EXPECT_EQ(std::memcmp(last + kTokenBytes, engine.data(), kTokenBytes), 0) << emulated;
  }
}

}  // namespace
}  // namespace terrace
