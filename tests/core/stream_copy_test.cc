// StreamCopy, StreamCopier: every kernel copies what memcpy copies, at any alignment and size, and nothing
// else is touched.
#include "lib/memory/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace terrace {
namespace {

constexpr size_t kGuardBytes = 192;
constexpr std::byte kGuard{0xa5};

std::vector<std::byte> RandomBytes(size_t n, std::mt19937_64& random) {
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class StreamCopyTest : public testing::TestWithParam<CopyKernel> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "not on this processor";
  }

  // Copies `n` bytes to a place `dst_shift` bytes behind a cache line's border.
  void Check(size_t n, size_t dst_shift, size_t src_shift) {
    const std::byte* src = Aligned(source_.data()) + src_shift;
    std::byte* dst = Aligned(destination_.data()) + kGuardBytes + dst_shift;
    std::memset(dst - kGuardBytes, static_cast<int>(kGuard), n + 2 * kGuardBytes);
    StreamCopyWith(GetParam(), dst, src, n);
    ASSERT_TRUE(n == 0 || std::memcmp(dst, src, n) == 0) << n << " bytes, " << dst_shift << ", " << src_shift;
    for (size_t i = 0; i < kGuardBytes; ++i) {
      ASSERT_EQ(*(dst - 1 - i), kGuard) << n << " bytes, " << dst_shift << ": written before the begin";
      ASSERT_EQ(*(dst + n + i), kGuard) << n << " bytes, " << dst_shift << ": written behind the end";
    }
  }

  static constexpr size_t kMaxBytes = 200 * 1024;
  static constexpr uint64_t kSeed = 20240611;
  std::mt19937_64 random_{kSeed};
  std::vector<std::byte> source_ = RandomBytes(kMaxBytes + 4096, random_);
  std::vector<std::byte> destination_ = std::vector<std::byte>(kMaxBytes + 4096);

 private:
  static std::byte* Aligned(std::byte* p) { return p + -reinterpret_cast<uintptr_t>(p) % 64; }
};

TEST_P(StreamCopyTest, NoneAndOne) {
  Check(0, 0, 0);
  Check(0, 3, 5);
  Check(1, 0, 0);
  Check(1, 63, 1);
  StreamCopyWith(GetParam(), nullptr, nullptr, 0);
}

TEST_P(StreamCopyTest, EveryShiftOfTheDestination) {
  for (size_t shift = 0; shift < 64; ++shift) {
    Check(4096 + 320, shift, (shift * 7) % 64);
    Check(4 * 4096 + 4097, shift, shift);
  }
}

TEST_P(StreamCopyTest, SizesAroundTheStepsOfTheKernels) {
  for (const size_t border : {64u, 128u, 256u, 4096u, 8192u, 16384u, 32768u, 65536u, 131072u}) {
    for (size_t n = border - 17; n <= border + 81; ++n) Check(n, random_() % 64, random_() % 64);
  }
}

TEST_P(StreamCopyTest, GeneratedSizesAndShifts) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  for (int i = 0; i < 2000; ++i) {
    const size_t scale = size_t{1} << (6 + random_() % 12);
    Check(random_() % std::min(scale, kMaxBytes), random_() % 128, random_() % 128);
  }
}

// Pieces of generated sizes, taken from and put to places in shuffled order, with gaps between them.
TEST_P(StreamCopyTest, PiecesInAnyOrder) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  for (const PieceSources sources : {PieceSources::kInOrder, PieceSources::kScattered}) {
    for (const size_t largest : {1u, 40u, 128u, 300u, 1152u, 5000u, 40000u}) {
      std::memset(destination_.data(), static_cast<int>(kGuard), destination_.size());
      std::vector<std::byte> expected = destination_;
      struct Piece {
        size_t at;
        size_t n;
      };
      std::vector<Piece> pieces;
      for (size_t at = random_() % 64; at + largest < kMaxBytes && pieces.size() < 300;) {
        pieces.push_back({at, random_() % (largest + 1)});
        // Half of them continue the one before.
        at += pieces.back().n + (random_() % 2 == 0 ? random_() % 100 : 0);
      }
      std::vector<Piece> places = pieces;
      if (largest % 2 == 0) std::shuffle(places.begin(), places.end(), random_);
      {
        StreamCopier copier(sources, GetParam());
        for (const Piece& piece : places) {
          std::memcpy(expected.data() + piece.at, source_.data() + piece.at, piece.n);
          copier.Copy(destination_.data() + piece.at, source_.data() + piece.at, piece.n);
        }
      }
      ASSERT_EQ(destination_, expected) << "pieces of up to " << largest << " bytes";
    }
  }
}

TEST_P(StreamCopyTest, FinishEndsWhatCameBeforeAndMoreMayFollow) {
  for (const PieceSources sources : {PieceSources::kInOrder, PieceSources::kScattered}) {
    std::memset(destination_.data(), 0, destination_.size());
    StreamCopier copier(sources, GetParam());
    copier.Finish();
    copier.Copy(destination_.data(), source_.data(), 1000);
    copier.Finish();
    EXPECT_EQ(std::memcmp(destination_.data(), source_.data(), 1000), 0);
    copier.Copy(destination_.data() + 1000, source_.data() + 1000, 50000);
    copier.Copy(destination_.data() + 60000, source_.data(), 0);
    copier.Finish();
    copier.Finish();
    EXPECT_EQ(std::memcmp(destination_.data(), source_.data(), 51000), 0);
    EXPECT_EQ(destination_[51000], std::byte{0});
  }
}

std::string NameOf(const testing::TestParamInfo<CopyKernel>& kernel) { return CopyKernelName(kernel.param); }
INSTANTIATE_TEST_SUITE_P(Kernels, StreamCopyTest, testing::ValuesIn(kCopyKernels), NameOf);

TEST(CopyKernelTest, TheChosenOneIsSupportedAndPlainAlwaysIs) {
  EXPECT_TRUE(IsSupported(ChosenCopyKernel()));
  EXPECT_TRUE(IsSupported(CopyKernel::kPlain));
  std::set<std::string> names;
  for (const CopyKernel kernel : kCopyKernels) names.insert(CopyKernelName(kernel));
  EXPECT_EQ(names.size(), kCopyKernels.size());
}

TEST(CopyKernelTest, TheDefaultCopiesToo) {
  std::mt19937_64 random(1);
  const std::vector<std::byte> source = RandomBytes(100001, random);
  std::vector<std::byte> destination(source.size() + 1);
  StreamCopy(destination.data() + 1, source.data(), source.size());
  EXPECT_EQ(std::memcmp(destination.data() + 1, source.data(), source.size()), 0);
}

}  // namespace
}  // namespace terrace
