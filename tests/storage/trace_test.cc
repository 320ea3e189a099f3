// Traces: one record per request with the right numbers, and nothing in it that is the user's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "tests/support/remote_fixture.h"

namespace terrace {
namespace {

std::vector<Token> Seeded(size_t num_chunks, Token seed) { return TestTokens(num_chunks * kTestChunk, seed); }
std::span<const Token> First(const std::vector<Token>& tokens, size_t n) {
  return std::span(tokens).first(n);
}

class KeepingSink final : public TraceSink {
 public:
  void Record(const RequestTrace& trace) override {
    std::lock_guard lock(mutex_);
    traces_.push_back(trace);
    if (throws) throw std::runtime_error("by the test");
  }
  std::vector<RequestTrace> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(traces_, {});
  }
  RequestTrace TakeOne() {
    const std::vector<RequestTrace> traces = Take();
    EXPECT_EQ(traces.size(), 1u);
    return traces.empty() ? RequestTrace{} : traces[0];
  }
  std::atomic<bool> throws{false};

 private:
  std::mutex mutex_;
  std::vector<RequestTrace> traces_;
};

// A folder that goes with the test.
struct TemporaryFolder {
  std::string path = testing::TempDir() + "trace_XXXXXX";
  TemporaryFolder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
  ~TemporaryFolder() {
    for (const char* name : {"/traces", "/link", "/target"}) unlink((path + name).c_str());
    rmdir(path.c_str());
  }
};

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(TraceTest, LookupAndPeek) {
  ManagerFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  f.Open(TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}}));
  const std::vector<Token> prompt = Seeded(4, 1);
  f.Store(First(prompt, 3 * kTestChunk));
  ASSERT_TRUE(f.manager->Flush().ok());
  sink->Take();
  { const Lease lease = *f.manager->Lookup(f.root, prompt, {.request_id = 7}); }
  RequestTrace trace = sink->TakeOne();
  EXPECT_EQ(trace.kind, TraceKind::kLookup);
  EXPECT_EQ(trace.request_id, 7u);
  EXPECT_EQ(trace.root, f.root);
  EXPECT_EQ(trace.tokens, prompt.size());
  EXPECT_EQ(trace.matched_by_tier, (std::vector<uint64_t>{3 * kTestChunk, 0}));
  EXPECT_EQ(trace.remote_tokens, 0u);
  EXPECT_EQ(trace.planned_tokens, 3 * kTestChunk);
  EXPECT_FALSE(trace.why_not.empty());
  EXPECT_EQ(trace.outcome, StatusCode::kOk);
  EXPECT_GE(trace.steps.size(), 2u);
  { const Lease lease = *f.manager->Lookup(f.root, First(prompt, 3 * kTestChunk)); }
  EXPECT_TRUE(sink->TakeOne().why_not.empty());
  f.manager->Peek(f.root, prompt, {.request_id = 8}).status().IgnoreError();
  trace = sink->TakeOne();
  EXPECT_EQ(trace.kind, TraceKind::kPeek);
  EXPECT_EQ(trace.request_id, 8u);
  EXPECT_EQ(trace.planned_tokens, 3 * kTestChunk);
  EXPECT_EQ(trace.matched_by_tier, (std::vector<uint64_t>{3 * kTestChunk, 0}));
  // A chunk of which one part is in the host tier lies in the tier of its slowest part.
  f.Open(TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}}));
  EXPECT_EQ(f.LoadAll(prompt, {{0, 0}}), 3 * kTestChunk);
  EXPECT_EQ(f.LoadAll(First(prompt, kTestChunk)), kTestChunk);
  for (const bool reversed : {false, true}) {
    sink->Take();
    const std::vector<ObjectPart> parts =
        reversed ? std::vector<ObjectPart>{{1, 0}, {0, 0}} : std::vector<ObjectPart>{{0, 0}, {1, 0}};
    { const Lease lease = *f.manager->Lookup(f.root, prompt, {.parts = parts}); }
    EXPECT_EQ(sink->TakeOne().matched_by_tier, (std::vector<uint64_t>{kTestChunk, 2 * kTestChunk}));
  }
}

TEST(TraceTest, RefusedRequestsSaySo) {
  ManagerFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  f.Open();
  const std::vector<Token> prompt = Seeded(1, 1);
  sink->Take();
  EXPECT_FALSE(f.manager->Lookup(ChunkKey{}, prompt).ok());
  EXPECT_EQ(sink->TakeOne().outcome, StatusCode::kNotFound);
  EXPECT_FALSE(f.manager->Peek(f.root, prompt, {.parts = {{4, 0}}}).ok());
  const RequestTrace trace = sink->TakeOne();
  EXPECT_EQ(trace.outcome, StatusCode::kInvalidArgument);
  EXPECT_FALSE(trace.why_not.empty());
}

TEST(TraceTest, StoresLoadsAndErases) {
  ManagerFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  f.Open();
  const std::vector<Token> prompt = Seeded(3, 1);
  sink->Take();
  EXPECT_EQ(f.Store(prompt), 3u);
  RequestTrace trace = sink->TakeOne();
  EXPECT_EQ(trace.kind, TraceKind::kStore);
  EXPECT_EQ(trace.root, f.root);
  EXPECT_EQ(trace.planned_tokens, prompt.size());
  EXPECT_EQ(trace.done_tokens, prompt.size());
  EXPECT_EQ(trace.bytes, 3 * kTestPayload);
  EXPECT_TRUE(trace.why_not.empty());
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.Store(Seeded(5, 2), 2 * kTestChunk), 0u) << "a hole";
  trace = sink->TakeOne();
  EXPECT_EQ(trace.outcome, StatusCode::kFailedPrecondition);
  EXPECT_EQ(trace.planned_tokens, 3 * kTestChunk);
  EXPECT_EQ(trace.done_tokens, 0u);
  EXPECT_FALSE(trace.why_not.empty());
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, First(prompt, 2 * kTestChunk)), 2u);
  trace = sink->TakeOne();
  EXPECT_EQ(trace.kind, TraceKind::kErase);
  EXPECT_EQ(trace.outcome, StatusCode::kOk);
}

TEST(TraceTest, ALoadTellsWhenItEnds) {
  ManagerFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  f.Open();
  const std::vector<Token> prompt = Seeded(3, 1);
  EXPECT_EQ(f.Store(prompt), 3u);
  ASSERT_TRUE(f.manager->Flush().ok());
  f.Open();  // nothing is in the host tier
  sink->Take();
  LoadReport report;
  EXPECT_EQ(f.LoadAll(prompt, {}, &report), prompt.size());
  std::vector<RequestTrace> traces = sink->Take();
  ASSERT_EQ(traces.size(), 2u) << "the lookup's and the load's";
  const RequestTrace& load = traces[1];
  EXPECT_EQ(load.kind, TraceKind::kLoad);
  EXPECT_EQ(load.root, f.root);
  EXPECT_EQ(load.planned_tokens, prompt.size());
  EXPECT_EQ(load.done_tokens, prompt.size());
  EXPECT_EQ(load.bytes, 3 * kTestPayload);
  EXPECT_EQ(load.matched_by_tier, (std::vector<uint64_t>{0, prompt.size()}));
  EXPECT_TRUE(load.why_not.empty());
  ASSERT_EQ(load.steps.size(), 3u);
  EXPECT_STREQ(load.steps[0].name, "read");
  EXPECT_STREQ(load.steps[2].name, "total");

  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  ASSERT_TRUE(lease.ok());
  sink->Take();
  { LoadHandle cancelled = f.manager->Load(*lease, {0, prompt.size()}); }
  traces = sink->Take();
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0].outcome, StatusCode::kCancelled);
  EXPECT_LT(traces[0].done_tokens, prompt.size());
  EXPECT_FALSE(traces[0].why_not.empty());
}

TEST(TraceTest, StoresOfViews) {
  ManagerFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  spec.layers = {
      {.group = 0,
       .planes = {{.kind = PlaneKind::kLatent, .heads = 1, .head_dim = 32, .bytes_per_token = 64}}}};
  f.Open(spec);
  const std::vector<Token> prompt = Seeded(2, 1);
  std::vector<std::byte> memory(prompt.size() * 64);
  const PlaneView plane{.base = memory.data(), .block_stride = 1024, .token_stride = 64, .run_bytes = 64};
  const std::vector<int64_t> table = {0, 1};
  const PagedKvView view{
      .planes = {&plane, 1}, .block_table = table, .tokens_per_block = 16, .num_tokens = prompt.size()};
  ASSERT_TRUE(f.manager->Store(f.root, prompt, {0, kTestChunk}, {&view, 1})->Wait().status.ok());
  ASSERT_TRUE(f.manager->Flush().ok());
  sink->Take();
  StoreHandle handle = *f.manager->Store(f.root, prompt, {0, prompt.size()}, {&view, 1}, {.request_id = 9});
  ASSERT_TRUE(handle.Wait().status.ok());
  ASSERT_TRUE(f.manager->Flush().ok());
  RequestTrace trace = sink->TakeOne();
  EXPECT_EQ(trace.kind, TraceKind::kStore);
  EXPECT_EQ(trace.request_id, 9u);
  EXPECT_EQ(trace.planned_tokens, prompt.size());
  EXPECT_EQ(trace.done_tokens, prompt.size());
  EXPECT_EQ(trace.bytes, 16u * 64) << "of what was copied";
  handle = *f.manager->Store(f.root, Seeded(2, 2), {kTestChunk, 2 * kTestChunk}, {&view, 1});
  ASSERT_FALSE(handle.Wait().status.ok());
  ASSERT_TRUE(f.manager->Flush().ok());
  trace = sink->TakeOne();
  EXPECT_EQ(trace.outcome, StatusCode::kFailedPrecondition);
  EXPECT_EQ(trace.done_tokens, 0u);
}

TEST(TraceTest, TheRemotePartIsInTheRecord) {
  RemoteFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  const std::vector<Token> prompt = Seeded(4, 1);
  f.Seed(First(prompt, 3 * kTestChunk));
  f.StoreNow(First(prompt, kTestChunk));
  for (const bool later : {false, true}) {
    f.shelf->holding_matches = later;
    sink->Take();
    Lease lease = f.Look(prompt);
    if (later) {
      EXPECT_TRUE(sink->Take().empty()) << "the request is not done";
      f.shelf->ReleaseHeld();
    }
    const RequestTrace trace = sink->TakeOne();
    EXPECT_EQ(trace.remote_tokens, 2 * kTestChunk);
    EXPECT_EQ(trace.matched_by_tier, (std::vector<uint64_t>{kTestChunk, 2 * kTestChunk}));
    EXPECT_EQ(trace.planned_tokens, 3 * kTestChunk);
    EXPECT_FALSE(trace.why_not.empty());
    // One that nobody waits for is a record too.
    lease = f.Look(prompt);
    lease.Release();
    f.shelf->ReleaseHeld();
    EXPECT_EQ(sink->TakeOne().kind, TraceKind::kLookup);
  }
  f.shelf->holding_matches = false;
  f.shelf->match_status = UnavailableError("not now");
  { const Lease lease = f.Look(prompt); }
  const RequestTrace trace = sink->TakeOne();
  EXPECT_EQ(trace.planned_tokens, kTestChunk);
  EXPECT_EQ(trace.remote_tokens, 0u);
  EXPECT_NE(trace.why_not.find("not now"), std::string::npos) << trace.why_not;
}

TEST(TraceTest, AThrowingSinkIsCounted) {
  ManagerFixture f;
  const auto sink = std::make_shared<KeepingSink>();
  f.options.traces = sink;
  f.Open();
  const std::vector<Token> prompt = Seeded(2, 1);
  sink->throws = true;
  EXPECT_EQ(f.Store(prompt), 2u);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_TRUE(f.manager->Peek(f.root, prompt).ok());
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, prompt), 1u);
  const size_t records = sink->Take().size();
  EXPECT_GE(records, 4u);
  EXPECT_EQ(f.manager->metrics().Value("terrace_manager_callback_exceptions_total"),
            static_cast<int64_t>(records));
}

TEST(TraceFileTest, LinesParseAndHoldNothingOfTheUsers) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/traces";
  const std::vector<Token> prompt(2 * kTestChunk, 1'234'567'891);
  for (int round = 0; round < 2; ++round) {  // appended to, the second time
    ManagerFixture f;
    f.with_disk = false;
    Result<std::shared_ptr<TraceSink>> file = MakeJsonTraceFile(path);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    f.options.traces = *file;
    f.Open();
    const ChunkKey salted = *f.manager->Root(TestSpec(), {}, "the-salt-itself");
    StorePrompt(*f.manager, salted, prompt, {0, prompt.size()},
                [](TokenRange, ObjectPart) { return kTestPayload; });
    ASSERT_TRUE(f.manager->Flush().ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) f.manager->Lookup(salted, prompt).status().IgnoreError();
      });
    }
    for (std::thread& thread : threads) thread.join();
    f.manager->Peek(salted, prompt).status().IgnoreError();
    EXPECT_EQ(*f.manager->EraseSalt("the-salt-itself"), 2u);
  }
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const std::vector<std::string> lines = LinesOf(path);
  EXPECT_EQ(lines.size(), 2u * (1 + 150 + 1 + 1));
  std::map<std::string, int> kinds;
  for (const std::string& line : lines) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(record.is_discarded()) << line;
    ++kinds[record.at("kind")];
    if (record.at("kind") == "lookup") {
      EXPECT_EQ(record.at("tokens"), prompt.size());
      EXPECT_EQ(record.at("planned_tokens"), prompt.size());
      EXPECT_EQ(record.at("matched_by_tier"), nlohmann::json({prompt.size()}));
      EXPECT_TRUE(record.at("us").is_object());
    }
    EXPECT_EQ(line.find("1234567891"), std::string::npos);
    EXPECT_EQ(line.find("the-salt"), std::string::npos);
  }
  EXPECT_EQ(kinds["lookup"], 300);
  EXPECT_EQ(kinds["store"], 2);
  EXPECT_EQ(kinds["peek"], 2);
  EXPECT_EQ(kinds["erase"], 2);
}

TEST(TraceFileTest, TextThatIsNoUtf8IsStillALine) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/traces";
  const std::shared_ptr<TraceSink> file = *MakeJsonTraceFile(path);
  RequestTrace trace;
  trace.kind = TraceKind::kPrefetch;
  trace.why_not = "\xff\xfe\n\"quoted\"";
  trace.steps = {{"hash", 7}};
  trace.request_id = UINT64_MAX;
  file->Record(trace);
  const std::vector<std::string> lines = LinesOf(path);
  ASSERT_EQ(lines.size(), 1u);
  const nlohmann::json record = nlohmann::json::parse(lines[0], nullptr, false);
  ASSERT_FALSE(record.is_discarded());
  EXPECT_EQ(record.at("request_id"), UINT64_MAX);
  EXPECT_EQ(record.at("us").at("hash"), 7);
  EXPECT_EQ(record.at("kind"), "prefetch");
}

TEST(TraceFileTest, LinksAndUnwritablePathsAreRefused) {
  TemporaryFolder folder;
  const std::string target = folder.path + "/target";
  const std::string link = folder.path + "/link";
  std::ofstream(target) << "before";
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  EXPECT_EQ(MakeJsonTraceFile(link).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(MakeJsonTraceFile(folder.path).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(MakeJsonTraceFile(folder.path + "/none/traces").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(LinesOf(target), std::vector<std::string>{"before"});
}

}  // namespace
}  // namespace terrace
