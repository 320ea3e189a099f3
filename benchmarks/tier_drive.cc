#include "benchmarks/tier_drive.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "benchmarks/cpu_time.h"
#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "terrace/token_hasher.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kBytesPerToken = 23040;  // of a model of 5.9 MB per 256 tokens
constexpr uint64_t kMaxTokens = 256;

double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// splitmix64
uint64_t Mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

bool IsGet(uint64_t index, uint32_t gets_of_ten) {
  return (index + 1) * gets_of_ten / 10 != index * gets_of_ten / 10;
}

}  // namespace

struct TierDrive::RunState {
  const DrivePlan& plan;
  uint64_t started = 0;
  uint64_t ended = 0;
  uint32_t in_flight = 0;
  uint32_t background = 0;
  uint64_t moved_bytes = 0;
  Status status;
  DriveFigures figures;

  bool is_over() const { return !status.ok() || ended == plan.num_ops; }
};

TierDrive::TierDrive(uint64_t payload_bytes, uint32_t max_depth)
    : payload_bytes_(payload_bytes), max_depth_(max_depth) {
  auto content = std::make_shared<ChunkContent>();
  content->tokens.resize(std::clamp<uint64_t>(payload_bytes / kBytesPerToken, 1, kMaxTokens), Token{7});
  content_ = std::move(content);
}

TierDrive::~TierDrive() = default;

Result<std::unique_ptr<TierDrive>> TierDrive::Open(const NvmeOptions& options, uint64_t payload_bytes,
                                                   uint32_t max_depth) {
  std::unique_ptr<TierDrive> drive(new TierDrive(payload_bytes, max_depth));
  TERRACE_RETURN_IF_ERROR(drive->MakeSlots(max_depth));
  TERRACE_ASSIGN_OR_RETURN(drive->backend_, MakeNvmeBackend(options));
  BackendContext context{
      .clock = Clock::Real(), .metrics = &drive->metrics_, .log = drive->log_.get(), .regions = {}};
  context.regions = drive->pool_->regions();
  TERRACE_RETURN_IF_ERROR(drive->backend_->Attach(context));
  TERRACE_RETURN_IF_ERROR(drive->Fill());
  if (drive->num_objects() < uint64_t{4} * max_depth) {
    return InvalidArgumentError("a tier of " + std::to_string(options.capacity_bytes) + " bytes holds " +
                                std::to_string(drive->num_objects()) + " chunks of " +
                                std::to_string(payload_bytes) +
                                ", allowed: " + std::to_string(4 * max_depth) + " at least");
  }
  drive->MeasureIdle();
  return drive;
}

Status TierDrive::MakeSlots(uint32_t per_op) {
  FrameHeader header;
  header.content = *content_;
  header.payload_bytes = header.stored_bytes = payload_bytes_;
  header.pieces = PlanPieces(payload_bytes_, {});
  TERRACE_ASSIGN_OR_RETURN(header.header_bytes, HeaderBytes(header));
  frame_bytes_ = header.header_bytes + RoundUp(payload_bytes_, kFrameAlignment);
  const uint64_t run_bytes = kTierPageBytes + frame_bytes_;
  // A run may not cross a piece of the pool: one run more for each.
  const uint64_t wanted = 2 * per_op * RoundUp(run_bytes, kPoolUnitBytes);
  BufferPoolOptions options;
  options.size_bytes = wanted + (wanted / kPoolPieceBytes + 1) * RoundUp(run_bytes, kPoolUnitBytes);
  TERRACE_ASSIGN_OR_RETURN(pool_, BufferPool::Create(options));
  for (uint32_t i = 0; i < 2 * per_op; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->op = i < per_op ? DriveOp::kPut : DriveOp::kGet;
    TERRACE_ASSIGN_OR_RETURN(slot->buffer, pool_->Allocate(run_bytes));
    const MutableBytes frame = slot->buffer.mutable_frame();
    uint64_t state = i;
    for (uint64_t at = 0; at + 8 <= frame.size(); at += 8) {
      const uint64_t word = Mix(state);
      std::memcpy(frame.data() + at, &word, 8);
    }
    slot->header = header;
    SealRawPieces(frame.subspan(header.header_bytes, payload_bytes_), slot->header.pieces);
    idle_[static_cast<size_t>(slot->op)].push_back(slot.get());
    slots_.push_back(std::move(slot));
  }
  return OkStatus();
}

Status TierDrive::Fill() {
  const DrivePlan plan{.num_ops = UINT64_MAX, .depth = max_depth_};
  RunState run{.plan = plan};
  room_ = UINT64_MAX;
  bool is_full = false;
  while (!is_full || run.in_flight > 0) {
    while (!is_full && run.in_flight < plan.depth && StartPut(true)) ++run.in_flight;
    for (Completion& completion : TakeCompletions()) {
      if (completion.status.code() != StatusCode::kResourceExhausted) {
        Finish(run, completion);
        is_full |= !run.status.ok();
        continue;
      }
      is_full = true;
      --run.in_flight;
      idle_[static_cast<size_t>(DriveOp::kPut)].push_back(completion.slot);
    }
  }
  room_ = 0;
  return run.status;
}

void TierDrive::MeasureIdle() {
  const double cpu = ProcessCpuSeconds();
  const SteadyClock::time_point begin = SteadyClock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  idle_cpu_rate_ =
      (ProcessCpuSeconds() - cpu) / std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

Result<DriveFigures> TierDrive::Run(const DrivePlan& plan) {
  TERRACE_CHECK(plan.depth + plan.background_puts <= max_depth_);
  RunState run{.plan = plan};
  framing_cpu_s_ = 0;
  const double cpu = ProcessCpuSeconds();
  const SteadyClock::time_point begin = SteadyClock::now();
  SteadyClock::time_point end = begin;
  while (!run.is_over() || run.in_flight + run.background > 0 || evicting_ > 0) {
    if (!run.is_over()) StartWhatFits(run);
    for (const Completion& completion : TakeCompletions()) {
      Finish(run, completion);
      end = completion.end;
    }
  }
  TERRACE_RETURN_IF_ERROR(run.status);
  const double seconds = std::chrono::duration<double>(end - begin).count();
  const double gigabytes = static_cast<double>(run.moved_bytes) / 1e9;
  run.figures.gbps = gigabytes / seconds;
  run.figures.cpu_s_per_gb =
      (ProcessCpuSeconds() - cpu - framing_cpu_s_ - idle_cpu_rate_ * seconds) / gigabytes;
  return std::move(run.figures);
}

void TierDrive::StartWhatFits(RunState& run) {
  const DrivePlan& plan = run.plan;
  while (run.background < plan.background_puts && StartPut(false)) ++run.background;
  while (run.in_flight < plan.depth && run.started < plan.num_ops) {
    if (IsGet(run.started, plan.gets_of_ten)) {
      StartGet(plan);
    } else if (!StartPut(true)) {
      return;
    }
    ++run.started;
    ++run.in_flight;
  }
}

bool TierDrive::StartPut(bool counted) {
  if (room_ != UINT64_MAX) EvictAhead();
  if (room_ == 0) return false;
  if (room_ != UINT64_MAX) --room_;
  std::vector<Slot*>& idle = idle_[static_cast<size_t>(DriveOp::kPut)];
  Slot* slot = idle.back();
  idle.pop_back();
  const double cpu = ThreadCpuSeconds();
  FrameHeader& header = slot->header;
  header.first_token = next_object_;
  std::memcpy(header.parent.bytes.data(), &next_object_, sizeof(next_object_));
  ++next_object_;
  header.key = TokenHasher::KeyOf(header.parent, *content_);
  TERRACE_CHECK(WriteFrameHeader(header, slot->buffer.mutable_frame()).ok());
  slot->counted = counted;
  slot->object.id = {.key = header.key, .part = header.part};
  slot->object.meta = {.root = header.root,
                       .parent = header.parent,
                       .first_token = header.first_token,
                       .content = content_,
                       .frame_bytes = header.frame_bytes,
                       .payload_bytes = header.payload_bytes};
  framing_cpu_s_ += ThreadCpuSeconds() - cpu;
  slot->begin = SteadyClock::now();
  std::vector<PutOp> ops;
  ops.push_back({.id = slot->object.id, .frame = slot->buffer, .meta = slot->object.meta});
  backend_->Put(std::move(ops), [this, slot](std::span<const Status> results) {
    Push({.slot = slot, .status = results[0], .end = SteadyClock::now()});
  });
  return true;
}

void TierDrive::StartGet(const DrivePlan& plan) {
  std::vector<Slot*>& idle = idle_[static_cast<size_t>(DriveOp::kGet)];
  Slot* slot = idle.back();
  idle.pop_back();
  slot->object.id = NextToGet(plan.scattered);
  GetOp op;
  op.id = slot->object.id;
  op.dst = slot->buffer;
  slot->verifier.reset();
  if (plan.verify) {
    slot->verifier.emplace(slot->buffer.frame());
    op.on_bytes = [slot](uint64_t offset, uint64_t n) { slot->verifier->MarkPresent(offset, n); };
  }
  slot->begin = SteadyClock::now();
  std::vector<GetOp> ops;
  ops.push_back(std::move(op));
  backend_->Get(std::move(ops), [this, slot](std::span<const GetResult> results) {
    Push({.slot = slot, .status = results[0].status, .end = SteadyClock::now()});
  });
}

// Not of the oldest quarter: evictions take from there.
ObjectId TierDrive::NextToGet(bool scattered) {
  const uint64_t begin = evicted_ + objects_.size() / 4;
  const uint64_t end = evicted_ + objects_.size();
  if (scattered) {
    next_get_ = begin + Mix(random_) % (end - begin);
  } else if (next_get_ < begin || next_get_ >= end) {
    next_get_ = begin;
  }
  return objects_[next_get_++ - evicted_].id;
}

void TierDrive::EvictAhead() {
  if (room_ + evicting_ > max_depth_ / 2) return;
  std::vector<ObjectId> ids;
  while (ids.size() < max_depth_ && !objects_.empty()) {
    ids.push_back(objects_.front().id);
    objects_.pop_front();
  }
  evicted_ += ids.size();
  evicting_ += ids.size();
  backend_->Erase(std::move(ids), EraseMode::kEvict, [this](std::span<const Status> results) {
    Completion completion{.evicted = results.size(), .end = SteadyClock::now()};
    for (const Status& status : results) {
      if (!status.ok()) completion.status = status;
    }
    Push(std::move(completion));
  });
}

void TierDrive::Push(Completion completion) {
  const std::lock_guard lock(mutex_);
  completions_.push_back(std::move(completion));
  changed_.notify_one();
}

std::vector<TierDrive::Completion> TierDrive::TakeCompletions() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !completions_.empty(); });
  return std::exchange(completions_, {});
}

void TierDrive::Finish(RunState& run, const Completion& completion) {
  Status status = completion.status;
  if (completion.slot == nullptr) {
    room_ += completion.evicted;
    evicting_ -= completion.evicted;
  } else {
    Slot& slot = *completion.slot;
    if (status.ok() && slot.op == DriveOp::kGet) status = CheckGet(slot);
    if (status.ok()) {
      run.moved_bytes += payload_bytes_;
      if (slot.op == DriveOp::kPut) objects_.push_back(slot.object);
      const double ms = std::chrono::duration<double, std::milli>(completion.end - slot.begin).count();
      if (slot.counted) (slot.op == DriveOp::kPut ? run.figures.put_ms : run.figures.get_ms).push_back(ms);
    }
    if (slot.counted) ++run.ended;
    --(slot.counted ? run.in_flight : run.background);
    slot.counted = true;
    idle_[static_cast<size_t>(slot.op)].push_back(&slot);
  }
  if (!status.ok() && run.status.ok()) run.status = status;
}

Status TierDrive::CheckGet(Slot& slot) const {
  if (!slot.verifier) return OkStatus();
  TERRACE_ASSIGN_OR_RETURN(const FrameHeader header, slot.verifier->Finish(frame_bytes_));
  return header.key == slot.object.id.key ? OkStatus() : DataLossError("the frame of another key was read");
}

}  // namespace terrace::bench
