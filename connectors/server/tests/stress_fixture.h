// A remote backend that a test may treat badly: every answer is checked for its bytes and for its time.
#pragma once

#include <atomic>
#include <cstring>

#include "connectors/server/tests/backend_calls.h"
#include "connectors/server/tests/service_fixture.h"
#include "terrace/remote_backend.h"
#include "tests/conformance/test_object.h"

namespace terrace::server {

inline constexpr Duration kStressDeadline = std::chrono::seconds(1);
// What a loaded machine may add to a deadline before a test calls it broken.
inline constexpr Duration kStressPatience = std::chrono::seconds(30);

// What an engine takes for a miss, or for "not stored": it goes on without the cache.
inline bool IsMiss(StatusCode code) {
  return code == StatusCode::kNotFound || code == StatusCode::kUnavailable ||
         code == StatusCode::kDeadlineExceeded || code == StatusCode::kCancelled ||
         code == StatusCode::kResourceExhausted || code == StatusCode::kFailedPrecondition;
}

class StressClient {
 public:
  explicit StressClient(RemoteOptions options) {
    options.operation_deadline = kStressDeadline;
    options.breaker_pause = std::chrono::milliseconds(20);
    Result<std::unique_ptr<Backend>> made = MakeRemoteBackend(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    backend_ = *std::move(made);
    EXPECT_TRUE(
        backend_->Attach({.clock = Clock::Real(), .metrics = &metrics_, .log = log_.get(), .regions = {}})
            .ok());
    // Kept by the backend and told to each server that it finds, whether one answers now or not.
    (void)backend_->PutRoot(TestRoot());
  }
  // Nobody but the test may hold a buffer once the backend is closed.
  ~StressClient() {
    EXPECT_TRUE(backend_->Close(Clock::Real()->Now() + std::chrono::seconds(60)).ok());
    for (const BufferRef& buffer : buffers_) EXPECT_EQ(buffer.use_count(), 1u);
  }
  StressClient(const StressClient&) = delete;
  StressClient& operator=(const StressClient&) = delete;

  // Whether the server has them all now.
  bool Put(const std::vector<TestChunk>& chunks) {
    std::vector<PutOp> ops;
    for (const TestChunk& chunk : chunks) {
      ops.push_back(PutOpOf(chunk, Buffer(chunk.frame.size())));
    }
    bool all = true;
    for (const Status& status :
         Await<Status>(kLimit, [&](PutDone done) { backend_->Put(std::move(ops), std::move(done)); })) {
      all = all && (status.ok() || status.code() == StatusCode::kAlreadyExists);
      const bool is_fair = status.ok() || status.code() == StatusCode::kAlreadyExists || MayFail(status);
      EXPECT_TRUE(is_fair) << status.ToString();
    }
    return all;
  }
  // How many of them came, each of those bit for bit.
  size_t Get(const std::vector<TestChunk>& chunks) {
    std::vector<GetOp> ops;
    std::vector<BufferRef> dsts;
    for (const TestChunk& chunk : chunks) {
      dsts.push_back(Buffer(chunk.frame.size()));
      ops.push_back({.id = chunk.id, .dst = dsts.back()});
    }
    const auto results =
        Await<GetResult>(kLimit, [&](GetDone done) { backend_->Get(std::move(ops), std::move(done)); });
    size_t hits = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].status.ok()) {
        EXPECT_TRUE(MayFail(results[i].status)) << results[i].status.ToString();
        continue;
      }
      ++hits;
      EXPECT_EQ(std::memcmp(dsts[i].frame().data(), chunks[i].frame.data(), chunks[i].frame.size()), 0)
          << "wrong bytes";
    }
    return hits;
  }
  PrefixMatch Match(const std::vector<TestChunk>& chunks) {
    const auto answers = AwaitMatch(*backend_, kLimit, QueryOf(chunks));
    return answers.empty() ? PrefixMatch{} : answers[0];
  }
  Backend& backend() { return *backend_; }
  int64_t Metric(const std::string& name, const std::string& server) const {
    return metrics_.Value("terrace_remote_" + name, {{"server", server}});
  }

  // Beside misses: how a server that breaks a rule is told.
  std::atomic<StatusCode> also_fair{StatusCode::kNotFound};

 private:
  bool MayFail(const Status& status) const {
    return IsMiss(status.code()) || status.code() == also_fair.load();
  }
  BufferRef Buffer(uint64_t bytes) {
    BufferRef buffer = MakeTestBuffer(bytes);
    std::lock_guard lock(mutex_);
    buffers_.push_back(buffer);
    return buffer;
  }
  static constexpr Duration kLimit = kStressDeadline + kStressPatience;

  MetricRegistry metrics_;
  const std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<Backend> backend_;
  std::mutex mutex_;
  std::vector<BufferRef> buffers_;
};

}  // namespace terrace::server
