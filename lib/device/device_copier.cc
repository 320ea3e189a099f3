#include "lib/device/device_copier.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/host_launcher.h"
#include "kernels/plane_runs.h"
#include "lib/base/status_macros.h"
#include "lib/device/copy_probe.h"
#include "lib/device/staged_parts.h"

namespace terrace {
namespace {

// Bounds the memory of one call of the copy engine.
constexpr size_t kMaxBatchPieces = 4096;
constexpr uint64_t kSlotsPerWay = 2;
constexpr uint64_t kMinStagingBytes = 2 * kSlotsPerWay * kSlotAlignment;
// Below this nothing that is measured says anything.
constexpr uint64_t kMinProbeBytes = uint64_t{1} << 20;
constexpr size_t kMaxRegisteringThreads = 4;

constexpr uint32_t Bit(CopyStrategy strategy) { return 1u << static_cast<uint32_t>(strategy); }

Status ValidateStrategy(const DeviceOptions& options, const char* field,
                        std::optional<CopyStrategy> strategy) {
  if (!strategy) return OkStatus();
  const DeviceProperties& device = options.device->properties();
  const auto refuse = [&](const std::string& why) {
    std::string allowed = "plain";
    if (device.has_batched_copy) allowed += ", batched";
    if (device.has_kernels && options.staging_bytes > 0) allowed += ", staged";
    if (device.has_kernels) allowed += ", mapped";
    return InvalidArgumentError("DeviceOptions." + std::string(field) + " is " + CopyStrategyName(*strategy) +
                                ": " + device.name + " " + why + "; allowed: " + allowed);
  };
  switch (*strategy) {
    case CopyStrategy::kPlain:
      return OkStatus();
    case CopyStrategy::kBatched:
      return device.has_batched_copy ? OkStatus() : refuse("has no batched copy");
    case CopyStrategy::kStaged:
      if (!device.has_kernels) return refuse("runs no kernels");
      return options.staging_bytes > 0 ? OkStatus() : refuse("is given staging_bytes = 0");
    case CopyStrategy::kMapped:
      return device.has_kernels ? OkStatus() : refuse("runs no kernels");
  }
  return InvalidArgumentError("DeviceOptions." + std::string(field) + " is " +
                              std::to_string(static_cast<int>(*strategy)) + "; allowed: 1 to 4");
}

// What a copy is to a copy engine, by arithmetic: the block table is walked, the pieces are not.
struct CopyShape {
  uint64_t bytes = 0;  // without those of negative blocks
  uint64_t num_pieces = 0;
  uint64_t max_token_bytes = 0;  // of one plane
  bool has_holes = false;
};

CopyShape ShapeOf(const PagedCopyArgs& args) {
  CopyShape shape;
  if (args.num_tokens == 0) return shape;
  uint64_t tokens = 0, parts = 0, runs = 0;  // in blocks that are there; runs of neighbouring blocks
  const uint64_t per_block = args.tokens_per_block, end = args.first_slot + args.num_tokens;
  const uint64_t first_block = args.first_slot / per_block, last_block = (end - 1) / per_block;
  for (uint64_t b = first_block; b <= last_block; ++b) {
    if (args.blocks[b] < 0) {
      shape.has_holes = true;
      continue;
    }
    tokens += std::min(end, (b + 1) * per_block) - std::max(args.first_slot, b * per_block);
    ++parts;
    if (b == first_block || args.blocks[b - 1] < 0 || args.blocks[b] != args.blocks[b - 1] + 1) ++runs;
  }
  for (uint32_t p = 0; p < args.num_planes; ++p) {
    const PlaneArgs plane = MergeHeads(args.planes[p]);
    const uint64_t token_bytes = PayloadTokenBytes(plane);
    if (token_bytes == 0) continue;
    shape.max_token_bytes = std::max(shape.max_token_bytes, token_bytes);
    shape.bytes += token_bytes * tokens;
    if (plane.num_heads > 1) {
      shape.num_pieces += tokens * plane.num_heads;
    } else if (per_block > 1 && !HasContiguousTokens(plane)) {
      shape.num_pieces += tokens;
    } else if (plane.block_stride != static_cast<int64_t>(token_bytes * per_block)) {
      shape.num_pieces += parts;
    } else {
      shape.num_pieces += runs;
    }
  }
  return shape;
}

// Devices may be somebody else's.
template <typename Call>
auto WithoutExceptions(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return InternalError(std::string("a device threw: ") + error.what());
  } catch (...) {
    return InternalError("a device threw");
  }
}

// Not a pointer's arithmetic: neither end need be in the same piece of memory.
std::byte* AddressAt(std::byte* address, uint64_t offset) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(address) + offset);
}

}  // namespace

Status ValidateDeviceOptions(const DeviceOptions& options) {
  if (options.device == nullptr) {
    return InvalidArgumentError("DeviceOptions.device is null; allowed: a device");
  }
  if (options.staging_bytes > 0 && options.staging_bytes < kMinStagingBytes) {
    return InvalidArgumentError("DeviceOptions.staging_bytes is " + std::to_string(options.staging_bytes) +
                                "; allowed: 0, or at least " + std::to_string(kMinStagingBytes));
  }
  TERRACE_RETURN_IF_ERROR(ValidateStrategy(options, "to_host", options.to_host));
  return ValidateStrategy(options, "to_device", options.to_device);
}

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::Open(CopierOptions options) {
  TERRACE_RETURN_IF_ERROR(ValidateDeviceOptions(options.device));
  const CopyCalibration* const given = std::exchange(options.calibration, nullptr);
  std::unique_ptr<DeviceCopier> copier(new DeviceCopier(std::move(options)));
  const DeviceProperties& device = copier->device().properties();
  copier->allowed_ = Bit(CopyStrategy::kPlain);
  if (device.has_batched_copy) copier->allowed_ |= Bit(CopyStrategy::kBatched);
  copier->RegisterPool();
  TERRACE_RETURN_IF_ERROR(copier->MakeStreams());
  TERRACE_RETURN_IF_ERROR(copier->TakeStaging());
  copier->ApplyOverrides();
  if (given != nullptr) {
    copier->calibration_ = *given;
  } else if (copier->options_.calibration_budget > Duration::zero()) {
    TERRACE_RETURN_IF_ERROR(copier->Calibrate(copier->options_.calibration_budget));
  }
  return copier;
}

DeviceCopier::~DeviceCopier() {
  for (Way& way : ways_) way.stream.reset();
  staging_.reset();
  for (const MutableBytes& memory : registered_) device().UnregisterHost(memory);
}

bool DeviceCopier::IsAllowed(CopyStrategy strategy) const { return (allowed_ & Bit(strategy)) != 0; }

// Pinning is the system's work, page by page; several regions at a time.
void DeviceCopier::RegisterPool() {
  const std::vector<MutableBytes>& pool = options_.pool;
  std::vector<Status> answers(pool.size());
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < pool.size(); i = next++) answers[i] = device().RegisterHost(pool[i]);
  };
  std::vector<std::thread> others;
  for (size_t n = 1; n < std::min(pool.size(), kMaxRegisteringThreads); ++n) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();

  const Status* refusal = nullptr;
  for (size_t i = 0; i < pool.size(); ++i) {
    if (answers[i].ok()) {
      registered_.push_back(pool[i]);
    } else if (refusal == nullptr) {
      refusal = &answers[i];
    }
  }
  if (refusal == nullptr) {
    if (device().properties().has_kernels) allowed_ |= Bit(CopyStrategy::kMapped);
    return;
  }
  warnings_.push_back(std::to_string(pool.size() - registered_.size()) + " of " +
                      std::to_string(pool.size()) +
                      " regions of the pool are not registered, copies are slower: " + refusal->ToString());
}

Status DeviceCopier::MakeStreams() {
  for (Way& way : ways_) {
    TERRACE_ASSIGN_OR_RETURN(way.stream, device().MakeStream());
  }
  return OkStatus();
}

Status DeviceCopier::TakeStaging() {
  const uint64_t bytes = options_.device.staging_bytes;
  if (bytes == 0) return OkStatus();
  if (!device().properties().has_kernels) {
    warnings_.push_back("staging_bytes is of no use: the device runs no kernels");
    return OkStatus();
  }
  Result<std::shared_ptr<std::byte>> memory = device().Allocate(bytes);
  if (!memory.ok()) {
    if (memory.status().code() != StatusCode::kResourceExhausted) return memory.status();
    warnings_.push_back("no staged copies: " + memory.status().ToString());
    return OkStatus();
  }
  staging_ = *std::move(memory);
  slot_bytes_ = bytes / (2 * kSlotsPerWay) / kSlotAlignment * kSlotAlignment;
  for (size_t way = 0; way < ways_.size(); ++way) {
    ways_[way].staging = staging_.get() + way * kSlotsPerWay * slot_bytes_;
  }
  allowed_ |= Bit(CopyStrategy::kStaged);
  return OkStatus();
}

// The device could do them all (ValidateDeviceOptions); the system may not have let it.
void DeviceCopier::ApplyOverrides() {
  for (std::optional<CopyStrategy>* forced : {&options_.device.to_host, &options_.device.to_device}) {
    if (!*forced || IsAllowed(**forced)) continue;
    warnings_.push_back(std::string(CopyStrategyName(**forced)) + " copies are asked for and not possible");
    forced->reset();
  }
}

Status DeviceCopier::Calibrate(Duration budget) {
  CopyProbe probe;
  probe.budget = budget;
  if (!options_.device.to_host) probe.strategies[0] = allowed_;
  if (!options_.device.to_device) probe.strategies[1] = allowed_;
  const bool has_choice = allowed_ != Bit(CopyStrategy::kPlain);
  if (!has_choice || (probe.strategies[0] | probe.strategies[1]) == 0 || options_.pool.empty()) {
    return OkStatus();
  }
  // Nothing is stored yet: the pool's bytes mean nothing, and the other direction's slots are idle.
  probe.host = options_.pool.front();
  uint64_t bytes = kSlotsPerWay * slot_bytes_;
  for (size_t way = 0; way < ways_.size(); ++way) {
    if (bytes > 0) probe.pages[way] = {ways_[1 - way].staging, bytes};
  }
  // Where that is too little: memory that is given back when this returns, less where less is there.
  std::shared_ptr<std::byte> temporary;
  for (uint64_t more = kProbeBytes; temporary == nullptr && more > bytes && more >= kMinProbeBytes;
       more /= 2) {
    Result<std::shared_ptr<std::byte>> memory = device().Allocate(more);
    if (!memory.ok() && memory.status().code() != StatusCode::kResourceExhausted) return memory.status();
    if (!memory.ok()) continue;
    temporary = *std::move(memory);
    probe.pages.fill({temporary.get(), more});
  }
  probe.copy = [this](const PagedCopyArgs& args, CopyStrategy strategy) {
    Result<std::shared_ptr<Event>> event = CopyBy(strategy, args, nullptr);
    if (!event.ok()) {
      const Result<std::shared_ptr<Event>> fence = Fence(args.direction);
      // The copy's error is the one to tell; after either end nothing is running.
      if (fence.ok()) SpinUntilDone(**fence).IgnoreError();
    }
    return event;
  };
  TERRACE_ASSIGN_OR_RETURN(calibration_, MeasureCopies(probe));
  if (calibration_.points().empty()) warnings_.push_back("no strategy was measured: copies are plain");
  return OkStatus();
}

CopyStrategy DeviceCopier::StrategyOf(const PagedCopyArgs& args) const {
  const CopyShape shape = ShapeOf(args);
  if (shape.num_pieces <= 1) return CopyStrategy::kPlain;
  const bool is_gather = args.direction == CopyDirection::kToHost;
  uint32_t allowed = allowed_;
  if (shape.max_token_bytes > slot_bytes_ || (is_gather && shape.has_holes)) {
    allowed &= ~Bit(CopyStrategy::kStaged);
  }
  const std::optional<CopyStrategy>& forced = is_gather ? options_.device.to_host : options_.device.to_device;
  if (forced) return (allowed & Bit(*forced)) != 0 ? *forced : CopyStrategy::kPlain;
  return calibration_.Best(args.direction, shape.bytes / shape.num_pieces, shape.num_pieces, allowed);
}

Result<std::shared_ptr<Event>> DeviceCopier::Copy(const PagedCopyArgs& args, const Event* after) {
  return CopyBy(StrategyOf(args), args, after);
}

Result<std::shared_ptr<Event>> DeviceCopier::CopyBy(CopyStrategy strategy, const PagedCopyArgs& args,
                                                    const Event* after) {
  return WithoutExceptions([&]() -> Result<std::shared_ptr<Event>> {
    Way& way = WayOf(args.direction);
    std::lock_guard lock(way.mutex);
    if (after != nullptr) TERRACE_RETURN_IF_ERROR(way.stream->WaitFor(*after));
    if (args.num_tokens > 0) TERRACE_RETURN_IF_ERROR(Enqueue(way, args, strategy));
    return way.stream->Record();
  });
}

Result<std::shared_ptr<Event>> DeviceCopier::Fence(CopyDirection direction) {
  return WithoutExceptions([&] {
    Way& way = WayOf(direction);
    std::lock_guard lock(way.mutex);
    return way.stream->Record();
  });
}

Status DeviceCopier::Enqueue(Way& way, const PagedCopyArgs& args, CopyStrategy strategy) {
  switch (strategy) {
    case CopyStrategy::kPlain:
      return EnqueuePlain(way, args);
    case CopyStrategy::kBatched:
      return EnqueueBatched(way, args);
    case CopyStrategy::kStaged:
      return EnqueueStaged(way, args);
    case CopyStrategy::kMapped:
      return EnqueueMapped(way, args);
  }
  return InternalError("copy strategy " + std::to_string(static_cast<int>(strategy)));
}

Status DeviceCopier::EnqueuePlain(Way& way, const PagedCopyArgs& args) {
  Status status;
  ForEachCopyPiece(args, [&](const CopyPiece& piece) {
    if (status.ok()) status = device().Copy(*way.stream, args.direction, piece);
  });
  return status;
}

Status DeviceCopier::EnqueueBatched(Way& way, const PagedCopyArgs& args) {
  Status status;
  std::vector<CopyPiece> batch;
  const auto submit = [&] {
    if (status.ok() && !batch.empty()) status = device().CopyBatch(*way.stream, args.direction, batch);
    batch.clear();
  };
  ForEachCopyPiece(args, [&](const CopyPiece& piece) {
    batch.push_back(piece);
    if (batch.size() == kMaxBatchPieces) submit();
  });
  submit();
  return status;
}

Status DeviceCopier::EnqueueStaged(Way& way, const PagedCopyArgs& args) {
  return ForEachStagedPart(args, slot_bytes_, [&](const StagedPart& part) -> Status {
    std::byte* const slot = way.staging + (way.next_slot++ % kSlotsPerWay) * slot_bytes_;
    PagedCopyArgs in_slot = part.args;
    in_slot.payload = slot;
    if (args.direction == CopyDirection::kToHost) {
      TERRACE_RETURN_IF_ERROR(device().Run(*way.stream, in_slot));
    }
    for (const StagedRun& run : part.runs) {
      CopyPiece piece{slot + run.slot_offset, args.payload + run.payload_offset, run.bytes};
      if (args.direction == CopyDirection::kToHost) {
        piece = {args.payload + run.payload_offset, slot + run.slot_offset, run.bytes};
      }
      TERRACE_RETURN_IF_ERROR(device().Copy(*way.stream, args.direction, piece));
    }
    if (args.direction == CopyDirection::kToDevice) {
      TERRACE_RETURN_IF_ERROR(device().Run(*way.stream, in_slot));
    }
    return OkStatus();
  });
}

Status DeviceCopier::EnqueueMapped(Way& way, PagedCopyArgs args) {
  // Only the bytes that are copied need lie in the pool: of a part of a payload, its begin may not.
  const auto* const first =
      std::find_if(args.planes, args.planes + args.num_planes,
                   [](const PlaneArgs& plane) { return uint64_t{plane.num_heads} * plane.run_bytes > 0; });
  if (first == args.planes + args.num_planes) return OkStatus();
  TERRACE_ASSIGN_OR_RETURN(std::byte* const mapped,
                           device().MappedAddress(AddressAt(args.payload, first->payload_offset)));
  args.payload = AddressAt(mapped, uint64_t{0} - first->payload_offset);
  return device().Run(*way.stream, args);
}

}  // namespace terrace
