#include "backends/nvme/tests/simulation_run.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backends/nvme/opened_store.h"
#include "backends/nvme/tests/simulation_audit.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kMaxFrame = 3 * kMiB;
constexpr size_t kMaxInFlight = 8;
constexpr int kMaxOpens = 4;
constexpr int kMaxSteps = 100'000;
constexpr char kDirectory[] = "/tier";

std::string NameOf(size_t slot, uint64_t number) {
  return std::to_string(slot) + "#" + std::to_string(number);
}

}  // namespace

void SimulationCounts::Add(const SimulationCounts& other) {
  lives += other.lives;
  power_losses += other.power_losses;
  crashes += other.crashes;
  closes += other.closes;
  losses_while_opening += other.losses_while_opening;
  losses_while_closing += other.losses_while_closing;
  manifests_removed += other.manifests_removed;
  puts += other.puts;
  gets += other.gets;
  erases += other.erases;
  clears += other.clears;
  flushes += other.flushes;
  recovered += other.recovered;
}

std::string SimulationCounts::ToString() const {
  const std::array<std::pair<const char*, uint64_t>, 13> all = {{
      {"lives", lives},
      {"power losses", power_losses},
      {"crashes", crashes},
      {"closes", closes},
      {"losses while opening", losses_while_opening},
      {"losses while closing", losses_while_closing},
      {"manifests removed", manifests_removed},
      {"puts", puts},
      {"gets", gets},
      {"erases", erases},
      {"clears", clears},
      {"flushes", flushes},
      {"objects recovered", recovered},
  }};
  std::string text;
  for (const auto& [name, count] : all) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name;
  }
  return text;
}

SimulationRun::SimulationRun(SimulationSettings settings) : settings_(settings) { DrawOptions(); }

SimulationRun::~SimulationRun() {
  world_->Freeze();
  ++life_;
  core_.reset();
}

void SimulationRun::Fail(const std::string& what) {
  Note("FAILED: " + what);
  if (failure_.empty()) failure_ = what;
}

void SimulationRun::Heard(const Status& status) {
  if (options_.durability == Durability::kSync) return;  // it fails what it cannot promise
  if (tier_faults_.failed_sync > 0 && status.code() == StatusCode::kUnavailable) model_->Doubt();
}

void SimulationRun::DrawOptions() {
  options_.directory = kDirectory;
  options_.segment_bytes = 16 * kMiB;
  options_.prepare_ahead_bytes = Chance(20) ? kMiB : 0;
  options_.min_free_bytes = 0;
  options_.capacity_bytes = 2 * kMiB + Draw(8) * 256 * kKiB;
  if (Chance(5)) options_.capacity_bytes = 24 * kMiB;
  const uint64_t durability = Draw(100);
  options_.durability = durability < 15   ? Durability::kNone
                        : durability < 60 ? Durability::kFlush
                                          : Durability::kSync;
  if (settings_.durability) options_.durability = *settings_.durability;
  if (settings_.has_faults) {
    if (Chance(50)) tier_faults_ = {.short_transfer = 800, .again = 400, .interrupted = 400, .late = 2500};
    if (Chance(20)) tier_faults_.io_error = 200;
    if (Chance(15)) tier_faults_.no_space = 200;
    if (Chance(15)) tier_faults_.failed_sync = 500;
    if (Chance(10)) manifest_faults_.io_error = 50;
    if (Chance(10)) manifest_faults_.failed_sync = 200;
    if (Chance(5)) manifest_faults_.no_space = 50;
  }
  SimulatedWorldOptions world{.seed = settings_.seed};
  if (settings_.has_faults && Chance(8)) {
    options_.min_free_bytes = kMiB;
    world.total_bytes = options_.capacity_bytes * 3 / 4 + kMiB / 2;
  }
  world.has_direct = Chance(80);
  world_ = std::make_shared<SimulatedWorld>(world);
  model_.emplace(settings_.seed, 4 + Draw(10), options_.durability);
  if (tier_faults_.failed_sync + manifest_faults_.failed_sync + manifest_faults_.io_error +
          manifest_faults_.no_space >
      0) {
    model_->SetSyncsFail();
  }
  operations_left_ = 20 + Draw(40);
  Note("durability " + std::to_string(static_cast<int>(options_.durability)) + ", tier: io_error " +
       std::to_string(tier_faults_.io_error) + " no_space " + std::to_string(tier_faults_.no_space) +
       " failed_sync " + std::to_string(tier_faults_.failed_sync) + ", manifest: io_error " +
       std::to_string(manifest_faults_.io_error) + " no_space " + std::to_string(manifest_faults_.no_space) +
       " failed_sync " + std::to_string(manifest_faults_.failed_sync) + ", total_bytes " +
       std::to_string(world.total_bytes));
}

void SimulationRun::SetFaults() {
  world_->SetFaults(SimulatedPart::kTier, tier_faults_);
  world_->SetFaults(SimulatedPart::kManifest, manifest_faults_);
}

std::string SimulationRun::Run() {
  while (operations_left_ > 0 && !IsOver()) {
    OpenAndCheck();
    if (!IsOver()) OneLife();
    if (!IsOver()) BetweenLives();
  }
  if (!IsOver()) OpenAndCheck();
  if (!IsOver()) Audit();
  return failure_;
}

// Opening.

bool SimulationRun::TryOpen() {
  ++counts_.lives;
  ++life_;
  open_requests_ = 0;
  Note("open, life " + std::to_string(life_) + ", capacity " + std::to_string(options_.capacity_bytes));
  Result<std::unique_ptr<OpenedStore>> store = OpenStore(options_, MakeSimulatedDisk(world_, kDirectory));
  if (!store.ok()) {
    Note("open: " + store.status().ToString());
    if (!world_->frozen()) Fail("the tier does not open: " + store.status().ToString());
    return false;
  }
  core_ = std::make_unique<NvmeCore>(std::move(*store));
  core_->SetOrderSwitches(settings_.switches);
  const Status started = core_->Start({.clock = &clock_}, CoreThreads::kStepped);
  if (!started.ok() && !world_->frozen()) Fail("the tier does not start: " + started.ToString());
  return started.ok() && !world_->frozen();
}

void SimulationRun::OpenAndCheck() {
  for (int attempt = 1; !IsOver(); ++attempt) {
    world_->SetNoFaults();
    if (attempt < kMaxOpens && Chance(25)) world_->FreezeAfter(1 + Draw(200));
    if (TryOpen()) {
      CheckRecovered();
      if (!world_->frozen()) break;
    }
    if (IsOver()) return;
    ++counts_.losses_while_opening;
    EndByLoss();
  }
  world_->FreezeAfter(0);
  nothing_promised_ = false;
  SetFaults();
}

void SimulationRun::CheckRecovered() {
  for (size_t slot = 0; slot < model_->num_slots() && !world_->frozen() && !IsOver(); ++slot) {
    std::vector<GetOp> ops(1);
    ops[0].id = model_->id(slot);
    ops[0].dst = MakeTestBuffer(model_->max_frame_bytes(slot));
    const BufferRef dst = ops[0].dst;
    core_->Get(std::move(ops), Answered<GetResult>([this, slot, dst](const GetResult& result) {
                 counts_.recovered += result.status.ok();
                 Note("recovered " + std::to_string(slot) + ": " + result.status.ToString());
                 const std::string wrong = model_->CheckRecovered(slot, result, dst);
                 if (!wrong.empty()) Fail(wrong);
               }));
    Drain();
  }
  if (!world_->frozen() && !IsOver()) CheckFigures("after an open");
}

void SimulationRun::CheckFigures(const std::string& when) {
  core_->CheckInvariants();
  if (core_->used_bytes() > core_->data_bytes()) Fail("more is in use than there is, " + when);
}

// A life.

void SimulationRun::OneLife() {
  if (Chance(20)) world_->FreezeAfter(1 + Draw(200));
  const bool ends_by_close = Chance(35);
  while (operations_left_ > 0 && !world_->frozen() && !IsOver()) {
    const uint64_t draw = Draw(100);
    if (draw < 40 && open_requests_ < kMaxInFlight) {
      StartOperation();
      --operations_left_;
    } else if (draw < 90) {
      Step();
    } else if (draw < 94) {
      Drain();
    } else if (draw < 97) {
      if (Chance(50)) break;
    }
  }
  if (IsOver()) return;
  if (ends_by_close && !world_->frozen()) return CloseCleanly();
  EndByLoss();
}

void SimulationRun::Step() {
  core_->Step();
  clock_.Advance();
}

void SimulationRun::Drain() {
  for (int steps = 0; open_requests_ > 0 && !world_->frozen() && !IsOver(); ++steps) {
    if (steps > kMaxSteps) return Fail("requests are not answered");
    Step();
  }
}

void SimulationRun::StartOperation() {
  const size_t slot = Draw(model_->num_slots());
  const uint64_t draw = Draw(100);
  if (draw < 45) return StartPut(slot);
  if (draw < 62) return StartGet(slot);
  if (draw < 68) return StartRangeGet(slot);
  if (draw < 88) return StartErase(slot);
  if (draw < 91) return StartClear();
  StartFlush();
}

void SimulationRun::StartPut(size_t slot) {
  ++counts_.puts;
  uint64_t frame_bytes = (2 + Draw(15)) * 4 * kKiB;
  if (Chance(3)) frame_bytes = (1 + Draw(3 * 256)) * 4 * kKiB + 4 * kKiB;
  frame_bytes = std::min(frame_bytes, kMaxFrame);
  size_t version = 0;
  const TestObject& object = model_->BeginPut(slot, frame_bytes, &version);
  std::vector<PutOp> ops;
  ops.push_back(PutOpOf(object));
  if (Chance(5)) ops[0].deadline = clock_.Now() + std::chrono::milliseconds(1 + Draw(20));
  Note("put " + NameOf(slot, version) + " of " + std::to_string(frame_bytes));
  core_->Put(std::move(ops), Answered<Status>([this, slot, version](const Status& status) {
               Note("put " + NameOf(slot, version) + ": " + status.ToString());
               Heard(status);
               const std::string wrong = model_->EndPut(slot, version, status);
               if (!wrong.empty()) Fail(wrong);
             }));
}

void SimulationRun::StartGet(size_t slot) {
  ++counts_.gets;
  std::vector<GetOp> ops(1);
  ops[0].id = model_->id(slot);
  ops[0].dst = MakeTestBuffer(model_->max_frame_bytes(slot));
  const BufferRef dst = ops[0].dst;
  const uint64_t called = model_->BeginGet();
  Note("get " + NameOf(slot, called));
  core_->Get(std::move(ops), Answered<GetResult>([this, slot, called, dst](const GetResult& result) {
               Note("get " + NameOf(slot, called) + ": " + result.status.ToString());
               const std::string wrong = model_->EndGet(slot, called, result, dst);
               if (!wrong.empty()) Fail(wrong);
             }));
}

void SimulationRun::StartRangeGet(size_t slot) {
  ++counts_.gets;
  const FrameRange range{.frame_offset = 4 * kKiB, .length = 4 * kKiB, .dst_offset = Draw(3) * 4 * kKiB};
  std::vector<GetOp> ops(1);
  ops[0].id = model_->id(slot);
  ops[0].dst = MakeTestBuffer(16 * kKiB);
  ops[0].ranges = {range};
  const BufferRef dst = ops[0].dst;
  const uint64_t called = model_->BeginGet();
  Note("get " + NameOf(slot, called));
  core_->Get(std::move(ops), Answered<GetResult>([this, slot, called, dst, range](const GetResult& result) {
               Note("get " + NameOf(slot, called) + ": " + result.status.ToString());
               const std::string wrong = model_->EndRangeGet(slot, called, result, dst, range);
               if (!wrong.empty()) Fail(wrong);
             }));
}

void SimulationRun::StartErase(size_t slot) {
  ++counts_.erases;
  const EraseMode mode = Chance(50) ? EraseMode::kErase : EraseMode::kEvict;
  const uint64_t called = model_->BeginErase(slot);
  const std::string what = (mode == EraseMode::kErase ? "erase " : "evict ") + NameOf(slot, called);
  Note(what);
  core_->Erase({model_->id(slot)}, mode,
               Answered<Status>([this, slot, called, mode, what](const Status& status) {
                 Note(what + ": " + status.ToString());
                 Heard(status);
                 model_->EndErase(slot, called, mode, status);
               }));
}

void SimulationRun::StartClear() {
  ++counts_.clears;
  const uint64_t called = model_->BeginClear();
  Note("clear");
  const auto done = Answered<Status>([this, called](const Status& status) {
    Note("clear: " + status.ToString());
    Heard(status);
    model_->EndClear(called, status);
  });
  core_->Clear([done](const Status& status) { done({&status, 1}); });
}

void SimulationRun::StartFlush() {
  ++counts_.flushes;
  const uint64_t called = model_->BeginFlush();
  Note("flush");
  const auto done = Answered<Status>([this, called](const Status& status) {
    Note("flush: " + status.ToString());
    Heard(status);
    model_->EndFlush(called, status);
  });
  core_->Flush([done](const Status& status) { done({&status, 1}); });
}

// The end of a life.

void SimulationRun::CloseCleanly() {
  Drain();
  if (IsOver()) return;
  if (!world_->frozen()) CheckFigures("before a close");
  if (Chance(40)) world_->FreezeAfter(1 + Draw(12));
  const Status closed = core_->Close(kNoDeadline);
  Note("close: " + closed.ToString());
  ++life_;
  core_.reset();
  counts_.losses_while_closing += world_->frozen();
  if (world_->frozen() || !closed.ok()) return EndByLoss();
  world_->FreezeAfter(0);
  ++counts_.closes;
  model_->EndLife(LifeEnd::kClosed);
}

void SimulationRun::EndByLoss() {
  world_->Freeze();
  ++life_;  // what is answered from here on was never heard
  core_.reset();
  if (Chance(75)) {
    ++counts_.power_losses;
    world_->LosePower();
    Note("power lost");
    model_->EndLife(LifeEnd::kPowerLost, nothing_promised_);
  } else {
    ++counts_.crashes;
    world_->Crash();
    Note("crashed");
    model_->EndLife(LifeEnd::kCrashed, nothing_promised_);
  }
}

void SimulationRun::RemoveManifest() {
  world_->SetNoFaults();
  const std::unique_ptr<Disk> disk = MakeSimulatedDisk(world_, kDirectory);
  if (!disk->RemoveDirectory("manifest").ok() || !disk->SyncNames().ok()) return Fail("no names to remove");
  ++counts_.manifests_removed;
  Note("manifest removed");
  model_->SetSyncsFail();  // a rebuild adopts frames of which the header is right
  // The segments are whole, and have everything. But an Erase that finds no room for its entry in the log
  // raises the floor, and a rebuild leaves out what is older.
  model_->EndLife(LifeEnd::kCrashed, /*nothing_promised=*/tier_faults_.no_space > 0);
}

void SimulationRun::BetweenLives() {
  if (settings_.removes_manifest && Chance(4)) RemoveManifest();
  if (Chance(8)) {
    const uint64_t before = options_.capacity_bytes;
    options_.capacity_bytes = Chance(50) ? before + 512 * kKiB : std::max(before - 512 * kKiB, 2 * kMiB);
    if (options_.capacity_bytes >= before) return;
    nothing_promised_ = true;  // what lies beyond is dropped
    model_->EndLife(LifeEnd::kCrashed, true);
  }
}

void SimulationRun::Audit() {
  world_->SetNoFaults();
  while (core_->Step()) {
  }
  const uint64_t used = core_->used_bytes();
  const Status closed = core_->Close(kNoDeadline);
  Note("close: " + closed.ToString());
  ++life_;
  core_.reset();
  if (!closed.ok()) return Fail("the last close: " + closed.ToString());
  const std::unique_ptr<Disk> disk = MakeSimulatedDisk(world_, kDirectory);
  const TierAudit audit = AuditTier(*disk);
  if (!audit.wrong.empty()) return Fail("audit: " + audit.wrong);
  if (audit.live_bytes != used) {
    return Fail("audit: the tier counts " + std::to_string(used) + " bytes in use, its records " +
                std::to_string(audit.live_bytes));
  }
  const uint64_t held = world_->UsedBelow(std::string(kDirectory) + "/manifest") + audit.segment_bytes;
  if (held > options_.capacity_bytes) {
    return Fail("audit: segments and manifest hold " + std::to_string(held) + " of " +
                std::to_string(options_.capacity_bytes) + " bytes");
  }
}

}  // namespace terrace
