// A server that ends and comes back at the same address and on the same directory, again and again, under an
// engine that goes on: right bytes or a miss, in time, and found again by itself.
#include "connectors/server/namespace_opener.h"
#include "connectors/server/tests/stress_fixture.h"
#include "tests/support/temporary_directory.h"

namespace terrace::server {
namespace {

constexpr int kRestarts = 20;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class RestartTest : public testing::TestWithParam<RemotePath> {
 protected:
  void Begin() {
    namespaces_ = std::make_shared<NamespaceMap>(MakeNamespaceOpener({.nvme_dir = directory_ / "cache",
                                                                      .keys = {},
                                                                      .share_pool = false,
                                                                      .executor = nullptr,
                                                                      .log = nullptr}));
    const Status set = namespaces_->Set({{"default", 16 * kMiB, 64 * kMiB}});
    ASSERT_TRUE(set.ok()) << set.ToString();
    CacheServerOptions options;
    options.listen = {address_};
    options.shm = false;
    options.metrics = std::make_shared<MetricRegistry>();
    options.log = MakeNullLogSink();
    // The port is the same one, and what connects to it all the time may hold it for a moment.
    EXPECT_TRUE(Eventually([&] {
      auto started =
          CacheServer::Start(options, std::make_shared<TenantTable>(std::vector<TenantEntry>{}), namespaces_);
      if (!started.ok()) return false;
      server_ = *std::move(started);
      return true;
    }));
    ASSERT_TRUE(server_);
    address_ = server_->addresses().front();
  }
  void TearDown() override {
    if (server_) End();
  }
  void End() {
    server_.reset();
    EXPECT_TRUE(namespaces_->Close(Clock::Real()->Now() + std::chrono::seconds(60)).ok());
    namespaces_.reset();
  }

  const TemporaryDirectory directory_;
  std::string address_ = "127.0.0.1:0";
  std::shared_ptr<NamespaceMap> namespaces_;
  std::unique_ptr<CacheServer> server_;
};

TEST_P(RestartTest, EveryAnswerIsRightOrAMiss) {
  Begin();
  ASSERT_TRUE(server_);
  RemoteOptions remote;
  remote.addresses = {address_};
  remote.path = GetParam();
  StressClient engine(remote);
  std::vector<std::vector<TestChunk>> prompts;
  for (uint32_t i = 0; i < 8; ++i) prompts.push_back(MakeChunks(i + 1, 2, 300'000));
  ASSERT_TRUE(Eventually([&] { return engine.Put(prompts[0]); }));
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> num_hits{0};
  // Back to back: the server ends in the middle of one or the other.
  std::thread worker([&] {
    for (size_t i = 0; !stopping; ++i) {
      engine.Put(prompts[i % prompts.size()]);
      num_hits += engine.Get(prompts[(i * 5 + 3) % prompts.size()]);
    }
  });
  for (int i = 0; i < kRestarts && !HasFailure(); ++i) {
    End();
    Begin();
    const uint64_t before = num_hits;
    EXPECT_TRUE(Eventually([&] { return num_hits > before; })) << "not found again after restart " << i;
  }
  stopping = true;
  worker.join();
  EXPECT_TRUE(Eventually([&] { return engine.Get(prompts[0]) == 2; })) << "what was put outlives the servers";
  EXPECT_EQ(engine.Metric("breaker_open", address_), 0);
}

TEST_P(RestartTest, TheBreakerClosesByItself) {
  Begin();
  ASSERT_TRUE(server_);
  RemoteOptions remote;
  remote.addresses = {address_};
  remote.path = GetParam();
  StressClient engine(remote);
  const std::vector<TestChunk> chunks = MakeChunks(1, 1, 300'000);
  ASSERT_TRUE(Eventually([&] { return engine.Put(chunks); }));
  End();
  ASSERT_TRUE(Eventually([&] {
    EXPECT_EQ(engine.Get(chunks), 0u);
    return engine.Metric("breaker_open", address_) == 1;
  }));
  Begin();
  EXPECT_TRUE(Eventually([&] { return engine.Get(chunks) == 1; }));
  EXPECT_EQ(engine.Metric("breaker_open", address_), 0);
}

INSTANTIATE_TEST_SUITE_P(Paths, RestartTest, testing::Values(RemotePath::kStreams, RemotePath::kBulk),
                         [](const auto& path) {
                           return std::string(path.param == RemotePath::kBulk ? "Bulk" : "Streams");
                         });

}  // namespace
}  // namespace terrace::server
