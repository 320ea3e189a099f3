// The fuzz targets in every build: the checked-in corpus, and seeded mutations of it. TERRACE_FUZZ_RUNS
// changes how many, TERRACE_FUZZ_SEED where they begin; a failure names both.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {

int FuzzFrameHeader(const uint8_t* data, size_t size);
int FuzzSuperblock(const uint8_t* data, size_t size);
int FuzzManifestRecord(const uint8_t* data, size_t size);
int FuzzTierPage(const uint8_t* data, size_t size);
int FuzzBulkMessage(const uint8_t* data, size_t size);
int FuzzPartMessage(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using Input = std::vector<uint8_t>;

struct Target {
  const char* name;
  int (*run)(const uint8_t* data, size_t size);
};

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::vector<std::pair<std::string, Input>> Corpus(const Target& target) {
  std::vector<std::pair<std::string, Input>> inputs;
  const fs::path folder = fs::path(TERRACE_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    inputs.emplace_back(entry.path().filename().string(), Input(std::istreambuf_iterator<char>(in), {}));
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

std::string FailureOf(const Target& target, const Input& input) {
  try {
    target.run(input.data(), input.size());
    return "";
  } catch (const FuzzFailure& failure) {
    return failure.what();
  }
}

// One change, of the kinds that break decoders: flipped bits, numbers at a border, lost, doubled and foreign
// bytes.
void Mutate(std::mt19937_64& random, const Input& other, Input& input) {
  constexpr std::array<uint64_t, 10> kBorders = {
      0, 1, 2, 0x7f, 0xff, 4096, 0x7fffffff, 0xffffffff, uint64_t{1} << 63, UINT64_MAX};
  if (input.empty()) {
    input.push_back(static_cast<uint8_t>(random()));
    return;
  }
  const size_t at = random() % input.size();
  const size_t n = std::min<size_t>(input.size() - at, random() % 16);
  switch (random() % 6) {
    case 0:
      input[at] ^= static_cast<uint8_t>(1 << (random() % 8));
      break;
    case 1:
      input[at] = static_cast<uint8_t>(random());
      break;
    case 2: {
      const uint64_t value = kBorders[random() % kBorders.size()] - random() % 2;
      std::memcpy(input.data() + at, &value, std::min<size_t>(input.size() - at, 1 << (random() % 4)));
      break;
    }
    case 3:
      input.erase(input.begin() + static_cast<ptrdiff_t>(at), input.begin() + static_cast<ptrdiff_t>(at + n));
      break;
    case 4: {
      const Input doubled(input.begin() + static_cast<ptrdiff_t>(at),
                          input.begin() + static_cast<ptrdiff_t>(at + n));
      input.insert(input.begin() + static_cast<ptrdiff_t>(at), doubled.begin(), doubled.end());
      break;
    }
    default:
      if (at < other.size()) {
        std::copy_n(other.begin() + static_cast<ptrdiff_t>(at), std::min(other.size() - at, n),
                    input.begin() + static_cast<ptrdiff_t>(std::min(at, input.size() - n)));
      }
  }
}

class FuzzTest : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzTest, TheCorpusHolds) {
  const auto corpus = Corpus(GetParam());
  ASSERT_GE(corpus.size(), 8u) << "tests/fuzz/make_corpus.py makes it";
  for (const auto& [name, input] : corpus) EXPECT_EQ(FailureOf(GetParam(), input), "") << name;
}

TEST_P(FuzzTest, MutationsHold) {
  const auto corpus = Corpus(GetParam());
  ASSERT_FALSE(corpus.empty());
  const uint64_t first = Setting("TERRACE_FUZZ_SEED", 1);
  const uint64_t runs = Setting("TERRACE_FUZZ_RUNS", 20000);
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    std::mt19937_64 random(seed);
    Input input = corpus[random() % corpus.size()].second;
    const Input& other = corpus[random() % corpus.size()].second;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) Mutate(random, other, input);
    ASSERT_EQ(FailureOf(GetParam(), input), "") << "TERRACE_FUZZ_SEED=" << seed << " TERRACE_FUZZ_RUNS=1";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Targets, FuzzTest,
    ::testing::Values(Target{"frame_header", FuzzFrameHeader}, Target{"superblock", FuzzSuperblock},
                      Target{"manifest_record", FuzzManifestRecord}, Target{"tier_page", FuzzTierPage},
                      Target{"bulk_message", FuzzBulkMessage}, Target{"part_message", FuzzPartMessage}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace terrace::fuzz
