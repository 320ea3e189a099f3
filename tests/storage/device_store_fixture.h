// For the tests of stores out of devices: a manager with one or two SimulatedDevices, an engine that computes
// into blocks on its streams, and loads of what was stored, whose every byte is told right from wrong.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/simulated_device.h"
#include "tests/support/step_executor.h"

namespace terrace {

inline constexpr uint32_t kStoreHeads = 2;  // of a rank
inline constexpr uint32_t kStoreRun = 16;
inline constexpr uint32_t kStorePlanes = 2;
inline constexpr uint32_t kStoreLayers = 3;
inline constexpr uint64_t kStoreRow = uint64_t{kStoreHeads} * kStoreRun;
inline constexpr CopyStrategy kStoreStrategies[] = {CopyStrategy::kPlain, CopyStrategy::kBatched,
                                                    CopyStrategy::kStaged, CopyStrategy::kMapped};

inline TimePoint StoreDeadline() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

// All layers in one group, heads in `ranks` shards.
inline KvSpec DeviceStoreSpec(uint16_t ranks) {
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  const uint32_t heads = ranks * kStoreHeads;
  const auto plane = [&](PlaneKind kind) {
    return PlaneSpec{kind, DType::kU8, heads, kStoreRun, heads * kStoreRun};
  };
  spec.layers.assign(kStoreLayers, LayerSpec{0, {plane(PlaneKind::kK), plane(PlaneKind::kV)}});
  for (uint16_t rank = 0; ranks > 1 && rank < ranks; ++rank) {
    spec.shards.push_back(
        {.tensor_rank = rank, .tensor_size = ranks, .layer_begin = 0, .layer_end = kStoreLayers});
  }
  return spec;
}

// What an engine computes: the row (a token's heads in one plane of one layer) of one rank, for one prompt.
inline std::array<std::byte, kStoreRow> ComputedRow(uint64_t prompt, uint16_t rank, uint64_t token,
                                                    uint64_t n) {
  std::array<std::byte, kStoreRow> row;
  uint64_t x =
      prompt * 0x9e3779b97f4a7c15u + rank * 0x51ed270b + token * 0xd6e8feb86659fd93u + n * 0x2545f491u + 1;
  for (uint64_t at = 0; at < row.size(); at += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(row.data() + at, &x, 8);
  }
  return row;
}

// Payload of tokens [range) of one rank.
inline std::vector<std::byte> ComputedPayload(uint64_t prompt, uint16_t rank, TokenRange range) {
  std::vector<std::byte> payload;
  for (uint64_t n = 0; n < kStoreLayers * kStorePlanes; ++n) {
    for (uint64_t token = range.begin; token < range.end; ++token) {
      const auto row = ComputedRow(prompt, rank, token, n);
      payload.insert(payload.end(), row.begin(), row.end());
    }
  }
  return payload;
}

// Pages of one rank: [block][layer][plane][slot][head][run], blocks in any order, in memory of a device (or
// the host's).
struct ComputedPages {
  ComputedPages(uint64_t p, uint16_t r, SimulatedDevice* device, TokenRange t, uint32_t block_tokens,
                std::mt19937_64& random)
      : prompt(p), rank(r), tokens(t), tokens_per_block(block_tokens) {
    const uint64_t num_tokens = t.end - t.begin;
    const size_t num_blocks = std::max<size_t>(1, (num_tokens + block_tokens - 1) / block_tokens);
    for (size_t i = 0; i < num_blocks; ++i) table.push_back(static_cast<int64_t>(i));
    std::shuffle(table.begin(), table.end(), random);
    plane_bytes = block_tokens * kStoreRow;
    block_bytes = kStoreLayers * kStorePlanes * plane_bytes;
    bytes = num_blocks * block_bytes;
    memory = device != nullptr
                 ? *device->Allocate(bytes)
                 : std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
    Overwrite(std::byte{0x11});
    for (uint32_t plane = 0; plane < kStorePlanes; ++plane) {
      planes.push_back({.layer_bases = {},
                        .base = memory.get() + plane * plane_bytes,
                        .layer_stride = static_cast<int64_t>(kStorePlanes * plane_bytes),
                        .block_stride = static_cast<int64_t>(block_bytes),
                        .token_stride = kStoreRow,
                        .head_stride = kStoreRun,
                        .num_heads = kStoreHeads,
                        .run_bytes = kStoreRun});
    }
  }

  // Work of the engine.
  void Compute() const {
    for (uint64_t token = tokens.begin; token < tokens.end; ++token) {
      const uint64_t slot = token - tokens.begin;
      std::byte* const block =
          memory.get() + static_cast<uint64_t>(table[slot / tokens_per_block]) * block_bytes;
      for (uint64_t n = 0; n < kStoreLayers * kStorePlanes; ++n) {
        const auto row = ComputedRow(prompt, rank, token, n);
        std::memcpy(block + n * plane_bytes + slot % tokens_per_block * kStoreRow, row.data(), row.size());
      }
    }
  }
  void Overwrite(std::byte value) const { std::memset(memory.get(), static_cast<int>(value), bytes); }

  PagedKvView view(std::shared_ptr<Stream> stream) const {
    return {.part = {0, rank},
            .planes = planes,
            .block_table = table,
            .tokens_per_block = tokens_per_block,
            .first_token = tokens.begin,
            .num_tokens = tokens.end - tokens.begin,
            .stream = std::move(stream)};
  }

  const uint64_t prompt;
  const uint16_t rank;
  const TokenRange tokens;
  const uint32_t tokens_per_block;
  uint64_t plane_bytes = 0, block_bytes = 0, bytes = 0;
  std::shared_ptr<std::byte> memory;
  std::vector<int64_t> table;
  std::vector<PlaneView> planes;
};

struct StoreWorldOptions {
  SimulatedDeviceOptions device;
  std::optional<CopyStrategy> strategy = CopyStrategy::kBatched;
  uint16_t ranks = 1;         // each with a device
  bool last_is_host = false;  // but the last one, which computes on the CPU
  uint64_t pool_bytes = uint64_t{4} << 20;
  bool with_disk = false;
  std::shared_ptr<StepExecutor> steps;  // null: threads of the manager's
};

struct StoreWorld : ManagerFixture {
  const StoreWorldOptions set;
  const KvSpec spec;
  std::vector<std::shared_ptr<SimulatedDevice>> devices;  // by rank; null for the host
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<ObjectPart> parts;

  explicit StoreWorld(const StoreWorldOptions& o) : set(o), spec(DeviceStoreSpec(o.ranks)) {
    with_disk = o.with_disk;
    options.pool_bytes = o.pool_bytes;
    options.executor = o.steps;
    options.clock = nullptr;
    for (uint16_t rank = 0; rank < o.ranks; ++rank) {
      parts.push_back({0, rank});
      devices.emplace_back();
      streams.emplace_back();
      if (o.last_is_host && rank + 1 == o.ranks) break;
      SimulatedDeviceOptions device = o.device;
      device.seed = o.device.seed * 2 + rank;
      device.ordinal = rank;
      devices.back() = SimulatedDevice::Make(device);
      streams.back() = devices.back()->EngineStream();
      const bool is_staged = o.strategy == CopyStrategy::kStaged;
      options.devices.push_back({.device = devices.back(),
                                 .staging_bytes = is_staged ? uint64_t{64} << 10 : 0,
                                 .to_host = o.strategy,
                                 .to_device = o.strategy});
    }
    Open(spec);
    if (set.steps) set.steps->RunAll();
  }
  ~StoreWorld() {
    Synchronize();  // where an edge is taken away copies may outlive their stores
    manager.reset();
  }

  void Synchronize() {
    for (const auto& device : devices) {
      if (device) device->Synchronize();
    }
  }
  // With a StepExecutor: until the condition holds, running what is posted meanwhile.
  template <typename Condition>
  bool StepUntil(const Condition& condition) {
    return Eventually([&] {
      if (set.steps) set.steps->RunAll();
      return condition();
    });
  }
  bool Flush() {
    if (!set.steps) return manager->Flush(StoreDeadline()).ok();
    return StepUntil([&] { return manager->Flush(std::chrono::steady_clock::now()).ok(); });
  }
  // The tokens of the prompt's match; every object of it whose bytes are not those computed is counted.
  uint64_t LoadAndCompare(const TokenView& tokens, uint64_t prompt, uint64_t& wrong) {
    Result<Lease> lease = manager->Lookup(root, tokens, {.parts = parts});
    EXPECT_TRUE(lease.ok());
    LoadHandle load = manager->Load(*lease, {0, lease->matched_tokens()});
    while (true) {
      Result<std::optional<LeasedChunk>> chunk = load.Next(set.steps ? TimePoint{} : StoreDeadline());
      if (set.steps && !chunk.ok() && chunk.status().code() == StatusCode::kDeadlineExceeded) {
        set.steps->RunAll();
        continue;
      }
      EXPECT_TRUE(chunk.ok()) << chunk.status().ToString();
      if (!chunk.ok() || !chunk->has_value()) break;
      const std::vector<std::byte> expected =
          ComputedPayload(prompt, (*chunk)->id().part.shard, (*chunk)->payload_tokens());
      const Bytes payload = (*chunk)->payload();
      const bool is_right = payload.size() == expected.size() &&
                            std::memcmp(payload.data(), expected.data(), expected.size()) == 0;
      wrong += is_right ? 0 : 1;
    }
    return load.report().loaded_tokens;
  }
  // No buffer is anyone's but the host tier's.
  bool BuffersAreBack() {
    return StepUntil([this] {
      const ManagerStats stats = manager->Stats();
      return stats.pool_used_bytes == stats.tiers[0].used_bytes && stats.active_leases == 0;
    });
  }
  // And after a clear not even that.
  bool IsEmptyAfterClear() {
    if (!BuffersAreBack()) return false;
    const bool is_clear = manager->Clear().ok();
    return is_clear && StepUntil([this] {
             return manager->Stats().pool_used_bytes == 0 && manager->Stats().index_entries == 0;
           });
  }
};

// One prompt of an engine, in blocks of its own: computing, storing, and using the blocks again.
struct EngineRequest {
  StoreWorld& world;
  const uint64_t prompt;
  const std::vector<Token> tokens;
  std::vector<std::unique_ptr<ComputedPages>> pages;
  StoreHandle handle;

  EngineRequest(StoreWorld& w, uint64_t p, size_t num_tokens, std::mt19937_64& random)
      : world(w), prompt(p), tokens(TestTokens(num_tokens, static_cast<Token>(p))) {
    const uint32_t block_tokens = std::array{1u, 8u, 16u, 24u}[random() % 4];
    for (uint16_t rank = 0; rank < w.set.ranks; ++rank) {
      pages.push_back(std::make_unique<ComputedPages>(p, rank, w.devices[rank].get(),
                                                      TokenRange{0, num_tokens}, block_tokens, random));
    }
  }
  ~EngineRequest() { world.Synchronize(); }

  void Compute() {
    for (size_t rank = 0; rank < pages.size(); ++rank) {
      if (world.devices[rank]) {
        world.devices[rank]->Enqueue(*world.streams[rank], [p = pages[rank].get()] { p->Compute(); });
      } else {
        pages[rank]->Compute();
      }
    }
  }
  Status Store(const StoreOptions& more = {}) {
    std::vector<PagedKvView> views;
    for (size_t rank = 0; rank < pages.size(); ++rank)
      views.push_back(pages[rank]->view(world.streams[rank]));
    Result<StoreHandle> stored = world.manager->Store(world.root, tokens, {0, tokens.size()}, views, more);
    if (!stored.ok()) return stored.status();
    handle = *std::move(stored);
    return OkStatus();
  }
  // The engine computes something else there, once the stream has come so far.
  Status ReuseOnStreams() {
    for (size_t rank = 0; rank < pages.size(); ++rank) {
      if (!world.devices[rank]) continue;
      if (Status status = handle.ReleaseTo(*world.streams[rank], StoreDeadline()); !status.ok())
        return status;
    }
    Reuse();
    return OkStatus();
  }
  // The same with no wait.
  void Reuse() {
    for (size_t rank = 0; rank < pages.size(); ++rank) {
      const auto overwrite = [p = pages[rank].get()] { p->Overwrite(std::byte{0xbd}); };
      if (world.devices[rank]) {
        world.devices[rank]->Enqueue(*world.streams[rank], overwrite);
      } else {
        overwrite();
      }
    }
  }
};

}  // namespace terrace
