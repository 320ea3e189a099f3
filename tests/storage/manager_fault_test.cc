// The manager over backends that fail: whatever happens below, an answer is right bytes or a miss, and every
// buffer and pin comes back.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "terrace/token_hasher.h"
#include "tests/support/fault_backend.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

FaultOptions Faults(uint64_t seed, double rate) {
  FaultOptions options;
  options.seed = seed;
  options.get = {.error = rate, .not_found = rate, .corrupt = rate};
  options.put = {.error = rate, .error_after = rate};
  options.erase = {.error = rate, .error_after = rate};
  return options;
}

// Random stores, loads, erases and clears over a few prompts that share prefixes. LoadAll checks every byte.
void RunRandomOperations(ManagerFixture& f, uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  const auto prompt = [&] {
    std::vector<Token> tokens = TestTokens(6 * kTestChunk, 1 + random() % 3);
    if (random() % 2) tokens[random() % tokens.size()] += 1 + random() % 2;
    tokens.resize(1 + random() % tokens.size());
    return tokens;
  };
  for (int step = 0; step < steps; ++step) {
    const std::vector<Token> tokens = prompt();
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        f.Store(tokens);
        // So that loads find it, however fast the executor is.
        if (random() % 4 > 0) f.manager->Flush(Clock::Real()->Now() + std::chrono::seconds(20)).IgnoreError();
        break;
      case 3:
      case 4:
      case 5:
        f.LoadAll(tokens);
        break;
      case 6: {
        TokenHasher hasher(f.root, kTestChunk);
        ASSERT_TRUE(hasher.Append(tokens).ok());
        if (!hasher.full_keys().empty()) f.manager->Erase(hasher.full_keys().last(1)).status().IgnoreError();
        break;
      }
      default:
        if (random() % 10 == 0) f.manager->Clear().IgnoreError();
        // A load that is abandoned on the way.
        if (Result<Lease> lease = f.manager->Lookup(f.root, tokens, {.request_id = 1 + random() % 4});
            lease.ok()) {
          LoadHandle handle = f.manager->Load(*lease, {0, lease->matched_tokens()});
          handle.Next().status().IgnoreError();
        }
    }
  }
}

TEST(ManagerFaultTest, AnswersAreRightOrAbsentAndEverythingComesBack) {
  uint64_t loaded = 0;
  uint64_t corrupt = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ManagerFixture f;
    f.options.pool_bytes = (2 + seed % 12) * 128 * 1024;
    f.disk_bytes = (4 + seed % 20) * (f.Frame() + kTierPageBytes);
    const double rate = 0.02 * static_cast<double>(seed % 4);
    f.wrap_disk = [&](std::unique_ptr<Backend> base) {
      return std::make_unique<FaultBackend>(std::move(base), Faults(seed, rate));
    };
    if (seed % 3 == 0) {
      f.wrap_host = [&](std::unique_ptr<Backend> base) {
        FaultOptions options;
        options.seed = seed;
        options.put = {.error = rate, .error_after = rate};
        options.borrow = {.not_found = rate};
        return std::make_unique<FaultBackend>(std::move(base), options);
      };
    }
    for (int life = 0; life < 3; ++life) {
      f.Open();
      RunRandomOperations(f, seed * 10 + life, 60);
      ASSERT_TRUE(f.manager->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(20)).code() !=
                  StatusCode::kDeadlineExceeded);
      const ManagerStats stats = f.manager->Stats();
      EXPECT_EQ(stats.active_leases, 0u);
      EXPECT_EQ(stats.pending_writes, 0u);
      EXPECT_LE(f.platters->max_used_bytes, f.disk_bytes);
      loaded += stats.tiers[0].hits + stats.tiers[1].hits;
      corrupt += stats.corrupt_objects;
      // Only published buffers are still charged.
      EXPECT_EQ(stats.pool_used_bytes, stats.tiers[0].used_bytes);
    }
  }
  EXPECT_GT(loaded, 1000u) << "the test must load, not only miss";
  EXPECT_GT(corrupt, 10u);
}

TEST(ManagerFaultTest, AFailedParentDropsItsChildrenFromTheTier) {
  ManagerFixture f;
  uint64_t failed = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    f.platters = std::make_shared<MemoryPlatters>();
    f.wrap_disk = [&](std::unique_ptr<Backend> base) {
      FaultOptions options;
      options.seed = seed;
      options.put = {.error = 0.3};
      return std::make_unique<FaultBackend>(std::move(base), options);
    };
    f.Open();
    f.Store(TestTokens(8 * kTestChunk));
    f.manager.reset();
    failed += 8 - f.platters->objects.size();
    for (const auto& [id, object] : f.platters->objects) {
      if (object.meta.first_token == 0) continue;
      EXPECT_TRUE(f.platters->objects.contains({object.meta.parent, id.part})) << "seed " << seed;
    }
  }
  EXPECT_GT(failed, 20u);
}

TEST(ManagerFaultTest, ThreadsSeeRightBytesAndEveryPinComesBack) {
  ManagerFixture f;
  f.options.pool_bytes = 20 * 128 * 1024;
  f.options.threads.num_threads = 2;
  f.disk_bytes = 30 * (f.Frame() + kTierPageBytes);
  f.wrap_disk = [&](std::unique_ptr<Backend> base) {
    FaultOptions options = Faults(99, 0.02);
    options.get.late = 0.2;
    options.put.late = 0.2;
    options.late_by = std::chrono::milliseconds(1);
    return std::make_unique<FaultBackend>(std::move(base), options);
  };
  f.Open();
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 4; ++id)
    threads.emplace_back([&f, id] { RunRandomOperations(f, 500 + id, 150); });
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(f.manager->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60)).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(f.manager->Stats().active_leases, 0u);
  EXPECT_EQ(f.manager->Stats().pending_writes, 0u);
  EXPECT_TRUE(f.manager->Close(std::chrono::steady_clock::now() + std::chrono::seconds(60)).ok());
}

}  // namespace
}  // namespace terrace
