// Shared memory as engines meet it: storage managers with a remote tier, and a server on their host.
#include <gtest/gtest.h>
#include <unistd.h>

#include "connectors/server/cache_server.h"
#include "lib/wire/host_id.h"
#include "terrace/remote_backend.h"
#include "tests/support/manager_fixture.h"

namespace terrace::server {
namespace {

struct ServedHost {
  CacheServerOptions options;
  std::shared_ptr<NamespaceMap> namespaces;
  std::unique_ptr<CacheServer> server;
  uint64_t pool_bytes = 32 << 20;

  explicit ServedHost(bool share_pool = true) {
    options.unix_path = testing::TempDir() + "shm_service_" + std::to_string(getpid());
    options.log = MakeNullLogSink();
    options.metrics = std::make_shared<MetricRegistry>();
    namespaces = std::make_shared<NamespaceMap>([share_pool](const NamespaceQuota& quota) {
      StorageOptions storage;
      storage.pool_bytes = quota.host_bytes;
      storage.share_pool = share_pool;
      storage.huge_pages = false;
      storage.runs_stand_alone = true;
      storage.log = MakeNullLogSink();
      std::vector<Tier> tiers;
      tiers.emplace_back().backend = *MakeHostBackend({.capacity_bytes = quota.host_bytes});
      auto made = std::make_shared<Namespace>();
      made->quota = quota;
      made->events = std::make_shared<EventLog>();
      made->manager = *StorageManager::Open(storage, std::move(tiers));
      made->store = std::make_unique<FrameStore>(*made->manager);
      return Result<NamespaceRef>(std::move(made));
    });
  }

  void Start() {
    NamespaceQuota quota;
    quota.name = "default";
    quota.host_bytes = pool_bytes;
    const Status set = namespaces->Set({quota});
    ASSERT_TRUE(set.ok()) << set.ToString();
    Result<std::unique_ptr<CacheServer>> started =
        CacheServer::Start(options, std::make_shared<TenantTable>(std::vector<TenantEntry>{}), namespaces);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    server = *std::move(started);
  }

  int64_t Received() const { return Value("terrace_server_received_bytes_total"); }
  int64_t Sent() const { return Value("terrace_server_sent_bytes_total"); }

 private:
  int64_t Value(const std::string& metric) const {
    return options.metrics->Value(metric, {{"path", "shm"}, {"tenant", "default"}});
  }
};

// An engine's process, but for the process.
struct Engine {
  std::unique_ptr<StorageManager> manager;
  ChunkKey root;

  Engine(const ServedHost& host, RemotePath path) {
    RemoteOptions remote;
    remote.addresses = {"unix:" + host.options.unix_path};
    remote.path = path;
    remote.operation_deadline = std::chrono::seconds(60);
    remote.connect_deadline = std::chrono::seconds(30);
    StorageOptions storage;
    storage.pool_bytes = 16 << 20;
    storage.huge_pages = false;
    storage.io_deadline = std::chrono::seconds(60);
    storage.log = MakeNullLogSink();
    std::vector<Tier> tiers;
    tiers.emplace_back().backend = *MakeHostBackend({.capacity_bytes = storage.pool_bytes});
    tiers.emplace_back().backend = *MakeRemoteBackend(remote);
    manager = *StorageManager::Open(storage, std::move(tiers));
    root = *manager->Root(TestSpec());
  }

  // Chunk by chunk, so that the server has each one's parent.
  void Store(const std::vector<Token>& tokens) {
    for (uint64_t begin = 0; begin < tokens.size(); begin += kTestChunk) {
      StorePrompt(*manager, root, tokens, {begin, begin + kTestChunk},
                  [](TokenRange, ObjectPart) { return kTestPayload; });
      EXPECT_TRUE(manager->Flush().ok());
    }
  }
  // Tokens that came from anywhere, every byte of them checked.
  uint64_t Load(const std::vector<Token>& tokens) {
    LookupOptions options;
    options.remote_deadline = std::chrono::seconds(60);
    Result<Lease> lease = manager->Lookup(root, tokens, options);
    EXPECT_TRUE(lease.ok()) << lease.status().ToString();
    if (!lease.ok()) return 0;
    const Status answered = lease->WaitRemote(Clock::Real()->Now() + std::chrono::seconds(60));
    EXPECT_TRUE(answered.ok()) << answered.ToString();
    LoadHandle handle = manager->Load(*lease, {0, lease->matched_tokens()});
    while (true) {
      Result<std::optional<LeasedChunk>> chunk = handle.Next();
      EXPECT_TRUE(chunk.ok());
      if (!chunk.ok() || !chunk->has_value()) break;
      EXPECT_TRUE(PayloadIsRight(**chunk));
    }
    return handle.report().loaded_tokens;
  }
};

TEST(ShmServiceTest, OneEnginesWorkIsTheOthersThroughMemory) {
  if (!ReadHostId()) GTEST_SKIP() << "this host has no machine id or boot id: no shared memory";
  ServedHost host;
  host.Start();
  const std::vector<Token> tokens = TestTokens(20 * kTestChunk);
  {
    Engine first(host, RemotePath::kSharedMemory);
    first.Store(tokens);
  }
  EXPECT_GT(host.Received(), 20 * int64_t{kTestPayload});
  Engine second(host, RemotePath::kAuto);
  EXPECT_EQ(second.Load(tokens), tokens.size());
  EXPECT_GT(host.Sent(), 20 * int64_t{kTestPayload});
}

TEST(ShmServiceTest, PutsThatStagingHasNoRoomForTakeTheStreams) {
  if (!ReadHostId()) GTEST_SKIP() << "this host has no machine id or boot id: no shared memory";
  ServedHost host;
  host.options.staging_bytes = 64 * 1024;
  host.Start();
  const std::vector<Token> tokens = TestTokens(20 * kTestChunk);
  Engine first(host, RemotePath::kSharedMemory);
  first.Store(tokens);
  EXPECT_EQ(host.Received(), 0);
  Engine second(host, RemotePath::kSharedMemory);
  EXPECT_EQ(second.Load(tokens), tokens.size());
  EXPECT_GT(host.Sent(), 20 * int64_t{kTestPayload});
}

TEST(ShmServiceTest, WithoutASharedPoolTheSocketsServe) {
  ServedHost host(false);
  host.Start();
  const std::vector<Token> tokens = TestTokens(4 * kTestChunk);
  Engine first(host, RemotePath::kAuto);
  first.Store(tokens);
  Engine second(host, RemotePath::kAuto);
  EXPECT_EQ(second.Load(tokens), tokens.size());
  EXPECT_EQ(host.Received(), 0);
}

}  // namespace
}  // namespace terrace::server
