// Keys, roots, specs, matches: the golden examples, and what must differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "terrace/kv_spec.h"
#include "terrace/token_hasher.h"

namespace terrace {
namespace {

using nlohmann::json;

std::vector<std::byte> FromHexBytes(const std::string& hex) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

std::string ToString(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

json Golden() {
  std::ifstream in(TERRACE_SOURCE_DIR "/tests/golden/keys.json");
  return json::parse(in);
}

ChunkContent ContentOf(const json& example) {
  ChunkContent content;
  content.tokens = example["tokens"].get<std::vector<Token>>();
  for (const json& item : example["items"]) {
    content.items.push_back({item["position"].get<uint64_t>(), FromHexBytes(item["bytes"])});
  }
  return content;
}

std::vector<std::byte> ItemBytes(std::string_view text) {
  std::vector<std::byte> out;
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
  return out;
}

TEST(KeyTest, GoldenExamplesHold) {
  const json golden = Golden();
  ASSERT_GE(golden["keys"].size(), 7u);
  for (const json& example : golden["keys"]) {
    const ChunkKey parent = *Digest::FromHex(example["parent"].get<std::string>());
    EXPECT_EQ(TokenHasher::KeyOf(parent, ContentOf(example)).ToHex(), example["key"].get<std::string>());
  }
}

TEST(RootTest, GoldenExamplesHold) {
  const json golden = Golden();
  ASSERT_GE(golden["roots"].size(), 4u);
  for (const json& example : golden["roots"]) {
    const std::string spec_bytes = ToString(FromHexBytes(example["spec"]));
    Result<KvSpec> spec = KvSpec::Parse(spec_bytes);
    ASSERT_TRUE(spec.ok()) << example["name"] << ": " << spec.status().ToString();
    EXPECT_EQ(spec->SerializeIdentity(), spec_bytes);
    std::vector<Adapter> adapters;
    for (const json& adapter : example["adapters"]) {
      adapters.push_back(
          {*Digest::FromHex(adapter["content"].get<std::string>()), adapter["scale"].get<float>()});
    }
    Result<RootRecord> root = ComputeRoot(*spec, adapters, ToString(FromHexBytes(example["salt"])));
    ASSERT_TRUE(root.ok());
    EXPECT_EQ(root->root.ToHex(), example["root"].get<std::string>()) << example["name"];
  }
}

KvSpec Opaque() {
  KvSpec spec;
  spec.model_id = "model";
  spec.cut = Cut::kWhole;
  spec.engine_extras = "extras";
  return spec;
}

KvSpec Canonical() {
  KvSpec spec;
  spec.model_id = "model";
  spec.payload_form = PayloadForm::kCanonical;
  spec.cut = Cut::kRanged;
  const PlaneSpec k{PlaneKind::kK, DType::kF16, 8, 64, 1024};
  const PlaneSpec v{PlaneKind::kV, DType::kF16, 8, 64, 1024};
  spec.layers = {{0, {k, v}}, {0, {k, v}}, {0, {{PlaneKind::kLatent, DType::kBF16, 1, 576, 1152}}}};
  return spec;
}

TEST(RootTest, EachFieldOfTheSpecChangesIt) {
  const KvSpec base = Canonical();
  std::vector<std::pair<std::string, KvSpec>> variants;
  const auto vary = [&](std::string name, auto change) {
    KvSpec spec = base;
    change(spec);
    variants.emplace_back(std::move(name), spec);
  };
  vary("same", [](KvSpec&) {});
  vary("model", [](KvSpec& s) { s.model_id = "other"; });
  vary("revision", [](KvSpec& s) { s.model_revision = "2"; });
  vary("version", [](KvSpec& s) { s.payload_version = 2; });
  vary("chunk", [](KvSpec& s) { s.tokens_per_chunk = 128; });
  vary("cut", [](KvSpec& s) { s.cut = Cut::kWhole; });
  vary("window", [](KvSpec& s) { s.groups[0] = {Retention::kWindow, 512}; });
  vary("dtype", [](KvSpec& s) { s.layers[0].planes[0].dtype = DType::kBF16; });
  vary("heads", [](KvSpec& s) { s.layers[0].planes[0].heads = 16; });
  vary("layer order", [](KvSpec& s) { std::swap(s.layers[0], s.layers[2]); });
  vary("extras", [](KvSpec& s) { s.engine_extras = "x"; });
  std::set<std::string> roots;
  for (const auto& [name, spec] : variants) {
    Result<RootRecord> root = ComputeRoot(spec, {}, "");
    ASSERT_TRUE(root.ok()) << name << root.status().ToString();
    EXPECT_TRUE(roots.insert(root->root.ToHex()).second) << name << " does not change the root";
  }
  // Shards do not.
  KvSpec sharded = base;
  sharded.shards = {{0, 2, 0, 3}, {1, 2, 0, 3}};
  EXPECT_EQ(ComputeRoot(sharded, {}, "")->root, ComputeRoot(base, {}, "")->root);
  EXPECT_NE(ComputeRoot(base, {}, "salt")->root, ComputeRoot(base, {}, "")->root);
  const Adapter lora{TokenHasher::KeyOf({}, {}), 1.0f};
  EXPECT_NE(ComputeRoot(base, {&lora, 1}, "")->root, ComputeRoot(base, {}, "")->root);
}

TEST(RootTest, RecordNamesSaltByDigestOnly) {
  Result<RootRecord> record = ComputeRoot(Opaque(), {}, "secret-salt");
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->spec.find("secret"), std::string::npos);
  // SHA-256("secret-salt")
  EXPECT_EQ(record->salt_sha256.ToHex(), "11fb57a2427279241931475aa9f5e71dd81149134b0a7a017d80044315777f24");
  EXPECT_NE(record->salt_sha256, Digest{});
  EXPECT_EQ(ComputeRoot(Opaque(), {}, "")->salt_sha256, Digest{});
}

TEST(KvSpecTest, ParseRefusesWhatSerializeDoesNotWrite) {
  KvSpec spec = Canonical();
  spec.shards = {{0, 2, 0, 3}, {1, 2, 0, 3}};
  const std::string bytes = spec.Serialize();
  ASSERT_TRUE(KvSpec::Parse(bytes).ok());
  EXPECT_EQ(*KvSpec::Parse(bytes), spec);
  EXPECT_EQ(KvSpec::Parse(bytes + "x").status().code(), StatusCode::kDataLoss);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const Result<KvSpec> parsed = KvSpec::Parse(std::string_view(bytes).substr(0, n));
    // The identity form is the one prefix that is itself a spec.
    EXPECT_EQ(parsed.ok(), n == spec.SerializeIdentity().size()) << n;
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string broken = bytes;
    broken[random() % broken.size()] ^= static_cast<char>(1 << (random() % 8));
    const Result<KvSpec> parsed = KvSpec::Parse(broken);
    if (parsed.ok()) {
      EXPECT_EQ(parsed->Serialize(), broken);
    }
  }
}

TEST(KvSpecTest, ValidateNamesFieldValueAndWhatIsAllowed) {
  KvSpec spec = Opaque();
  spec.tokens_per_chunk = 5000;
  const Status status = spec.Validate();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("tokens_per_chunk"), testing::HasSubstr("5000"),
                             testing::HasSubstr("1..4096")));
  spec = Opaque();
  spec.cut = Cut::kRanged;
  EXPECT_FALSE(spec.Validate().ok());
  spec = Opaque();
  spec.groups = {{Retention::kState, 0}};
  EXPECT_FALSE(spec.Validate().ok()) << "a state cannot be cut";
  spec = Canonical();
  spec.shards = {{0, 3, 0, 3}};
  EXPECT_FALSE(spec.Validate().ok()) << "8 heads on 3 ranks";
}

TEST(KvSpecTest, PayloadBytesOfShardsAddUp) {
  KvSpec spec = Canonical();
  EXPECT_EQ(spec.PayloadBytes({0, 0}, 10), 10u * (2 * 2048 + 1152));
  spec.shards = {{0, 2, 0, 3}, {1, 2, 0, 3}};
  ASSERT_TRUE(spec.Validate().ok());
  EXPECT_EQ(spec.PayloadBytes({0, 0}, 10), 10u * (2 * 1024 + 1152)) << "the latent plane is replicated";
  spec.shards = {{0, 1, 0, 2}, {0, 1, 2, 3}};
  EXPECT_EQ(spec.PayloadBytes({0, 0}, 10) + spec.PayloadBytes({0, 1}, 10), 10u * (2 * 2048 + 1152));
}

TEST(TokenHasherTest, GrowingEqualsHashingAtOnce) {
  std::mt19937 random(3);
  std::vector<Token> tokens(1000);
  for (Token& token : tokens) token = random();
  const std::vector<Item> items = {
      {0, ItemBytes("a")}, {63, ItemBytes("b")}, {64, ItemBytes("c")}, {999, ItemBytes("d")}};
  TokenHasher whole({}, 64);
  ASSERT_TRUE(whole.Append({tokens, items}).ok());
  ASSERT_EQ(whole.full_keys().size(), 15u);
  for (const size_t step : {1u, 7u, 63u, 64u, 65u, 500u}) {
    TokenHasher grown({}, 64);
    size_t next_item = 0;
    for (size_t at = 0; at < tokens.size(); at += step) {
      const size_t n = std::min(step, tokens.size() - at);
      size_t end = next_item;
      while (end < items.size() && items[end].position < at + n) ++end;
      const auto some = std::span(items).subspan(next_item, end - next_item);
      ASSERT_TRUE(grown.Append({std::span(tokens).subspan(at, n), some}).ok());
      next_item = end;
    }
    EXPECT_TRUE(std::ranges::equal(grown.full_keys(), whole.full_keys())) << step;
    EXPECT_EQ(grown.TailKey(), whole.TailKey()) << step;
  }
  // The chain by hand.
  ChunkKey parent{};
  for (size_t i = 0; i < 15; ++i) {
    parent = TokenHasher::KeyOf(parent, SliceContent({tokens, items}, {i * 64, i * 64 + 64}));
    EXPECT_EQ(parent, whole.full_keys()[i]);
  }
  EXPECT_FALSE(whole.Append({tokens, std::vector<Item>{{5, ItemBytes("x")}}}).ok())
      << "an item before the appended tokens";
  EXPECT_EQ(whole.num_tokens(), 1000u);
}

}  // namespace
}  // namespace terrace
