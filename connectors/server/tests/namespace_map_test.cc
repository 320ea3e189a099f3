#include "connectors/server/namespace_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>

#include "connectors/server/namespace_opener.h"
#include "connectors/server/session_table.h"
#include "tests/support/temporary_directory.h"

namespace terrace::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Opens namespaces without a manager, and notes what it was asked.
struct FakeOpener {
  std::vector<std::string> opened;   // "name host_bytes"
  std::set<std::string> refused;     // names
  std::set<std::string> refused_at;  // "name host_bytes"

  OpenNamespace Function() {
    return [this](const NamespaceQuota& quota) -> Result<NamespaceRef> {
      const std::string what = quota.name + " " + std::to_string(quota.host_bytes);
      if (refused.contains(quota.name) || refused_at.contains(what)) return UnavailableError("no " + what);
      opened.push_back(what);
      auto name_space = std::make_shared<Namespace>();
      name_space->quota = quota;
      return name_space;
    };
  }
};

std::vector<std::string> Names(const NamespaceMap& map) {
  std::vector<std::string> names;
  for (const NamespaceRef& one : map.All()) {
    names.push_back(one->quota.name + " " + std::to_string(one->quota.host_bytes));
  }
  return names;
}

TEST(NamespaceMapTest, OpensWhatIsNewAndKeepsWhatIsTheSame) {
  FakeOpener opener;
  NamespaceMap map(opener.Function());
  ASSERT_TRUE(map.Set({{"a", 1, 0}, {"b", 2, 0}}).ok());
  const NamespaceRef a = map.Find("a"), b = map.Find("b");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(map.Find("c"), nullptr);
  ASSERT_TRUE(map.Set({{"c", 3, 0}, {"b", 4, 0}, {"a", 1, 0}}).ok());
  EXPECT_EQ(map.Find("a"), a) << "not reopened";
  EXPECT_NE(map.Find("b"), b);
  EXPECT_THAT(Names(map), ElementsAre("a 1", "b 4", "c 3"));
  EXPECT_THAT(opener.opened, ElementsAre("a 1", "b 2", "b 4", "c 3"));
  ASSERT_TRUE(map.Set({{"c", 3, 0}}).ok());
  EXPECT_THAT(Names(map), ElementsAre("c 3"));
  EXPECT_EQ(a->quota.name, "a") << "who holds it still may";
  EXPECT_TRUE(a->is_closed && b->is_closed);
  EXPECT_FALSE(map.Find("c")->is_closed);
}

TEST(NamespaceMapTest, ANameTwiceChangesNothing) {
  FakeOpener opener;
  NamespaceMap map(opener.Function());
  ASSERT_TRUE(map.Set({{"a", 1, 0}}).ok());
  EXPECT_EQ(map.Set({{"b", 1, 0}, {"b", 2, 0}}).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(map), ElementsAre("a 1"));
}

TEST(NamespaceMapTest, AFailureRestoresWhatWas) {
  FakeOpener opener;
  NamespaceMap map(opener.Function());
  ASSERT_TRUE(map.Set({{"a", 1, 0}, {"b", 2, 0}}).ok());
  opener.refused = {"d"};
  // "a" gets another quota, "b" goes, "c" is opened, "d" fails: all of it is taken back.
  const Status failed = map.Set({{"a", 9, 0}, {"c", 3, 0}, {"d", 4, 0}});
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failed.ToString(), HasSubstr("namespace d: no d 4"));
  EXPECT_THAT(Names(map), ElementsAre("a 1", "b 2"));
  // What cannot be reopened either is named.
  opener.refused = {"a", "d"};
  EXPECT_THAT(map.Set({{"a", 9, 0}, {"b", 2, 0}}).ToString(),
              HasSubstr("namespace a: no a 9; without a store now: namespace a: no a 1"));
  EXPECT_THAT(Names(map), ElementsAre("b 2"));
}

TEST(NamespaceMapTest, AfterCloseNothingIsFound) {
  FakeOpener opener;
  NamespaceMap map(opener.Function());
  ASSERT_TRUE(map.Set({{"a", 1, 0}}).ok());
  EXPECT_TRUE(map.Close(kNoDeadline).ok());
  EXPECT_EQ(map.Find("a"), nullptr);
  EXPECT_TRUE(map.Close(kNoDeadline).ok());
}

TEST(NamespaceMapTest, SessionsOfAClosedNamespaceEnd) {
  FakeOpener opener;
  NamespaceMap map(opener.Function());
  ASSERT_TRUE(map.Set({{"a", 1, 0}, {"b", 2, 0}}).ok());
  SessionTable sessions{SessionTable::Options()};
  const auto tenant_of = [](const std::string& name_space) {
    Tenant tenant;
    tenant.name = "t";
    tenant.name_space = name_space;
    return std::make_shared<const Tenant>(tenant);
  };
  const TenantRef of_a = tenant_of("a"), of_b = tenant_of("b");
  const SessionRef in_a = sessions.Open(of_a, map.Find("a")).value();
  const SessionRef in_b = sessions.Open(of_b, map.Find("b")).value();
  ASSERT_EQ(sessions.Find(in_a->id, tenant_of("a")), in_a) << "a tenant that was read again";
  EXPECT_EQ(sessions.Find(in_a->id, of_b), nullptr) << "the tenant has another namespace now";
  ASSERT_TRUE(map.Set({{"a", 9, 0}, {"b", 2, 0}}).ok());
  EXPECT_EQ(sessions.Find(in_a->id, of_a), nullptr);
  EXPECT_EQ(sessions.Find(in_b->id, of_b), in_b);
  sessions.Reap();
  EXPECT_EQ(sessions.size(), 1u);
}

TEST(NamespaceDirectoryTest, EveryNameHasOneOfItsOwn) {
  EXPECT_EQ(NamespaceDirectory("team-a_1"), "ns-team-a_1");
  EXPECT_EQ(NamespaceDirectory("Team"), "ns-%54eam");
  EXPECT_EQ(NamespaceDirectory(".."), "ns-%2E%2E");
  EXPECT_EQ(NamespaceDirectory("a/b"), "ns-a%2Fb");
  EXPECT_EQ(NamespaceDirectory("a%2Fb"), "ns-a%252%46b");
  EXPECT_EQ(NamespaceDirectory(std::string("\0", 1)), "ns-%00");
}

// With real tiers: what one namespace has is not there for another.
class OpenedNamespacesTest : public ::testing::Test {
 protected:
  OpenedNamespacesTest() {
    const PlaneSpec plane{.kind = PlaneKind::kK, .heads = 1, .head_dim = 8, .bytes_per_token = 16};
    spec_.model_id = "synthetic";
    spec_.payload_form = PayloadForm::kCanonical;
    spec_.cut = Cut::kRanged;
    spec_.layers = {LayerSpec{.planes = {plane}}};
    std::iota(prompt_.begin(), prompt_.end(), 1);
  }

  OpenNamespace Opener(bool with_nvme) const {
    NamespaceOpenerOptions options;
    if (with_nvme) options.nvme_dir = root_ / "nvme";
    return MakeNamespaceOpener(options);
  }

  void Store(Namespace& name_space, std::byte fill) {
    StorageManager& manager = *name_space.manager;
    const auto sizes = [&](TokenRange tokens, ObjectPart part) -> Result<uint64_t> {
      return spec_.PayloadBytes(part, static_cast<uint32_t>(tokens.end - tokens.begin));
    };
    const ChunkKey root = manager.Root(spec_).value();
    PrepareResult prepared = manager.Prepare(root, prompt_, {0, prompt_.size()}, sizes).value();
    std::vector<WritableChunk> filled;
    for (PreparedChunk& chunk : prepared.chunks) {
      ASSERT_TRUE(chunk.writable.has_value());
      const MutableBytes payload = chunk.writable->payload();
      std::memset(payload.data(), static_cast<int>(fill), payload.size());
      filled.push_back(std::move(*chunk.writable));
    }
    ASSERT_EQ(filled.size(), 2u);
    manager.Commit(std::move(filled));
    ASSERT_TRUE(manager.Flush().ok());
  }

  // Of the first token's KV; absent: nothing is stored.
  std::optional<std::byte> FirstByte(Namespace& name_space) {
    StorageManager& manager = *name_space.manager;
    const Lease lease = manager.Lookup(manager.Root(spec_).value(), prompt_).value();
    if (lease.matched_tokens() == 0) return std::nullopt;
    EXPECT_EQ(lease.matched_tokens(), prompt_.size());
    LoadHandle load = manager.Load(lease, {0, lease.matched_tokens()});
    const std::optional<LeasedChunk> chunk = load.Next().value();
    return chunk ? std::optional(chunk->payload()[0]) : std::nullopt;
  }

  const TemporaryDirectory root_;
  KvSpec spec_;
  std::vector<Token> prompt_ = std::vector<Token>(512);
};

TEST_F(OpenedNamespacesTest, AKeyOfOneIsAbsentInTheOther) {
  NamespaceMap map(Opener(true));
  ASSERT_TRUE(map.Set({{"a", 16 * kMiB, 128 * kMiB}, {"b", 16 * kMiB, 128 * kMiB}}).ok());
  const NamespaceRef a = map.Find("a"), b = map.Find("b");
  Store(*a, std::byte{0x11});
  EXPECT_EQ(FirstByte(*a), std::byte{0x11});
  EXPECT_EQ(FirstByte(*b), std::nullopt);
  EXPECT_EQ(b->events->last_sequence(), 0u);
  EXPECT_GT(a->events->last_sequence(), 0u);
  // The same key with other bytes: each keeps its own.
  Store(*b, std::byte{0x22});
  EXPECT_EQ(FirstByte(*a), std::byte{0x11});
  EXPECT_EQ(FirstByte(*b), std::byte{0x22});
  ASSERT_TRUE(a->manager->Clear().ok());
  EXPECT_EQ(FirstByte(*a), std::nullopt);
  EXPECT_EQ(FirstByte(*b), std::byte{0x22});
  EXPECT_TRUE(std::filesystem::is_directory(root_ / "nvme/ns-a"));
  EXPECT_TRUE(std::filesystem::is_directory(root_ / "nvme/ns-b"));
  EXPECT_TRUE(map.Close(kNoDeadline).ok());
}

TEST_F(OpenedNamespacesTest, AnotherQuotaKeepsWhatTheNvmeTierHolds) {
  NamespaceMap map(Opener(true));
  ASSERT_TRUE(map.Set({{"a", 16 * kMiB, 128 * kMiB}}).ok());
  const NamespaceRef before = map.Find("a");
  Store(*before, std::byte{0x11});
  ASSERT_TRUE(map.Set({{"a", 32 * kMiB, 128 * kMiB}}).ok());
  const NamespaceRef after = map.Find("a");
  ASSERT_NE(after, before);
  EXPECT_EQ(after->quota.host_bytes, 32 * kMiB);
  EXPECT_EQ(FirstByte(*after), std::byte{0x11});
  EXPECT_FALSE(before->manager->Flush().ok()) << "the closed one is closed";
  EXPECT_TRUE(map.Close(kNoDeadline).ok());
}

TEST_F(OpenedNamespacesTest, WithoutNvmeNothingIsKept) {
  NamespaceMap map(Opener(false));
  ASSERT_TRUE(map.Set({{"a", 16 * kMiB, 128 * kMiB}}).ok());
  Store(*map.Find("a"), std::byte{0x11});
  ASSERT_TRUE(map.Set({{"a", 32 * kMiB, 128 * kMiB}}).ok());
  EXPECT_EQ(FirstByte(*map.Find("a")), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(root_ / "nvme"));
}

TEST_F(OpenedNamespacesTest, ADirectoryThatIsHeldSaysByWhom) {
  NamespaceMap first(Opener(true)), second(Opener(true));
  ASSERT_TRUE(first.Set({{"a", 16 * kMiB, 128 * kMiB}}).ok());
  const Status held = second.Set({{"a", 16 * kMiB, 128 * kMiB}});
  EXPECT_EQ(held.code(), StatusCode::kUnavailable);
  EXPECT_THAT(held.ToString(), HasSubstr("namespace a: "));
  EXPECT_EQ(second.Find("a"), nullptr);
}

TEST_F(OpenedNamespacesTest, ADirectoryThatCannotBeMade) {
  NamespaceOpenerOptions options;
  options.nvme_dir = root_ / "absent/nvme";
  NamespaceMap map(MakeNamespaceOpener(options));
  const Status failed = map.Set({{"a", 16 * kMiB, 128 * kMiB}});
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failed.ToString(), HasSubstr("cannot be made: No such file"));
}

}  // namespace
}  // namespace terrace::server
