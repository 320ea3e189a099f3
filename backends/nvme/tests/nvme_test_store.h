// NvmeTestStore: a directory of its own, a backend on it, and its calls made synchronous. FaultyEngine:
// io_uring with results that a test decides.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/io_engine.h"
#include "terrace/nvme_backend.h"
#include "tests/conformance/test_object.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

// Sees each request when it starts and each completion before the backend does.
struct EngineFaults {
  std::mutex mutex;
  std::function<void(IoCompletion&)> change;      // may alter the result
  std::function<bool(const IoCompletion&)> hold;  // true: kept back until Release
  std::function<void(IoRequest&)> start;          // may shorten the request
  std::vector<IoCompletion> held;
  IoEngine* engine = nullptr;
  void Release();
  size_t num_held();
};

IoEngineFactory MakeFaultyEngine(std::shared_ptr<EngineFaults> faults,
                                 IoEngineFactory base_factory = MakeUringEngine);

class NvmeTestStore {
 public:
  NvmeOptions options() const;
  std::filesystem::path path() const { return root() / "tier"; }
  const std::filesystem::path& root() const { return directory_.path(); }
  std::filesystem::path segment(int index) const { return path() / ("seg-00000" + std::to_string(index)); }

  std::vector<EncryptionKey> keys;  // of options()

  void Open(uint64_t capacity_bytes = 128 * kMiB, IoEngineFactory engine = {});
  Status TryOpen(const NvmeOptions& options, IoEngineFactory engine = {});
  Status TryAttach(Result<std::unique_ptr<Backend>> made, std::vector<MemoryRegion> regions = {});
  void Close();
  // Without a word about how it went.
  void Drop() { backend_.reset(); }
  void Reopen(uint64_t capacity_bytes = 128 * kMiB) {
    Close();
    Open(capacity_bytes);
  }
  Backend& backend() { return *backend_; }
  // The gauge of that way of I/O.
  int64_t IoMode(const std::string& mode, const std::string& direct, const std::string& registered) const;
  // Before Open.
  void set_clock(Clock* clock) { clock_ = clock; }
  void set_log(std::shared_ptr<LogSink> log) { log_ = std::move(log); }
  int64_t Metric(const std::string& name) const { return metrics_->Value(name, {{"backend", "nvme"}}); }

  Status Put(const TestObject& object);
  GetResult Get(const TestObject& object, BufferRef* dst = nullptr);
  Status Erase(const ObjectId& id, EraseMode mode);
  Status Clear();
  Status Flush();
  void ExpectHas(const TestObject& object);
  StatusCode GetCode(const TestObject& object) { return Get(object).status.code(); }

  // st_blocks of everything in the directory.
  uint64_t BytesOnDisk() const;

 private:
  const TemporaryDirectory directory_;
  std::unique_ptr<MetricRegistry> metrics_;
  Clock* clock_ = Clock::Real();
  std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<Backend> backend_;
};

TestObject MakeNvmeObject(uint64_t seed, uint64_t frame_bytes, uint64_t version = 0);

// One call's answers, waited for.
template <typename Answer>
class Answers {
 public:
  std::function<void(std::span<const Answer>)> Callback() {
    return [state = state_](std::span<const Answer> answers) {
      const std::lock_guard lock(state->mutex);
      state->answers.emplace(answers.begin(), answers.end());
      ++state->calls;
      state->changed.notify_all();
    };
  }
  bool came() const {
    const std::lock_guard lock(state_->mutex);
    return state_->answers.has_value();
  }
  std::vector<Answer> Wait() {
    std::unique_lock lock(state_->mutex);
    const bool came =
        state_->changed.wait_for(lock, std::chrono::minutes(1), [&] { return state_->answers.has_value(); });
    EXPECT_TRUE(came) << "no answer within a minute";
    EXPECT_EQ(state_->calls, 1);
    return state_->answers.value_or(std::vector<Answer>());
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<std::vector<Answer>> answers;
    int calls = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace terrace
