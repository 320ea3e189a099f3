#include "tests/conformance/conformance.h"

#include <thread>

#include "tests/conformance/conformance_run.h"

namespace terrace {

bool LetGo(const BufferRef& buffer) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (buffer.use_count() != 1 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  return buffer.use_count() == 1;
}

ConformanceRun::~ConformanceRun() { Destroy(); }

BackendContext ConformanceRun::Context() {
  return {.clock = Clock::Real(), .metrics = metrics_.get(), .log = log_.get()};
}

bool ConformanceRun::Open(uint64_t capacity_bytes) {
  capacity_bytes_ = capacity_bytes;
  metrics_ = std::make_unique<MetricRegistry>();
  Result<std::unique_ptr<Backend>> made = fixture_.make(capacity_bytes);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  if (!made.ok()) return false;
  backend_ = std::move(*made);
  const Status attached = backend_->Attach(Context());
  EXPECT_TRUE(attached.ok()) << attached.ToString();
  return attached.ok();
}

void ConformanceRun::Destroy() {
  if (!backend_) return;
  const MetricLabels labels = {{"backend", std::string(backend_->name())}};
  backend_.reset();
  EXPECT_EQ(metrics_->Value("terrace_backend_violations_total", labels), 0)
      << "completions twice, never, or wrong";
}

bool ConformanceRun::Reopen() {
  const Status closed = backend_->Close();
  EXPECT_TRUE(closed.ok()) << closed.ToString();
  Destroy();
  return Open(capacity_bytes_);
}

std::vector<GetResult> ConformanceRun::Get(std::vector<GetOp> ops) {
  const size_t num_ops = ops.size();
  Completion<GetResult> completion;
  backend_->Get(std::move(ops), completion.Callback());
  std::vector<GetResult> results = completion.Wait();
  EXPECT_EQ(results.size(), num_ops);
  EXPECT_EQ(completion.calls(), 1);
  results.resize(num_ops, {InternalError("no result"), 0});
  return results;
}

std::vector<Status> ConformanceRun::Put(std::vector<PutOp> ops) {
  const size_t num_ops = ops.size();
  Completion<Status> completion;
  backend_->Put(std::move(ops), completion.Callback());
  std::vector<Status> results = completion.Wait();
  EXPECT_EQ(results.size(), num_ops);
  EXPECT_EQ(completion.calls(), 1);
  results.resize(num_ops, InternalError("no result"));
  return results;
}

std::vector<Status> ConformanceRun::Erase(std::vector<ObjectId> ids, EraseMode mode) {
  const size_t num_ids = ids.size();
  Completion<Status> completion;
  backend_->Erase(std::move(ids), mode, completion.Callback());
  std::vector<Status> results = completion.Wait();
  EXPECT_EQ(results.size(), num_ids);
  EXPECT_EQ(completion.calls(), 1);
  results.resize(num_ids, InternalError("no result"));
  return results;
}

Status ConformanceRun::Clear() {
  Completion<Status> completion;
  backend_->Clear([callback = completion.Callback()](const Status& status) { callback({&status, 1}); });
  const std::vector<Status> results = completion.Wait();
  return results.empty() ? InternalError("no result") : results[0];
}

Status ConformanceRun::Flush() {
  Completion<Status> completion;
  backend_->Flush([callback = completion.Callback()](const Status& status) { callback({&status, 1}); });
  const std::vector<Status> results = completion.Wait();
  return results.empty() ? InternalError("no result") : results[0];
}

void ConformanceRun::ExpectHas(const TestObject& object) {
  BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
  const GetResult result = Get({GetOpOf(object, dst)}).at(0);
  EXPECT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.frame_bytes, object.meta.frame_bytes);
  EXPECT_TRUE(object.Holds(dst)) << "other bytes than were put";
}

void ConformanceRun::ExpectMisses(const TestObject& object) {
  BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
  const GetResult result = Get({GetOpOf(object, dst)}).at(0);
  EXPECT_EQ(result.status.code(), StatusCode::kNotFound) << result.status.ToString();
}

std::vector<ScannedObject> ConformanceRun::ScanAll(size_t limit, ScanDetail detail) {
  std::vector<ScannedObject> all;
  std::string cursor;
  for (int page_index = 0; page_index < 100000; ++page_index) {
    Result<ScanPage> page = backend_->Scan(cursor, limit, detail);
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    if (!page.ok()) return all;
    EXPECT_LE(page->objects.size(), limit);
    for (ScannedObject& object : page->objects) all.push_back(std::move(object));
    if (page->next_cursor.empty()) return all;
    EXPECT_NE(page->next_cursor, cursor) << "the scan does not move on";
    cursor = page->next_cursor;
  }
  ADD_FAILURE() << "the scan does not end";
  return all;
}

void RegisterBackendConformance(const std::string& name, FixtureFactory factory) {
  class Case : public ::testing::Test {
   public:
    Case(const FixtureFactory& make_fixture, void (*body)(ConformanceRun&))
        : make_fixture_(make_fixture), body_(body) {}
    void TestBody() override {
      ConformanceRun run(make_fixture_());
      body_(run);
    }

   private:
    const FixtureFactory make_fixture_;
    void (*const body_)(ConformanceRun&);
  };
  const std::string suite = name + "Conformance";
  for (const auto cases : {ObjectCases(), LifeCases(), PressureCases()}) {
    for (const ConformanceCase& one : cases) {
      ::testing::RegisterTest(
          suite.c_str(), one.name, nullptr, nullptr, __FILE__, __LINE__,
          [factory, body = one.body]() -> ::testing::Test* { return new Case(factory, body); });
    }
  }
}

}  // namespace terrace
