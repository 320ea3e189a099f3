// The remote backend against the cache server in this process, over each way that bytes can take.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>

#include "connectors/server/tests/backend_calls.h"
#include "connectors/server/tests/service_fixture.h"
#include "terrace/remote_backend.h"
#include "tests/conformance/test_object.h"

namespace terrace::server {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Way {
  const char* name;
  bool over_unix;
  RemotePath path;
  const char* data_path;  // as the metric names it
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

constexpr Duration kLimit = std::chrono::minutes(2);

class RealServerTest : public ServiceTest, public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("terrace-real-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    options.unix_path = folder_ / "s";
    options.shm = GetParam().path == RemotePath::kSharedMemory;
    entries.front().token_sha256.push_back(Sha256("token-of-alice"));
    Start();
    RemoteOptions remote;
    remote.addresses = {GetParam().over_unix ? server->addresses().back() : server->addresses().front()};
    remote.token = "token-of-alice";
    remote.path = GetParam().path;
    remote.operation_deadline = std::chrono::seconds(60);
    remote.connect_deadline = std::chrono::seconds(30);
    address_ = remote.addresses.front();
    Result<std::unique_ptr<Backend>> made = MakeRemoteBackend(remote);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    backend_ = *std::move(made);
    ASSERT_TRUE(
        backend_->Attach({.clock = Clock::Real(), .metrics = &metrics_, .log = log_.get(), .regions = {}})
            .ok());
    ASSERT_TRUE(backend_->PutRoot(TestRoot()).ok());
  }
  void TearDown() override {
    if (backend_) {
      EXPECT_TRUE(backend_->Close(Clock::Real()->Now() + std::chrono::seconds(60)).ok());
    }
    backend_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::vector<Status> Put(const std::vector<TestChunk>& chunks) {
    std::vector<PutOp> ops;
    for (const TestChunk& chunk : chunks) {
      ops.push_back(PutOpOf(chunk, MakeTestBuffer(chunk.frame.size())));
    }
    return Await<Status>(kLimit, [&](PutDone done) { backend_->Put(std::move(ops), std::move(done)); });
  }
  std::vector<GetResult> Get(std::vector<GetOp> ops) {
    return Await<GetResult>(kLimit, [&](GetDone done) { backend_->Get(std::move(ops), std::move(done)); });
  }
  Status Simple(const std::function<void(StatusDone)>& call) {
    const auto answers = Await<Status>(kLimit, [&](const auto& done) {
      call([done](const Status& status) { done(std::span<const Status>(&status, 1)); });
    });
    return answers.empty() ? InternalError("none") : answers[0];
  }
  static bool Holds(const BufferRef& dst, const TestChunk& chunk) {
    return std::memcmp(dst.frame().data(), chunk.frame.data(), chunk.frame.size()) == 0;
  }

  std::filesystem::path folder_;
  std::string address_;
  MetricRegistry metrics_;
  std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<Backend> backend_;
};

TEST_P(RealServerTest, EveryOperation) {
  const std::vector<TestChunk> chunks = MakeChunks(1, 3, 2 * kMiB + 12345);
  for (const Status& status : Put(chunks)) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Put({chunks[1]}).at(0).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(
      metrics_.Value("terrace_remote_data_path", {{"server", address_}, {"path", GetParam().data_path}}), 1);
  EXPECT_GE(backend_->used_bytes(), 3 * 2 * kMiB);
  EXPECT_GE(backend_->capacity_bytes(), backend_->used_bytes());

  // Whole frames with a miss between, and ranges of one; the destination is longer than the frame.
  const TestChunk absent = MakeChunks(2, 1, kMiB)[0];
  std::vector<GetOp> gets;
  std::vector<BufferRef> dsts;
  std::atomic<uint64_t> reported{0};
  for (const TestChunk* chunk : {&chunks[0], &absent, &chunks[2]}) {
    dsts.push_back(MakeTestBuffer(4 * kMiB));
    gets.push_back(
        {.id = chunk->id, .dst = dsts.back(), .on_bytes = [&](uint64_t, uint64_t n) { reported += n; }});
  }
  dsts.push_back(MakeTestBuffer(kMiB));
  gets.push_back({.id = chunks[1].id, .ranges = {{kMiB, 8192, 4096}, {0, 4096, 0}}, .dst = dsts.back()});
  const std::vector<GetResult> results = Get(std::move(gets));
  ASSERT_EQ(results.size(), 4u);
  EXPECT_TRUE(results[0].status.ok()) << results[0].status.ToString();
  EXPECT_EQ(results[1].status.code(), StatusCode::kNotFound) << results[1].status.ToString();
  EXPECT_TRUE(results[2].status.ok()) << results[2].status.ToString();
  ASSERT_TRUE(results[3].status.ok()) << results[3].status.ToString();
  EXPECT_TRUE(Holds(dsts[0], chunks[0]));
  EXPECT_TRUE(Holds(dsts[2], chunks[2]));
  EXPECT_EQ(reported, chunks[0].frame.size() + chunks[2].frame.size());
  EXPECT_EQ(results[3].frame_bytes, chunks[1].frame.size());
  EXPECT_EQ(std::memcmp(dsts[3].frame().data(), chunks[1].frame.data(), 4096), 0);
  EXPECT_EQ(std::memcmp(dsts[3].frame().data() + 4096, chunks[1].frame.data() + kMiB, 8192), 0);

  const auto match = AwaitMatch(*backend_, kLimit, QueryOf(chunks));
  ASSERT_TRUE(match.at(0).status.ok()) << match[0].status.ToString();
  EXPECT_EQ(match[0].matched_tokens, 3 * kChunkTokens);
  EXPECT_EQ(match[0].chunks.at(2).frame_bytes, chunks[2].frame.size());
  EXPECT_FALSE(match[0].lease_token.empty());
  backend_->Release(match[0].lease_token);

  EXPECT_TRUE(Simple([&](StatusDone done) { backend_->Flush(std::move(done)); }).ok());
  const Result<std::vector<RootRecord>> roots = backend_->ScanRoots();
  ASSERT_TRUE(roots.ok()) << roots.status().ToString();
  EXPECT_EQ(*roots, std::vector<RootRecord>{TestRoot()});
  const Result<ScanPage> page = backend_->Scan("", 10);
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  EXPECT_EQ(page->objects.size(), 3u);

  const auto erased = Await<Status>(kLimit, [&](EraseDone done) {
    backend_->Erase({absent.id, chunks[2].id}, EraseMode::kErase, std::move(done));
  });
  EXPECT_EQ(erased.at(0).code(), StatusCode::kNotFound);
  EXPECT_TRUE(erased.at(1).ok()) << erased[1].ToString();
  const Status cleared = Simple([&](StatusDone done) { backend_->Clear(std::move(done)); });
  EXPECT_TRUE(cleared.ok()) << cleared.ToString();
  BufferRef dst = MakeTestBuffer(4 * kMiB);
  std::vector<GetOp> again;
  again.push_back({.id = chunks[0].id, .dst = dst});
  EXPECT_EQ(Get(std::move(again)).at(0).status.code(), StatusCode::kNotFound);
}

TEST_P(RealServerTest, WrongBytesAreRefusedAndNamed) {
  std::vector<TestChunk> chunks = MakeChunks(3, 1, kMiB);
  chunks[0].frame[chunks[0].frame.size() - kMiB / 2] ^= 1;
  EXPECT_EQ(Put(chunks).at(0).code(), StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(Ways, RealServerTest,
                         testing::Values(Way{"StreamsTcp", false, RemotePath::kStreams, "streams"},
                                         Way{"StreamsUnix", true, RemotePath::kStreams, "streams"},
                                         Way{"BulkTcp", false, RemotePath::kBulk, "bulk"},
                                         Way{"BulkUnix", true, RemotePath::kBulk, "bulk"},
                                         Way{"AutoTcp", false, RemotePath::kAuto, "bulk"}),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace terrace::server
