// One model on four servers: where the chunks of real requests lie. A trace names a request's blocks of 512
// tokens; equal numbers are equal blocks behind equal beginnings.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "backends/remote/placement.h"
#include "terrace/object_meta.h"

namespace terrace::remote {
namespace {

constexpr uint64_t kBlockTokens = 512;
constexpr uint64_t kTokensPerChunk = 256;  // KvSpec's default
constexpr size_t kServers = 4;

struct TracedRequest {
  uint64_t input_tokens = 0;
  std::vector<uint64_t> blocks;
};

// Any number that follows from the chunk's beginning and its block, as keys do.
uint64_t KeyWord(uint64_t parent, uint64_t block, uint64_t place) {
  return Mix64(Mix64(parent ^ Mix64(block)) + place);
}

ChunkKey KeyOf(uint64_t word) {
  ChunkKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<std::byte>(word >> (i % 8 * 8));
  return key;
}

// Chunks that each server holds once everybody has stored what it computed.
class Placed {
 public:
  void Add(const TracedRequest& request) {
    uint64_t parent = 0;
    size_t owner = 0;
    const uint64_t num_chunks = request.input_tokens / kTokensPerChunk;
    for (uint64_t i = 0; i < num_chunks; ++i) {
      const uint64_t block = i * kTokensPerChunk / kBlockTokens;
      if (block >= request.blocks.size()) return;
      parent = KeyWord(parent, request.blocks[block], i * kTokensPerChunk % kBlockTokens);
      if (i == RunBegin(i)) owner = OwnersOf(KeyOf(parent), words_, 1).at(0);
      if (seen_.insert(parent).second) ++counts_[owner];
    }
  }
  double LargestShare() const {
    return static_cast<double>(*std::max_element(counts_.begin(), counts_.end())) * kServers /
           static_cast<double>(seen_.size());
  }
  size_t num_chunks() const { return seen_.size(); }
  const std::vector<size_t>& counts() const { return counts_; }

 private:
  static std::vector<uint64_t> Words() {
    std::vector<uint64_t> words;
    for (size_t i = 1; i <= kServers; ++i)
      words.push_back(ServerWord("10.0.0." + std::to_string(i) + ":7000"));
    return words;
  }
  const std::vector<uint64_t> words_ = Words();
  std::vector<size_t> counts_ = std::vector<size_t>(kServers);
  std::set<uint64_t> seen_;
};

void ExpectBalanced(const std::vector<TracedRequest>& requests) {
  Placed placed;
  for (const TracedRequest& request : requests) placed.Add(request);
  ASSERT_GT(placed.num_chunks(), 1000u);
  EXPECT_LE(placed.LargestShare(), 1.5) << testing::PrintToString(placed.counts());
}

// Conversations as the traces have them: every prompt begins with one block that all share, most go on from
// an earlier turn of theirs, lengths of some thousand tokens with a long tail.
TEST(PlacementTraceTest, RequestsWithACommonBeginningAreSpread) {
  std::mt19937_64 random(46);
  std::vector<TracedRequest> requests;
  uint64_t next_block = 1;
  for (int i = 0; i < 4000; ++i) {
    TracedRequest request{0, {0}};
    if (random() % 2 == 0 && !requests.empty()) request = requests[random() % requests.size()];
    const double length = std::lognormal_distribution<double>(2.3, 1.0)(random);
    const uint64_t more = std::min<uint64_t>(1 + static_cast<uint64_t>(length), 240);
    for (uint64_t n = 0; n < more; ++n) request.blocks.push_back(next_block++);
    request.input_tokens = request.blocks.size() * kBlockTokens;
    requests.push_back(std::move(request));
  }
  ExpectBalanced(requests);
}

TEST(PlacementTraceTest, RecordedConversationsAreSpread) {
  // Beside the checkout where it was handed out; it is not part of this tree.
  const std::filesystem::path path = TERRACE_SOURCE_DIR "/../shared/traces/conversation_trace.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << ": the test before this has its shape";
  std::ifstream file(path);
  std::vector<TracedRequest> requests;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    requests.push_back({request["input_length"], request["hash_ids"]});
  }
  ExpectBalanced(requests);
}

}  // namespace
}  // namespace terrace::remote
