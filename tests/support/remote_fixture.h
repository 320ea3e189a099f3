// A manager over a host tier and a MatchBackend.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/manager_fixture.h"
#include "tests/support/match_backend.h"
#include "tests/support/step_executor.h"

namespace terrace {

struct RemoteFixture {
  FakeClock clock;
  StorageOptions options;
  std::shared_ptr<MatchShelf> shelf = std::make_shared<MatchShelf>();
  std::shared_ptr<StepExecutor> steps;  // set by UseSteps
  bool with_host = true;
  KvSpec spec = TestSpec();
  std::unique_ptr<StorageManager> manager;
  ChunkKey root;

  RemoteFixture() {
    options.pool_bytes = 8 << 20;
    options.huge_pages = false;
    options.clock = &clock;
    options.log = MakeNullLogSink();
  }

  // Anew: what lay in the host tier is gone.
  void Open() {
    manager.reset();
    std::vector<Tier> tiers;
    if (with_host) tiers.push_back({.backend = *MakeHostBackend({.capacity_bytes = options.pool_bytes})});
    tiers.push_back({.backend = MakeMatchBackend(shelf)});
    Result<std::unique_ptr<StorageManager>> opened = StorageManager::Open(options, std::move(tiers));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    manager = *std::move(opened);
    root = *manager->Root(spec);
    if (steps) steps->RunAll();
  }
  // Callbacks of the managers opened from now on run when the test says so.
  void UseSteps() { options.executor = steps = std::make_shared<StepExecutor>(); }

  void StoreNow(const TokenView& prompt) {
    StorePrompt(*manager, root, prompt, {0, prompt.tokens.size()}, Sizes());
    if (steps) steps->RunAll();
    ASSERT_TRUE(manager->Flush().ok());
  }
  // Puts the prompt into the remote store and leaves a manager that knows nothing of it.
  void Seed(const TokenView& prompt) {
    Open();
    StoreNow(prompt);
    Open();
  }
  PayloadSizes Sizes() const {
    return [spec = spec](TokenRange tokens, ObjectPart part) -> Result<uint64_t> {
      const uint64_t canonical = spec.PayloadBytes(part, static_cast<uint32_t>(tokens.end - tokens.begin));
      return canonical != 0 ? canonical : kTestPayload;
    };
  }
  Lease Look(const TokenView& prompt, const LookupOptions& more = {}) {
    Result<Lease> lease = manager->Lookup(root, prompt, more);
    EXPECT_TRUE(lease.ok()) << lease.status().ToString();
    return lease.ok() ? *std::move(lease) : Lease();
  }
  uint64_t LocalTokens(const TokenView& prompt) { return manager->Peek(root, prompt)->matched_tokens; }
  uint64_t HostTokens(const TokenView& prompt) { return manager->Peek(root, prompt)->host_tokens; }

  // Loads the whole match and checks every byte.
  LoadReport Load(const Lease& lease) {
    LoadHandle handle = manager->Load(lease, {0, lease.matched_tokens()});
    while (true) {
      Result<std::optional<LeasedChunk>> chunk = handle.Next();
      EXPECT_TRUE(chunk.ok());
      if (!chunk.ok() || !chunk->has_value()) return handle.report();
      EXPECT_TRUE(PayloadIsRight(**chunk)) << "chunk " << (*chunk)->chunk_index();
    }
  }
};

}  // namespace terrace
