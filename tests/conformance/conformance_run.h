// ConformanceRun: one test's backend, and its calls made synchronous. Every call waits for its completion (a
// limit of a minute fails the test) and counts completions.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/conformance/test_object.h"

namespace terrace {

// Where one asynchronous call completes. Copies share the state, so that a late completion is safe.
template <typename Answer>
class Completion {
 public:
  std::function<void(std::span<const Answer>)> Callback() {
    return [state = state_](std::span<const Answer> answers) {
      std::lock_guard lock(state->mutex);
      ++state->calls;
      state->answers.assign(answers.begin(), answers.end());
      state->done.notify_all();
    };
  }
  std::vector<Answer> Wait() {
    std::unique_lock lock(state_->mutex);
    const bool came = state_->done.wait_for(lock, std::chrono::minutes(1), [&] { return state_->calls > 0; });
    EXPECT_TRUE(came) << "no completion within a minute";
    return state_->answers;
  }
  int calls() const {
    std::lock_guard lock(state_->mutex);
    return state_->calls;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    int calls = 0;
    std::vector<Answer> answers;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Whether nobody but the test holds the buffer. A device may do so for a moment after the caller's
// completion.
bool LetGo(const BufferRef& buffer);

class ConformanceRun {
 public:
  explicit ConformanceRun(BackendFixture fixture) : fixture_(std::move(fixture)) {}
  ~ConformanceRun();

  const BackendFixture& fixture() const { return fixture_; }
  bool Open(uint64_t capacity_bytes);  // and attaches; a failure fails the test
  bool OpenRoomy() { return Open(fixture_.roomy_bytes); }
  // Close, destroy, Open with the same capacity.
  bool Reopen();
  Backend& backend() { return *backend_; }
  void Destroy();  // checks that every completion came once

  TestObject Object(uint64_t seed, uint64_t frame_bytes, uint64_t version = 0, ObjectPart part = {}) const {
    return MakeTestObject(seed, frame_bytes, fixture_.write_header, version, part);
  }
  // A smallest frame, or two pages where the header takes one.
  uint64_t small_bytes() const { return std::max<uint64_t>(8192, fixture_.smallest_frame_bytes); }

  std::vector<GetResult> Get(std::vector<GetOp> ops);
  std::vector<Status> Put(std::vector<PutOp> ops);
  std::vector<Status> Erase(std::vector<ObjectId> ids, EraseMode mode);
  Status Clear();
  Status Flush();

  Status PutOne(const TestObject& object) { return Put({PutOpOf(object)}).at(0); }
  Status EraseOne(const TestObject& object, EraseMode mode) { return Erase({object.id}, mode).at(0); }
  // Reads the whole frame and expects exactly these bytes.
  void ExpectHas(const TestObject& object);
  void ExpectMisses(const TestObject& object);
  // Every object, by pages of `limit`.
  std::vector<ScannedObject> ScanAll(size_t limit, ScanDetail detail = ScanDetail::kContents);
  BackendContext Context();

 private:
  BackendFixture fixture_;
  uint64_t capacity_bytes_ = 0;
  std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<MetricRegistry> metrics_;
  std::unique_ptr<Backend> backend_;
};

struct ConformanceCase {
  const char* name;
  void (*body)(ConformanceRun&);
};
std::span<const ConformanceCase> ObjectCases();    // conformance_objects.cc: what is put is got
std::span<const ConformanceCase> LifeCases();      // conformance_life.cc: erase, clear, scan, roots, reopen
std::span<const ConformanceCase> PressureCases();  // conformance_pressure.cc: capacity, threads, time, close

}  // namespace terrace
