// Copies of random layouts on a simulated device, beside what they have to bring about: worked out by the
// layouts' hand-written formulas, not by the code under test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "lib/codec/paged_copy.h"
#include "lib/device/device_copier.h"
#include "tests/core/paged_layouts.h"
#include "tests/support/simulated_device.h"

namespace terrace {

inline constexpr CopyStrategy kAllStrategies[] = {CopyStrategy::kPlain, CopyStrategy::kBatched,
                                                  CopyStrategy::kStaged, CopyStrategy::kMapped};

inline TimePoint Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

// Whole pages, as registration wants them; not touched yet.
class PoolMemory {
 public:
  explicit PoolMemory(size_t bytes)
      : bytes_(bytes), memory_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)), &std::free) {}
  MutableBytes bytes() const { return {memory_.get(), bytes_}; }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
};

struct RigOptions {
  SimulatedDeviceOptions device;
  std::optional<CopyStrategy> strategy;  // of both directions
  uint64_t staging_bytes = 64 << 10;
  size_t pool_bytes = size_t{2} << 20;
};

// One device, a pool and the copier between them, and an engine's stream.
struct Rig {
  explicit Rig(const RigOptions& options)
      : pool(options.pool_bytes), device(SimulatedDevice::Make(options.device)) {
    CopierOptions opening;
    opening.device = {device, options.staging_bytes, options.strategy, options.strategy};
    opening.pool = {pool.bytes()};
    opening.calibration_budget = Duration::zero();
    auto opened = DeviceCopier::Open(std::move(opening));
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    copier = *std::move(opened);
    engine = device->EngineStream();
  }
  ~Rig() {
    device->Synchronize();
    copier.reset();
    EXPECT_EQ(device->counters().unregistered, 0u);
    EXPECT_EQ(device->counters().registered_bytes, 0u);
    EXPECT_EQ(device->counters().allocated_bytes, 0u);
  }
  // The next payload of the pool, unaligned on purpose.
  std::byte* TakePayload(size_t bytes) {
    std::byte* const payload = pool.bytes().data() + used;
    used += bytes + 16;
    EXPECT_LE(used, pool.bytes().size());
    return payload;
  }

  PoolMemory pool;
  size_t used = 16;
  std::shared_ptr<SimulatedDevice> device;
  std::unique_ptr<DeviceCopier> copier;
  std::shared_ptr<Stream> engine;
};

// A copy of some tokens and layers of random pages.
class RandomCopy {
 public:
  RandomCopy(CopyDirection direction, std::mt19937_64& random, Rig& rig)
      : direction_(direction), rig_(rig), pages_(MakePages(random, direction)) {
    const uint64_t begin = pages_.view.first_token, end = begin + pages_.view.num_tokens;
    payload_tokens_.begin = begin + random() % (end - begin);
    payload_tokens_.end = payload_tokens_.begin + 1 + random() % (end - payload_tokens_.begin);
    tokens_ = payload_tokens_;
    if (random() % 2 == 0) {
      tokens_.begin += random() % (tokens_.end - tokens_.begin);
      tokens_.end = tokens_.begin + 1 + random() % (tokens_.end - tokens_.begin);
    }
    layers_.end = static_cast<uint32_t>(pages_.g.layers);
    layers_.begin = static_cast<uint32_t>(random() % layers_.end);
    payload_bytes_ = pages_.PayloadBytes(payload_tokens_);
    payload_ = rig_.TakePayload(payload_bytes_);
    FillRandomOf(random);
  }

  // The engine computes (to host) or uses the blocks for the last time (to device); then the copy, of which
  // the arguments are gone when this returns.
  Status Enqueue() {
    Compute();
    return EnqueueCopy();
  }
  void Compute() {
    rig_.device->Enqueue(*rig_.engine, [this] { pages_.memory = computed_; });
    auto computed = rig_.engine->Record();
    EXPECT_TRUE(computed.ok());
    after_ = *computed;
  }
  Status EnqueueCopy() {
    auto kernel = MakeKernelCopy(pages_.CopyOf(payload_tokens_), tokens_, layers_, direction_, payload_);
    EXPECT_TRUE(kernel.ok()) << kernel.status().ToString();
    auto done = rig_.copier->Copy(kernel->args, after_.get());
    // What is read of them later is far outside.
    std::fill(kernel->blocks.begin(), kernel->blocks.end(), int64_t{1} << 40);
    if (!done.ok()) return done.status();
    done_ = *done;
    return OkStatus();
  }

  // As the copy's event says; only of one that was enqueued.
  Status Wait() const { return done_->Wait(Soon()); }
  bool has_event() const { return done_ != nullptr; }
  bool IsRight() const {
    Memory expected = computed_;
    std::vector<std::byte> payload = before_;
    pages_.ForEachRun(payload_tokens_, tokens_, layers_, [&](const Place& place, int64_t offset) {
      std::byte* const page = expected[static_cast<size_t>(place.allocation)].data() + place.offset;
      std::byte* const in_payload = payload.data() + offset;
      if (direction_ == CopyDirection::kToHost) std::memcpy(in_payload, page, RunBytes());
      if (direction_ == CopyDirection::kToDevice) std::memcpy(page, in_payload, RunBytes());
    });
    return expected == pages_.memory && std::memcmp(payload.data(), payload_, payload_bytes_) == 0;
  }

  // For what may still write or read after its time.
  void Scribble(std::byte value) {
    for (auto& allocation : pages_.memory) std::fill(allocation.begin(), allocation.end(), value);
    std::memset(payload_, static_cast<int>(value), payload_bytes_);
  }
  bool IsAll(std::byte value) const {
    const auto is_value = [value](std::byte byte) { return byte == value; };
    for (const auto& allocation : pages_.memory) {
      if (!std::all_of(allocation.begin(), allocation.end(), is_value)) return false;
    }
    return std::all_of(payload_, payload_ + payload_bytes_, is_value);
  }

 private:
  static Pages MakePages(std::mt19937_64& random, CopyDirection direction) {
    const Layout& layout = kLayouts[random() % std::size(kLayouts)];
    Geometry g;
    g.layers = static_cast<int64_t>(1 + random() % 3);
    g.blocks = static_cast<int64_t>(2 + random() % 6);
    g.block_tokens = std::vector<int64_t>{1, 4, 16}[random() % 3];
    g.heads = layout.latent ? 1 : static_cast<int64_t>(1 + random() % 3);
    g.head_bytes = std::vector<int64_t>{16, 80, 128}[random() % 3];
    g.kv = layout.latent ? 1 : 2;
    std::vector<int64_t> blocks(static_cast<size_t>(g.blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    if (random() % 3 != 0) std::shuffle(blocks.begin(), blocks.end(), random);
    blocks.resize(1 + random() % blocks.size());
    if (direction == CopyDirection::kToDevice && blocks.size() > 1 && random() % 3 == 0) {
      blocks[random() % blocks.size()] = -1;
    }
    return Pages(layout, g, blocks);
  }
  void FillRandomOf(std::mt19937_64& random) {
    computed_ = pages_.memory;
    for (auto& allocation : computed_) FillRandom(allocation, random);
    before_.resize(payload_bytes_);
    FillRandom(before_, random);
    std::memcpy(payload_, before_.data(), payload_bytes_);
  }
  size_t RunBytes() const { return static_cast<size_t>(pages_.g.head_bytes); }

  const CopyDirection direction_;
  Rig& rig_;
  Pages pages_;
  TokenRange payload_tokens_{}, tokens_{};
  LayerSpan layers_;
  std::byte* payload_ = nullptr;
  size_t payload_bytes_ = 0;
  Memory computed_;                // what the engine writes before the copy
  std::vector<std::byte> before_;  // the payload's bytes before the copy
  std::shared_ptr<Event> after_, done_;
};

}  // namespace terrace
