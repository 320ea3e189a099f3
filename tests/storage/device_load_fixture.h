// For the tests of loads into devices: prompts of two tensor ranks on a MemoryDisk, a manager with a
// SimulatedDevice for each rank, pages in its memory, and loads whose every byte is told right from wrong -
// by the engine's work on its stream and by the host.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "terrace/token_hasher.h"
#include "tests/support/eventually.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/simulated_device.h"

namespace terrace {

inline constexpr uint16_t kRanks = 2;
inline constexpr uint32_t kDeviceLoadLayers = 3;
inline constexpr uint32_t kHeadsPerRank = 2;
inline constexpr uint32_t kPlanes = 2;

// Of seeds, where each costs many times as much.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kSeedShare = 6;
#else
inline constexpr uint64_t kSeedShare = 1;
#endif

inline TimePoint InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

// A prompt that is stored for both ranks, in payloads of words that follow from object and place.
struct StoredPrompt {
  KvSpec spec;
  std::vector<Token> tokens;
  std::vector<ObjectPart> parts;
  std::vector<ChunkKey> keys;
  std::map<ObjectId, std::vector<std::byte>> payloads;
  std::shared_ptr<MemoryPlatters> platters = std::make_shared<MemoryPlatters>();

  StoredPrompt(uint32_t chunk_tokens, uint32_t run_bytes, size_t num_tokens) {
    spec = TestSpec(Cut::kRanged);
    spec.payload_form = PayloadForm::kCanonical;
    spec.tokens_per_chunk = chunk_tokens;
    const uint32_t heads = kRanks * kHeadsPerRank;
    const auto plane = [&](PlaneKind kind) {
      return PlaneSpec{kind, DType::kU8, heads, run_bytes, heads * run_bytes};
    };
    spec.layers.assign(kDeviceLoadLayers, LayerSpec{0, {plane(PlaneKind::kK), plane(PlaneKind::kV)}});
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      spec.shards.push_back(
          {.tensor_rank = rank, .tensor_size = kRanks, .layer_begin = 0, .layer_end = kDeviceLoadLayers});
      parts.push_back({0, rank});
    }
    tokens = TestTokens(num_tokens);
    ManagerFixture f;
    f.platters = platters;
    f.options.pool_bytes = 96 << 20;
    f.Open(spec);
    Store(f);
    EXPECT_TRUE(f.manager->Flush().ok());
  }

  uint32_t run_bytes() const { return spec.layers[0].planes[0].head_dim; }
  uint64_t row_bytes() const { return uint64_t{kHeadsPerRank} * run_bytes(); }

  // The same prompt in another manager.
  void StoreAgain(StorageManager& manager, const ChunkKey& root) const {
    Result<PrepareResult> prepared = manager.Prepare(root, tokens, {0, tokens.size()}, Sizes(), parts);
    ASSERT_TRUE(prepared.ok() && prepared->status.ok());
    std::vector<WritableChunk> filled;
    for (PreparedChunk& chunk : prepared->chunks) {
      const std::vector<std::byte>& payload = payloads.at(chunk.id);
      std::copy(payload.begin(), payload.end(), chunk.writable->payload().begin());
      filled.push_back(*std::move(chunk.writable));
    }
    manager.Commit(std::move(filled));
  }

  // The bytes of a token's heads in one plane.
  const std::byte* Row(uint64_t token, uint16_t rank, uint32_t layer, uint32_t plane) const {
    const uint64_t chunk = token / spec.tokens_per_chunk;
    const std::vector<std::byte>& payload = payloads.at({keys[chunk], {0, rank}});
    const uint64_t chunk_tokens = payload.size() / (kDeviceLoadLayers * kPlanes * row_bytes());
    return payload.data() +
           ((layer * kPlanes + plane) * chunk_tokens + token % spec.tokens_per_chunk) * row_bytes();
  }

 private:
  PayloadSizes Sizes() const {
    return [this](TokenRange range, ObjectPart part) -> Result<uint64_t> {
      return spec.PayloadBytes(part, static_cast<uint32_t>(range.end - range.begin));
    };
  }
  void Store(ManagerFixture& f) {
    Result<PrepareResult> prepared = f.manager->Prepare(f.root, tokens, {0, tokens.size()}, Sizes(), parts);
    ASSERT_TRUE(prepared.ok() && prepared->status.ok());
    std::vector<WritableChunk> filled;
    for (PreparedChunk& chunk : prepared->chunks) {
      if (keys.empty() || keys.back() != chunk.id.key) keys.push_back(chunk.id.key);
      const MutableBytes payload = chunk.writable->payload();
      std::mt19937_64 words(payloads.size() + 1);
      for (uint64_t at = 0; at + 8 <= payload.size(); at += 8) {
        const uint64_t word = words();
        std::memcpy(payload.data() + at, &word, 8);
      }
      payloads[chunk.id].assign(payload.begin(), payload.end());
      filled.push_back(*std::move(chunk.writable));
    }
    f.manager->Commit(std::move(filled));
  }
};

// Pages of one rank in its device's memory: [block][layer][plane][head][slot][run], blocks in any order.
struct DevicePages {
  struct Shape {
    uint64_t first_token = 0;
    uint64_t num_tokens = 0;
    uint32_t tokens_per_block = 8;
    uint32_t missing_of_256 = 0;  // blocks that are not there
  };

  DevicePages(const StoredPrompt& p, uint16_t r, SimulatedDevice& device, const Shape& s, TokenRange range,
              std::mt19937_64& random)
      : prompt(p), rank(r), shape(s) {
    const size_t num_blocks = (s.num_tokens + s.tokens_per_block - 1) / s.tokens_per_block;
    for (size_t i = 0; i < num_blocks; ++i) table.push_back(static_cast<int64_t>(i));
    std::shuffle(table.begin(), table.end(), random);
    for (int64_t& block : table) {
      if (random() % 256 < s.missing_of_256) block = -1;
    }
    head_bytes = uint64_t{s.tokens_per_block} * p.run_bytes();
    layer_bytes = kPlanes * kHeadsPerRank * head_bytes;
    block_bytes = kDeviceLoadLayers * layer_bytes;
    memory = *device.Allocate(std::max<uint64_t>(num_blocks, 1) * block_bytes);
    old.resize(num_blocks * block_bytes);
    for (uint64_t at = 0; at < old.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(old.data() + at, &word, 8);
    }
    std::copy(old.begin(), old.end(), memory.get());
    expected = old;
    Fill(expected, range, kDeviceLoadLayers);
    // Bytes of the load are the same over any pages.
    complement = old;
    for (std::byte& b : complement) b = ~b;
    Fill(complement, range, kDeviceLoadLayers);
    for (uint32_t plane = 0; plane < kPlanes; ++plane) {
      planes.push_back({.layer_bases = {},
                        .base = memory.get() + plane * kHeadsPerRank * head_bytes,
                        .layer_stride = static_cast<int64_t>(layer_bytes),
                        .block_stride = static_cast<int64_t>(block_bytes),
                        .token_stride = p.run_bytes(),
                        .head_stride = static_cast<int64_t>(head_bytes),
                        .num_heads = kHeadsPerRank,
                        .run_bytes = p.run_bytes()});
    }
  }

  PagedKvView view(std::shared_ptr<Stream> stream) const {
    return {.part = {0, rank},
            .planes = planes,
            .block_table = table,
            .tokens_per_block = shape.tokens_per_block,
            .first_token = shape.first_token,
            .num_tokens = shape.num_tokens,
            .stream = std::move(stream)};
  }

  Bytes bytes() const { return {memory.get(), old.size()}; }
  bool IsOld() const { return std::equal(old.begin(), old.end(), memory.get()); }
  bool IsRight() const { return std::equal(expected.begin(), expected.end(), memory.get()); }
  bool IsLayerRight(uint32_t layer) const {
    for (uint64_t at = layer * layer_bytes; at < old.size(); at += block_bytes) {
      if (std::memcmp(memory.get() + at, expected.data() + at, layer_bytes) != 0) return false;
    }
    return true;
  }
  // What a report says is valid: tokens of `range` before its recompute_from, and whole layers. Bytes that
  // the load has nothing to do with are old, the others old or right, or anything after a device's error.
  bool IsValid(const LoadReport& report, TokenRange range, bool may_be_garbage) const {
    std::vector<std::byte> valid(memory.get(), memory.get() + old.size());
    Fill(valid, {range.begin, report.recompute_from}, kDeviceLoadLayers);
    Fill(valid, range, report.loaded_layers);
    if (!std::equal(valid.begin(), valid.end(), memory.get())) return false;
    for (size_t i = 0; i < old.size(); ++i) {
      const std::byte is = memory.get()[i];
      const bool is_of_load = complement[i] == expected[i];
      if (is != old[i] && !(is_of_load && (may_be_garbage || is == expected[i]))) return false;
    }
    return true;
  }

  const StoredPrompt& prompt;
  const uint16_t rank;
  const Shape shape;
  uint64_t head_bytes = 0, layer_bytes = 0, block_bytes = 0;
  std::shared_ptr<std::byte> memory;
  std::vector<std::byte> old, expected, complement;
  std::vector<int64_t> table;
  std::vector<PlaneView> planes;

 private:
  // The plain formula of PagedKvView, for tokens of `range` and layers [0, num_layers).
  void Fill(std::vector<std::byte>& pages, TokenRange range, uint32_t num_layers) const {
    const uint64_t end = std::min(range.end, shape.first_token + shape.num_tokens);
    for (uint64_t token = std::max(range.begin, shape.first_token); token < end; ++token) {
      const uint64_t i = token - shape.first_token;
      const int64_t block = table[i / shape.tokens_per_block];
      if (block < 0) continue;
      for (uint32_t n = 0; n < num_layers * kPlanes * kHeadsPerRank; ++n) {
        const uint32_t layer = n / (kPlanes * kHeadsPerRank), plane = n / kHeadsPerRank % kPlanes;
        const uint32_t head = n % kHeadsPerRank;
        std::memcpy(pages.data() + static_cast<uint64_t>(block) * block_bytes + n * head_bytes +
                        i % shape.tokens_per_block * prompt.run_bytes(),
                    prompt.Row(token, rank, layer, plane) + head * prompt.run_bytes(), prompt.run_bytes());
      }
    }
  }
};

struct DeviceWorldOptions {
  SimulatedDeviceOptions device;
  std::optional<CopyStrategy> strategy = CopyStrategy::kBatched;
  uint64_t pool_bytes = uint64_t{32} << 20;
  uint64_t window_bytes = 0;
  bool with_host = true;
  std::shared_ptr<Executor> executor;
};

// A manager over the prompt's disk, with a device and an engine's stream for each rank.
struct DeviceWorld : ManagerFixture {
  const StoredPrompt& prompt;
  std::vector<std::shared_ptr<SimulatedDevice>> devices;
  std::vector<std::shared_ptr<Stream>> streams;

  DeviceWorld(const StoredPrompt& p, const DeviceWorldOptions& o) : prompt(p) {
    platters = p.platters;
    {
      std::lock_guard lock(platters->mutex);
      platters->gets = platters->get_bytes = 0;
    }
    with_host = o.with_host;
    options.pool_bytes = o.pool_bytes;
    options.load_window_bytes = o.window_bytes;
    options.executor = o.executor;
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      SimulatedDeviceOptions device = o.device;
      device.seed = o.device.seed * kRanks + rank;
      device.ordinal = rank;
      devices.push_back(SimulatedDevice::Make(device));
      streams.push_back(devices.back()->EngineStream());
      const bool is_staged = o.strategy == CopyStrategy::kStaged;
      options.devices.push_back({.device = devices.back(),
                                 .staging_bytes = is_staged ? uint64_t{64} << 10 : 0,
                                 .to_host = o.strategy,
                                 .to_device = o.strategy});
    }
    Open(p.spec);
  }
  ~DeviceWorld() {
    Synchronize();  // where an edge is taken away copies may outlive their loads
    manager.reset();
  }

  void Synchronize() {
    for (const auto& device : devices) device->Synchronize();
  }
  Lease Look() { return *manager->Lookup(root, prompt.tokens, {.parts = prompt.parts}); }
  // No buffer is anyone's but the host tier's.
  bool BuffersAreBack() {
    return Eventually([this] {
      const ManagerStats stats = manager->Stats();
      return stats.pool_used_bytes == (with_host ? stats.tiers[0].used_bytes : 0) && stats.active_leases == 0;
    });
  }
};

// One load into the pages of both ranks.
struct DeviceLoad {
  DeviceWorld& world;
  const TokenRange range;
  const LoadOrder order;
  std::vector<std::unique_ptr<DevicePages>> pages;
  std::vector<PagedKvView> views;
  std::atomic<uint64_t> old_seen_wrong{0};    // by the engine's work before the load
  std::atomic<uint64_t> layer_seen_wrong{0};  // by its work after a wait, and by the host after one
  std::atomic<uint64_t> num_seen{0};
  LoadHandle handle;

  DeviceLoad(DeviceWorld& w, TokenRange r, LoadOrder o, const DevicePages::Shape& shape,
             std::mt19937_64& random)
      : world(w), range(r), order(o) {
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      pages.push_back(std::make_unique<DevicePages>(w.prompt, rank, *w.devices[rank], shape, range, random));
      views.push_back(pages.back()->view(w.streams[rank]));
    }
  }
  ~DeviceLoad() {
    handle = LoadHandle();
    world.Synchronize();
  }

  // The engine's last use of the blocks is enqueued, and the load is made.
  void Start() {
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      if (views[rank].stream != world.streams[rank]) continue;  // memory of the host: ready now
      world.devices[rank]->Enqueue(*world.streams[rank], [this, rank] {
        old_seen_wrong += pages[rank]->IsOld() ? 0 : 1;
        ++num_seen;
      });
    }
    const Lease lease = world.Look();
    EXPECT_EQ(lease.matched_tokens(), world.prompt.tokens.size());
    handle = world.manager->Load(lease, range, {.memory = {}, .views = views}, order);
  }
  // Makes the streams wait for the layer, and uses it there.
  Status UseLayerOnStreams(uint32_t layer) {
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      if (Status status = handle.WaitLayerOn(layer, *world.streams[rank], InAMinute()); !status.ok())
        return status;
      EnqueueUse(rank, layer);
    }
    return OkStatus();
  }
  Status UseAllOnStreams() {
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      if (Status status = handle.WaitOn(*world.streams[rank], InAMinute()); !status.ok()) return status;
      for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer) EnqueueUse(rank, layer);
    }
    return OkStatus();
  }
  void UseLayer(uint32_t layer) {
    for (const auto& p : pages) layer_seen_wrong += p->IsLayerRight(layer) ? 0 : 1;
  }
  bool IsRight() const {
    return std::all_of(pages.begin(), pages.end(), [](const auto& p) { return p->IsRight(); });
  }
  bool IsOld() const {
    return std::all_of(pages.begin(), pages.end(), [](const auto& p) { return p->IsOld(); });
  }
  bool IsValid(const LoadReport& report, bool may_be_garbage = false) const {
    return std::all_of(pages.begin(), pages.end(),
                       [&](const auto& p) { return p->IsValid(report, range, may_be_garbage); });
  }

 private:
  void EnqueueUse(uint16_t rank, uint32_t layer) {
    world.devices[rank]->Enqueue(*world.streams[rank], [this, rank, layer] {
      layer_seen_wrong += pages[rank]->IsLayerRight(layer) ? 0 : 1;
      ++num_seen;
    });
  }
};

// Both prompts are stored once: many small chunks, and chunks of a MiB per layer, which layer-major loads
// read layer by layer.
class DeviceLoadTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    small_ = std::make_unique<StoredPrompt>(16, 16, 12 * 16 + 5);
    wide_ = std::make_unique<StoredPrompt>(1024, 256, 2 * 1024 + 100);
  }
  static void TearDownTestSuite() {
    small_.reset();
    wide_.reset();
  }
  static inline std::unique_ptr<StoredPrompt> small_;
  static inline std::unique_ptr<StoredPrompt> wide_;
};

}  // namespace terrace
