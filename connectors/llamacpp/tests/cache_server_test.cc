// The real engine over a real cache server, which is a process of its own (`terrace serve`): what one engine
// computed, another takes from the server, with the same logits; and whatever becomes of the server
// meanwhile, the engine's answers stay right and no prompt waits beyond its deadline.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "connectors/llamacpp/tests/engine_host.h"
#include "connectors/llamacpp/tool/serve_process.h"
#include "terrace/remote_backend.h"

namespace terrace::llamacpp {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr auto kDeadline = std::chrono::seconds(10);  // a loaded machine has to load within it
// The deadline, and what a loaded machine may take beyond it.
constexpr double kMostWaitMs = 10000 + 10000;
constexpr char kAddressVariable[] = "TERRACE_TEST_SERVER_ADDRESS";
constexpr char kLogitsVariable[] = "TERRACE_TEST_LOGITS_FILE";

std::vector<llama_token> Document() { return RandomTokens(1040, 71); }

// A manager with nothing in memory over the server.
std::shared_ptr<StorageManager> OpenOver(const std::string& address, RemotePath path = RemotePath::kAuto) {
  RemoteOptions remote;
  remote.addresses = {address};
  remote.path = path;
  remote.operation_deadline = kDeadline;
  remote.connect_deadline = kDeadline;
  remote.breaker_pause = std::chrono::milliseconds(1);
  StorageOptions options;
  options.pool_bytes = 64 * kMiB;
  options.huge_pages = false;
  std::vector<Tier> tiers(2);
  tiers[0].backend = MakeHostBackend({.capacity_bytes = 48 * kMiB}).value();
  tiers[1].backend = MakeRemoteBackend(remote).value();
  return StorageManager::Open(std::move(options), std::move(tiers)).value();
}

LlamaCacheOptions WithDeadline() {
  LlamaCacheOptions options;
  options.remote_deadline = options.load_deadline = kDeadline;
  return options;
}

std::unique_ptr<ServeProcess> StartServer() {
  ServeProcess::Options options;
  options.program = TERRACE_PROGRAM_PATH;
  options.host_bytes = 64 * kMiB;
  Result<std::unique_ptr<ServeProcess>> server = ServeProcess::Start(std::move(options));
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return server.ok() ? *std::move(server) : nullptr;
}

class CacheServerTest : public testing::Test {
 protected:
  std::unique_ptr<LlamaCache> Cache(const std::shared_ptr<StorageManager>& store) {
    return MakeCache(model_.get(), params_, store, WithDeadline());
  }
  // The document's KV is on the server afterwards.
  void Compute(const std::string& address) {
    const std::shared_ptr<StorageManager> store = OpenOver(address);
    EXPECT_EQ(RunPrompt(*Cache(store), 0, document_).decoded, document_.size());
    const Status flushed = store->Flush(steady_clock::now() + std::chrono::seconds(30));
    EXPECT_TRUE(flushed.ok()) << flushed.ToString();
    EXPECT_TRUE(store->Close().ok());
  }

  uint64_t UndisturbedLoadUs(const std::string& address) {
    const std::shared_ptr<StorageManager> store = OpenOver(address);
    const auto cache = Cache(store);
    const auto start = steady_clock::now();
    EXPECT_EQ(cache->Fetch(0, document_).loaded_tokens, 1024u);
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - start);
    EXPECT_TRUE(store->Close().ok());
    return static_cast<uint64_t>(took.count());
  }

  const ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  const llama_context_params params_ = TinyContextParams();
  const std::vector<llama_token> document_ = Document();
  const std::vector<float> reference_ =
      BareEngine(model_.get(), params_).Decode(document_, 0, {256, 512, 768, 1024, 1040});
};

TEST_F(CacheServerTest, OnEachPathAnotherEngineIsWarmWithTheSameLogits) {
  const std::unique_ptr<ServeProcess> server = StartServer();
  ASSERT_NE(server, nullptr);
  Compute(server->tcp_address());
  struct Row {
    std::string address;
    RemotePath path;
  };
  for (const Row& row :
       {Row{server->tcp_address(), RemotePath::kAuto}, Row{server->tcp_address(), RemotePath::kBulk},
        Row{server->tcp_address(), RemotePath::kStreams}, Row{server->unix_address(), RemotePath::kAuto},
        Row{server->unix_address(), RemotePath::kBulk},
        Row{server->unix_address(), RemotePath::kSharedMemory}}) {
    SCOPED_TRACE(row.address + " path " + std::to_string(static_cast<int>(row.path)));
    const std::shared_ptr<StorageManager> store = OpenOver(row.address, row.path);
    const HostRun run = RunPrompt(*Cache(store), 0, document_);
    EXPECT_EQ(run.fetch.loaded_tokens, 1024u) << run.fetch.reason.ToString();
    EXPECT_EQ(run.decoded, document_.size() - 1024);
    ASSERT_EQ(run.fetch.by_tier.size(), 2u);
    EXPECT_EQ(run.fetch.by_tier[1].tokens, 1024u);
    EXPECT_TRUE(SameBytes(run.logits, reference_));
    EXPECT_TRUE(store->Close().ok());
  }
}

// The twin: KV of another prompt under the document's keys would be seen.
TEST_F(CacheServerTest, AValidFrameOfAnotherPrefixChangesTheLogits) {
  const std::unique_ptr<ServeProcess> server = StartServer();
  ASSERT_NE(server, nullptr);
  std::shared_ptr<StorageManager> store = OpenOver(server->tcp_address());
  PlantWrongChunks(*store, Cache(store)->root(), model_.get(), params_, document_,
                   RandomTokens(document_.size(), 72), {256, 512, 768, 1024});
  CloseStore(*store);
  store = OpenOver(server->tcp_address());
  const HostRun run = RunPrompt(*Cache(store), 0, document_);
  EXPECT_EQ(run.fetch.loaded_tokens, 1024u) << run.fetch.reason.ToString();
  EXPECT_FALSE(run.logits.empty());
  EXPECT_FALSE(SameBytes(run.logits, reference_));
  EXPECT_TRUE(store->Close().ok());
}

// Two processes: this one computes, the second is this program again, running only the test below.
TEST_F(CacheServerTest, ASecondProcessAnswersFromTheServer) {
  const std::unique_ptr<ServeProcess> server = StartServer();
  ASSERT_NE(server, nullptr);
  Compute(server->unix_address());
  const TemporaryDirectory directory;
  const std::string logits = directory.path() / "logits";
  ASSERT_EQ(setenv(kAddressVariable, server->unix_address().c_str(), 1), 0);
  ASSERT_EQ(setenv(kLogitsVariable, logits.c_str(), 1), 0);
  const std::string command =
      "'" + std::filesystem::read_symlink("/proc/self/exe").string() +
      "' --gtest_also_run_disabled_tests --gtest_filter=CacheServerTest.DISABLED_InTheSecondProcess";
  EXPECT_EQ(std::system(command.c_str()), 0);
  unsetenv(kAddressVariable);
  unsetenv(kLogitsVariable);
  std::vector<float> answered(reference_.size());
  std::ifstream file(logits, std::ios::binary);
  file.read(reinterpret_cast<char*>(answered.data()),
            static_cast<std::streamsize>(answered.size() * sizeof(float)));
  ASSERT_TRUE(file.good());
  EXPECT_TRUE(SameBytes(answered, reference_));
}

TEST_F(CacheServerTest, DISABLED_InTheSecondProcess) {
  const char* const address = std::getenv(kAddressVariable);
  const char* const logits = std::getenv(kLogitsVariable);
  ASSERT_TRUE(address != nullptr && logits != nullptr);
  const std::shared_ptr<StorageManager> store = OpenOver(address);
  const HostRun run = RunPrompt(*Cache(store), 0, document_);
  EXPECT_EQ(run.fetch.loaded_tokens, 1024u) << run.fetch.reason.ToString();
  ASSERT_EQ(run.fetch.by_tier.size(), 2u);
  EXPECT_EQ(run.fetch.by_tier[1].tokens, 1024u);
  EXPECT_EQ(run.decoded, document_.size() - 1024);
  EXPECT_TRUE(store->Close().ok());
  std::ofstream(logits, std::ios::binary)
      .write(reinterpret_cast<const char*>(run.logits.data()),
             static_cast<std::streamsize>(run.logits.size() * sizeof(float)));
}

// A hundred loads, during each of which the server gets SIGKILL at a random moment; in some it is gone
// before, in some it goes after, so that both outcomes are among them whatever the machine does.
TEST_F(CacheServerTest, KilledAHundredTimesDuringLoads) {
  constexpr uint32_t kRounds = 100;
  constexpr uint64_t kSeed = 20250711;
  std::mt19937_64 random(kSeed);
  const std::unique_ptr<ServeProcess> server = StartServer();
  ASSERT_NE(server, nullptr);
  Compute(server->tcp_address());
  // The moments are spread over twice what a load takes that nobody disturbs.
  const uint64_t spread_us = 2 * UndisturbedLoadUs(server->tcp_address()) + 1;
  uint32_t whole = 0, none = 0;
  double longest_ms = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + " round " + std::to_string(round));
    const std::string address = round % 2 == 0 ? server->tcp_address() : server->unix_address();
    if (round > 0) Compute(address);  // a server that was killed has lost what it had
    const std::shared_ptr<StorageManager> store = OpenOver(address);
    const auto cache = Cache(store);
    const bool before = round % 10 == 1, after = round % 10 == 6;
    const auto moment = std::chrono::microseconds(random() % spread_us);
    if (before) server->Kill();
    std::thread killer;
    if (!before && !after) {
      killer = std::thread([&] {
        std::this_thread::sleep_for(moment);  // the random moment itself
        server->Kill();
      });
    }
    const HostRun run = RunPrompt(*cache, 0, document_);
    const double waited_ms = run.fetch.remote_ms + run.fetch.load_ms;
    longest_ms = std::max(longest_ms, waited_ms);
    EXPECT_LT(waited_ms, kMostWaitMs);
    EXPECT_EQ(run.decoded, document_.size() - run.fetch.ready_tokens);
    EXPECT_TRUE(SameBytes(run.logits, reference_));
    if (killer.joinable()) killer.join();
    if (after) server->Kill();
    if (before) {
      EXPECT_EQ(run.fetch.ready_tokens, 0u);
    }
    if (after) {
      EXPECT_EQ(run.fetch.loaded_tokens, 1024u) << run.fetch.reason.ToString();
    }
    whole += run.fetch.loaded_tokens == 1024;
    none += run.fetch.loaded_tokens == 0;
    store->Close(steady_clock::now() + kDeadline).IgnoreError();
    const Status restarted = server->Restart();
    ASSERT_TRUE(restarted.ok()) << restarted.ToString();
  }
  RecordProperty("loaded_whole", std::to_string(whole));
  RecordProperty("loaded_nothing", std::to_string(none));
  std::printf("kills within %llu us; loaded whole %u, nothing %u, a part %u; longest wait %.0f ms\n",
              static_cast<unsigned long long>(spread_us), whole, none, kRounds - whole - none, longest_ms);
  EXPECT_GE(whole, kRounds / 10);
  EXPECT_GE(none, kRounds / 10);
}

}  // namespace
}  // namespace terrace::llamacpp
