// A backend behind injected faults: an answer is right, or an error, or (where bits are flipped) the right
// object with one bit wrong; never another object's bytes.
#include "tests/conformance/fault_test.h"

#include <bit>
#include <map>

#include "tests/conformance/conformance_run.h"
#include "tests/support/fault_backend.h"

namespace terrace {
namespace {

// Bits in which the first n bytes differ; stops counting at 2.
int DifferentBits(const BufferRef& a, const BufferRef& b, uint64_t n) {
  int bits = 0;
  for (uint64_t i = 0; i < n && bits < 2; ++i) {
    bits += std::popcount(std::to_integer<unsigned>(a.frame()[i] ^ b.frame()[i]));
  }
  return bits;
}

FaultOptions SomeFaults(uint64_t seed) {
  FaultOptions options;
  options.seed = seed;
  options.get = {.error = 0.08, .not_found = 0.05, .corrupt = 0.1, .late = 0.2};
  options.put = {.error = 0.1, .error_after = 0.1, .late = 0.1};
  options.erase = {.error = 0.1, .error_after = 0.1, .late = 0.1};
  options.clear = {.error_after = 1};
  options.flush = {.error = 1};
  options.scan = {.error = 0.5};
  options.late_by = std::chrono::milliseconds(1);
  return options;
}

struct Outcomes {
  int right = 0;
  int one_bit = 0;
  int detected = 0;
  int errors = 0;
  int misses = 0;
};

void GetBatch(ConformanceRun& run, std::span<const TestObject> objects, Outcomes& outcomes) {
  std::vector<GetOp> gets;
  std::vector<BufferRef> dsts;
  for (const TestObject& object : objects) {
    dsts.push_back(MakeTestBuffer(object.meta.frame_bytes));
    gets.push_back(GetOpOf(object, dsts.back()));
  }
  const std::vector<GetResult> results = run.Get(std::move(gets));
  for (size_t i = 0; i < objects.size(); ++i) {
    if (results[i].status.code() == StatusCode::kNotFound) {
      ++outcomes.misses;
      continue;
    }
    if (results[i].status.code() == StatusCode::kDataLoss) {
      ++outcomes.detected;  // a backend that looks at frame headers
      continue;
    }
    if (!results[i].status.ok()) {
      EXPECT_EQ(results[i].status.code(), StatusCode::kUnavailable) << results[i].status.ToString();
      ++outcomes.errors;
      continue;
    }
    ASSERT_EQ(results[i].frame_bytes, objects[i].meta.frame_bytes);
    const int bits = DifferentBits(dsts[i], objects[i].frame, objects[i].meta.frame_bytes);
    ASSERT_LE(bits, 1) << "bytes of another object at place " << i;
    ++(bits == 0 ? outcomes.right : outcomes.one_bit);
  }
}

void FaultsNeverMixObjects(ConformanceRun& run, const FaultBackend& faults) {
  std::vector<TestObject> objects;
  for (uint64_t i = 0; i < 16; ++i) objects.push_back(run.Object(i + 1, run.small_bytes() + i * 4096));
  Outcomes outcomes;
  int put_errors = 0;
  for (int round = 0; round < 30; ++round) {
    std::vector<PutOp> puts;
    for (const TestObject& object : objects) puts.push_back(PutOpOf(object));
    for (const Status& status : run.Put(std::move(puts))) {
      if (!status.ok() && status.code() != StatusCode::kAlreadyExists) {
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
        ++put_errors;
      }
    }
    GetBatch(run, objects, outcomes);
    std::vector<ObjectId> ids;
    for (size_t i = round % 3; i < objects.size(); i += 3) ids.push_back(objects[i].id);
    for (const Status& status : run.Erase(std::move(ids), EraseMode::kEvict)) {
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound ||
                  status.code() == StatusCode::kUnavailable);
    }
  }
  EXPECT_EQ(run.Flush().code(), StatusCode::kUnavailable);
  EXPECT_EQ(run.Clear().code(), StatusCode::kUnavailable);
  const FaultCounts counts = faults.counts();
  EXPECT_GT(outcomes.right, 100);
  EXPECT_EQ(outcomes.one_bit + outcomes.detected, static_cast<int>(counts.corrupt))
      << "each flip is seen, and nothing else";
  EXPECT_GT(counts.corrupt, 0u);
  EXPECT_GT(counts.errors, 0u);
  EXPECT_GT(counts.errors_after, 0u);
  EXPECT_GT(counts.late, 0u);
  EXPECT_GE(outcomes.misses, static_cast<int>(counts.not_found));
  EXPECT_GT(counts.not_found, 0u);
  EXPECT_GT(outcomes.errors, 0);
  EXPECT_GT(put_errors, 0);
  for (const TestObject& object : objects) ASSERT_TRUE(LetGo(object.frame));
}

}  // namespace

void RegisterBackendFaults(const std::string& name, FixtureFactory factory) {
  class Case : public ::testing::Test {
   public:
    explicit Case(const FixtureFactory& make_fixture) : make_fixture_(make_fixture) {}
    void TestBody() override {
      for (const uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        BackendFixture fixture = make_fixture_();
        FaultBackend* faults = nullptr;
        auto make = fixture.make;
        fixture.make = [&faults, make, seed](uint64_t capacity) -> Result<std::unique_ptr<Backend>> {
          Result<std::unique_ptr<Backend>> base = make(capacity);
          if (!base.ok()) return base.status();
          auto wrapper = std::make_unique<FaultBackend>(std::move(*base), SomeFaults(seed));
          faults = wrapper.get();
          return std::unique_ptr<Backend>(std::move(wrapper));
        };
        ConformanceRun run(std::move(fixture));
        ASSERT_TRUE(run.OpenRoomy());
        FaultsNeverMixObjects(run, *faults);
      }
    }

   private:
    const FixtureFactory make_fixture_;
  };
  ::testing::RegisterTest((name + "Faults").c_str(), "NeverMixObjects", nullptr, nullptr, __FILE__, __LINE__,
                          [factory]() -> ::testing::Test* { return new Case(factory); });
}

}  // namespace terrace
