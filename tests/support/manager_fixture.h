// A manager over a host tier and a MemoryDisk, with payloads that are a function of their key: whatever is
// loaded can be told right from wrong.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "terrace/host_backend.h"
#include "terrace/storage_manager.h"
#include "tests/support/memory_disk.h"

namespace terrace {

class FakeClock final : public Clock {
 public:
  TimePoint Now() override { return TimePoint(std::chrono::nanoseconds(now_ns_.load())); }
  WallTime WallNow() override { return WallTime(std::chrono::seconds(1)); }
  void Advance(Duration by) { now_ns_ += by.count(); }

 private:
  // Near the real clock: what waits for real time with these deadlines must not end at once.
  std::atomic<int64_t> now_ns_{std::chrono::steady_clock::now().time_since_epoch().count()};
};

inline constexpr uint32_t kTestChunk = 16;
inline constexpr uint64_t kTestPayload = 100'000;

inline KvSpec TestSpec(Cut cut = Cut::kWhole, std::vector<GroupSpec> groups = {GroupSpec{}}) {
  KvSpec spec;
  spec.model_id = "test";
  spec.tokens_per_chunk = kTestChunk;
  spec.cut = cut;
  spec.groups = std::move(groups);
  return spec;
}

inline std::vector<Token> TestTokens(size_t n, Token seed = 1) {
  std::vector<Token> tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<Token>(seed * 1'000'003 + i * 7);
  return tokens;
}

// The payload of an object: blocks of 4 KiB that follow from its id, the first eight bytes of each its
// number. Copied and compared by block, since sanitizers make every single access dear.
class ExpectedPayload {
 public:
  explicit ExpectedPayload(const ObjectId& id) {
    for (size_t i = 0; i < block_.size(); ++i) {
      const auto key_byte = static_cast<uint8_t>(id.key.bytes[i % 32]);
      block_[i] = static_cast<std::byte>(key_byte + i / 32 * 13 + id.part.group * 5 + id.part.shard);
    }
  }

  void Fill(MutableBytes payload) {
    ForEachBlock(payload.size(),
                 [&](size_t at, size_t n) { std::memcpy(payload.data() + at, block_.data(), n); });
  }

  bool Equals(Bytes payload) {
    bool equal = !payload.empty();
    ForEachBlock(payload.size(), [&](size_t at, size_t n) {
      equal &= std::memcmp(payload.data() + at, block_.data(), n) == 0;
    });
    return equal;
  }

 private:
  template <typename Visit>
  void ForEachBlock(size_t size, const Visit& visit) {
    for (uint64_t at = 0; at < size; at += block_.size()) {
      const uint64_t number = at / block_.size();
      std::memcpy(block_.data(), &number, sizeof(number));
      visit(at, std::min<size_t>(block_.size(), size - at));
    }
  }

  std::array<std::byte, 4096> block_;
};

inline void FillPayload(WritableChunk& chunk) { ExpectedPayload(chunk.id()).Fill(chunk.payload()); }

inline bool PayloadIsRight(const LeasedChunk& chunk) {
  return ExpectedPayload(chunk.id()).Equals(chunk.payload());
}

// Prepares, fills and commits tokens `range` of the prompt; the number of objects that were new.
inline size_t StorePrompt(StorageManager& manager, const ChunkKey& root, const TokenView& prompt,
                          TokenRange range, const PayloadSizes& sizes, std::span<const ObjectPart> parts = {},
                          Status* status = nullptr) {
  Result<PrepareResult> prepared = manager.Prepare(root, prompt, range, sizes, parts);
  if (status != nullptr) *status = prepared.ok() ? prepared->status : prepared.status();
  if (!prepared.ok()) return 0;
  std::vector<WritableChunk> filled;
  for (PreparedChunk& chunk : prepared->chunks) {
    if (!chunk.writable) continue;
    FillPayload(*chunk.writable);
    filled.push_back(*std::move(chunk.writable));
  }
  const size_t n = filled.size();
  manager.Commit(std::move(filled));
  return n;
}

// Loads the whole match and checks every byte; the tokens that were loaded.
inline uint64_t LoadPrompt(StorageManager& manager, const ChunkKey& root, const TokenView& prompt,
                           std::vector<ObjectPart> parts = {}, LoadReport* report = nullptr) {
  Result<Lease> lease = manager.Lookup(root, prompt, {.parts = std::move(parts)});
  EXPECT_TRUE(lease.ok()) << lease.status().ToString();
  if (!lease.ok()) return 0;
  LoadHandle handle = manager.Load(*lease, {0, lease->matched_tokens()});
  while (true) {
    Result<std::optional<LeasedChunk>> chunk = handle.Next();
    EXPECT_TRUE(chunk.ok());
    if (!chunk.ok() || !chunk->has_value()) break;
    EXPECT_TRUE(PayloadIsRight(**chunk));
  }
  if (report != nullptr) *report = handle.report();
  return handle.report().loaded_tokens;
}

struct ManagerFixture {
  std::shared_ptr<MemoryPlatters> platters = std::make_shared<MemoryPlatters>();
  FakeClock clock;
  StorageOptions options;
  uint64_t disk_bytes = uint64_t{1} << 30;
  bool with_host = true;
  bool with_disk = true;
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_disk;
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_host;
  std::unique_ptr<StorageManager> manager;
  ChunkKey root;

  ManagerFixture() {
    options.pool_bytes = 8 << 20;
    options.huge_pages = false;
    options.clock = &clock;
    options.log = MakeNullLogSink();
  }

  void Open(const KvSpec& spec = TestSpec()) {
    manager.reset();
    std::vector<Tier> tiers;
    if (with_host) {
      std::unique_ptr<Backend> host = *MakeHostBackend({.capacity_bytes = options.pool_bytes});
      tiers.push_back({.backend = wrap_host ? wrap_host(std::move(host)) : std::move(host)});
    }
    if (with_disk) {
      std::unique_ptr<Backend> disk = MakeMemoryDisk(platters, disk_bytes);
      tiers.push_back({.backend = wrap_disk ? wrap_disk(std::move(disk)) : std::move(disk)});
    }
    Result<std::unique_ptr<StorageManager>> opened = StorageManager::Open(options, std::move(tiers));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    manager = *std::move(opened);
    root = *manager->Root(spec);
  }

  // Stores tokens [begin, prompt's end); the number of objects that were new.
  size_t Store(const TokenView& prompt, uint64_t begin = 0, std::vector<ObjectPart> parts = {},
               Status* status = nullptr) {
    return StorePrompt(
        *manager, root, prompt, {begin, prompt.tokens.size()},
        [](TokenRange, ObjectPart) { return kTestPayload; }, parts, status);
  }

  uint64_t Match(const TokenView& prompt, uint64_t max_tokens = UINT64_MAX) {
    Result<Lease> lease = manager->Lookup(root, prompt, {.max_tokens = max_tokens});
    EXPECT_TRUE(lease.ok()) << lease.status().ToString();
    return lease.ok() ? lease->matched_tokens() : 0;
  }

  // Loads the whole match and checks every byte; the tokens that were loaded.
  uint64_t LoadAll(const TokenView& prompt, std::vector<ObjectPart> parts = {},
                   LoadReport* report = nullptr) {
    return LoadPrompt(*manager, root, prompt, std::move(parts), report);
  }

  uint64_t Frame() const { return 4096 + (kTestPayload + 4095) / 4096 * 4096; }
};

}  // namespace terrace
