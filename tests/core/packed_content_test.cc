// PackedContent against the plain order and match of ChunkContent.
#include "lib/core/packed_content.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace terrace {
namespace {

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Contents that often share long beginnings: two tokens, four items, few of each.
ChunkContent RandomContent(std::mt19937& random, size_t max_tokens) {
  static constexpr std::string_view kItems[] = {"x", "xa", "y", "xabcde"};
  ChunkContent content;
  content.tokens.resize(random() % (max_tokens + 1));
  const bool has_items = random() % 2 == 0;
  for (Token& token : content.tokens) token = random() % 8 == 0;
  for (uint64_t p = 0; p < content.tokens.size(); ++p) {
    if (has_items && random() % 6 == 0) content.items.push_back({p, Bytes(kItems[random() % 4])});
  }
  return content;
}

// `content` as tokens [begin, ...) of a longer prompt, with tokens and items before and after.
struct Prompt {
  std::vector<Token> tokens;
  std::vector<Item> items;
  TokenRange range;

  PromptSlice slice() const { return PromptSlice({tokens, items}, range); }
};

Prompt Embed(const ChunkContent& content, std::mt19937& random) {
  Prompt prompt;
  const uint64_t begin = random() % 4;
  prompt.range = {begin, begin + content.tokens.size()};
  for (uint64_t i = 0; i < begin; ++i) {
    prompt.tokens.push_back(random() % 2);
    prompt.items.push_back({i, Bytes("before")});
  }
  prompt.tokens.insert(prompt.tokens.end(), content.tokens.begin(), content.tokens.end());
  for (const Item& item : content.items) prompt.items.push_back({item.position + begin, item.bytes});
  prompt.items.push_back({prompt.tokens.size(), Bytes("after")});
  prompt.tokens.push_back(1);
  return prompt;
}

// The common prefix the slow way.
uint32_t PlainCommonPrefix(const ChunkContent& a, const ChunkContent& b) {
  const auto item_at = [](const ChunkContent& content, uint64_t position) -> std::vector<std::byte> {
    for (const Item& item : content.items) {
      if (item.position == position) return item.bytes;
    }
    return {};
  };
  uint32_t m = 0;
  while (m < a.tokens.size() && m < b.tokens.size() && a.tokens[m] == b.tokens[m] &&
         item_at(a, m) == item_at(b, m)) {
    ++m;
  }
  return m;
}

TEST(PackedContentTest, OrderAndMatchAreThoseOfChunkContent) {
  std::mt19937 random(5);
  int orders[3] = {};
  for (int round = 0; round < 40000; ++round) {
    const size_t max_tokens = round % 2 == 0 ? 5 : 80;  // 80: several blocks of the token comparison
    const ChunkContent a = RandomContent(random, max_tokens);
    ChunkContent b = random() % 4 == 0 ? a : RandomContent(random, max_tokens);
    if (random() % 4 == 0 && !b.tokens.empty()) b.tokens[random() % b.tokens.size()] ^= 0x80000000u;
    const PackedContentRef packed_a = PackedContent::Make(a);
    const Prompt prompt = Embed(b, random);
    const PackedContentRef packed_b = PackedContent::Make(prompt.slice());

    const int order = CompareContent(a, b);
    ++orders[order + 1];
    ASSERT_EQ(packed_a->Compare(prompt.slice()), order) << round;
    ASSERT_EQ(packed_a->Compare(*packed_b), order) << round;
    ASSERT_EQ(packed_b->Compare(*packed_a), -order) << round;
    ASSERT_EQ(CommonPrefixTokens(a, b), PlainCommonPrefix(a, b)) << round;
    ASSERT_EQ(packed_a->CommonPrefix(prompt.slice()), PlainCommonPrefix(a, b)) << round;
    ASSERT_EQ(packed_a->Equals(b), a == b) << round;
    ASSERT_EQ(packed_b->Unpack(), b) << round;
    ASSERT_EQ(packed_b->num_tokens(), b.tokens.size());
  }
  for (const int seen : orders) EXPECT_GT(seen, 1000);
}

TEST(PackedContentTest, HeadOfASliceIsTheSliceOfAHead) {
  std::mt19937 random(6);
  for (int round = 0; round < 2000; ++round) {
    const ChunkContent content = RandomContent(random, 12);
    const Prompt prompt = Embed(content, random);
    for (uint64_t n = 0; n <= content.tokens.size(); ++n) {
      const ChunkContent head = SliceContent({content.tokens, content.items}, {0, n});
      ASSERT_EQ(PackedContent::Make(prompt.slice().Head(n))->Unpack(), head) << round;
    }
  }
}

TEST(PackedContentTest, TheItemAtTheFirstTokenIsFound) {
  const ChunkContent with{{7, 8}, {{0, Bytes("image")}, {1, Bytes("z")}}};
  const ChunkContent without{{7, 8}, {{1, Bytes("z")}}};
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(text(PackedContent::Make(with)->ItemAtStart()), "image");
  EXPECT_EQ(text(PackedContent::Make(without)->ItemAtStart()), "");
  EXPECT_EQ(text(PackedContent::Make(ChunkContent{})->ItemAtStart()), "");
  EXPECT_EQ(text(PromptSlice({with.tokens, with.items}, {0, 2}).ItemAtStart()), "image");
  EXPECT_EQ(text(PromptSlice({with.tokens, with.items}, {1, 2}).ItemAtStart()), "z");
  EXPECT_EQ(text(PromptSlice({without.tokens, without.items}, {0, 2}).ItemAtStart()), "");
}

TEST(PackedContentTest, SizeIsHeaderTokensAndPaddedItems) {
  EXPECT_EQ(PackedContent::Make(ChunkContent{})->size_bytes(), 16u);
  EXPECT_EQ(PackedContent::Make(ChunkContent{{1, 2, 3}, {}})->size_bytes(), 28u);
  EXPECT_EQ(PackedContent::Make(ChunkContent{{1}, {{0, Bytes("abcde")}}})->size_bytes(), 16u + 4 + 8 + 8);
}

TEST(PackedContentTest, ReferencesAreCountedOnEveryThread) {
  PackedContentRef first = PackedContent::Make(ChunkContent{{1, 2, 3}, {{2, Bytes("i")}}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([ref = first] {
      for (int i = 0; i < 1000; ++i) {
        PackedContentRef copy = ref;
        PackedContentRef moved = std::move(copy);
        EXPECT_FALSE(copy);  // NOLINT: moved from
        copy = moved;
        EXPECT_EQ(copy->tokens().size(), 3u);
      }
    });
  }
  PackedContentRef second = first;
  first = PackedContentRef();
  EXPECT_FALSE(first);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(second->Unpack().items.size(), 1u);
}

}  // namespace
}  // namespace terrace
