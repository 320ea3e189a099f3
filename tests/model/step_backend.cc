#include "tests/model/step_backend.h"

#include <algorithm>
#include <cstring>

namespace terrace {
namespace {

using Kind = StepControl::Kind;

template <typename Op>
std::vector<ObjectId> IdsOf(const std::vector<Op>& ops) {
  std::vector<ObjectId> ids;
  for (const Op& op : ops) ids.push_back(op.id);
  return ids;
}

bool Names(const StepControl::Held& held, const ObjectId& id) {
  return std::find(held.ids.begin(), held.ids.end(), id) != held.ids.end();
}

}  // namespace

bool StepControl::Chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random) < probability;
}

size_t StepControl::num_held(Kind kind) const {
  return static_cast<size_t>(
      std::count_if(held.begin(), held.end(), [&](const Held& h) { return h.kind == kind; }));
}

bool StepControl::HoldsWriteOf(const ObjectId& id) const {
  return std::any_of(held.begin(), held.end(),
                     [&](const Held& h) { return h.kind == Kind::kPut && Names(h, id); });
}

void StepControl::Run(std::deque<Held>::iterator at) {
  const std::function<void()> run = std::move(at->run);
  const Kind kind = at->kind;
  const std::vector<ObjectId> ids = std::move(at->ids);
  held.erase(at);
  ++steps;
  if (Chance(drop)) {
    ++drops;
    if (kind == Kind::kErase) unsure_erases.insert(ids.begin(), ids.end());
    return;  // a completion that is destroyed unrun is a failure to whoever waits for it
  }
  run();
}

bool StepControl::Step() {
  if (held.empty()) return false;
  Run(held.begin() + static_cast<ptrdiff_t>(random() % held.size()));
  return true;
}

void StepControl::Drain(bool gets) {
  while (true) {
    const auto next =
        std::find_if(held.begin(), held.end(), [&](const Held& h) { return gets || h.kind != Kind::kGet; });
    if (next == held.end()) return;
    Run(next);
  }
}

void StepControl::ScribbleOrphans() {
  for (BufferRef& buffer : orphans) {
    std::memset(buffer.mutable_run().data(), 0xa5, buffer.size_bytes());
    ++scribbles;
  }
  orphans.clear();
}

Capabilities StepBackend::DoCapabilities() const {
  Capabilities capabilities = BackendWrapper::DoCapabilities();
  capabilities.completes_inline = false;
  return capabilities;
}

void StepBackend::GetNow(std::vector<GetOp> ops, GetDone done) {
  const bool is_late = control_->clock->Now() > ops[0].deadline;
  const bool is_cancelled = ops[0].cancel && ops[0].cancel->load();
  if (!is_late && !is_cancelled) return base().Get(std::move(ops), std::move(done));
  std::vector<GetResult> results;
  for (GetOp& op : ops) {
    results.push_back({is_late ? DeadlineExceededError("late") : CancelledError("cancelled"), 0});
    control_->orphans.push_back(std::move(op.dst));
  }
  ops.clear();
  done(results);
}

void StepBackend::DoGet(std::vector<GetOp> ops, GetDone done) {
  if (!control_->holding) return GetNow(std::move(ops), std::move(done));
  std::vector<ObjectId> ids = IdsOf(ops);
  if (control_->random() % 2) {
    auto shared = std::make_shared<std::vector<GetOp>>(std::move(ops));
    control_->held.push_back({Kind::kGet, std::move(ids),
                              [this, shared, done = std::move(done)] { GetNow(std::move(*shared), done); }});
    return;
  }
  base().Get(std::move(ops), [this, ids, done = std::move(done)](std::span<const GetResult> results) {
    control_->held.push_back(
        {Kind::kGet, ids,
         [done, all = std::vector<GetResult>(results.begin(), results.end())] { done(all); }});
  });
}

void StepBackend::DoPut(std::vector<PutOp> ops, PutDone done) {
  if (!control_->holding) return base().Put(std::move(ops), std::move(done));
  std::vector<ObjectId> ids = IdsOf(ops);
  if (control_->random() % 2) {
    auto shared = std::make_shared<std::vector<PutOp>>(std::move(ops));
    control_->held.push_back({Kind::kPut, std::move(ids), [this, shared, done = std::move(done)] {
                                const bool is_late = control_->clock->Now() > (*shared)[0].deadline;
                                base().Put(std::move(*shared), [&](std::span<const Status> results) {
                                  std::vector<Status> all(results.begin(), results.end());
                                  if (is_late) all.assign(all.size(), DeadlineExceededError("late"));
                                  done(all);
                                });
                              }});
    return;
  }
  base().Put(std::move(ops), [this, ids, done = std::move(done)](std::span<const Status> results) {
    control_->held.push_back(
        {Kind::kPut, ids, [done, all = std::vector<Status>(results.begin(), results.end())] { done(all); }});
  });
}

void StepBackend::EndHeld(const std::vector<ObjectId>& ids) {
  while (true) {
    auto& held = control_->held;
    const auto before = std::find_if(held.begin(), held.end(), [&](const StepControl::Held& h) {
      return h.kind != Kind::kGet &&
             std::any_of(ids.begin(), ids.end(), [&](const ObjectId& id) { return Names(h, id); });
    });
    if (before == held.end()) return;
    const std::function<void()> run = std::move(before->run);
    held.erase(before);
    run();
  }
}

void StepBackend::DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  EndHeld(ids);
  EraseDone noted = [this, ids, done = std::move(done)](std::span<const Status> results) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!results[i].ok() && results[i].code() != StatusCode::kNotFound)
        control_->unsure_erases.insert(ids[i]);
    }
    done(results);
  };
  if (!control_->holding || mode == EraseMode::kErase)
    return base().Erase(std::move(ids), mode, std::move(noted));
  std::vector<ObjectId> names = ids;
  control_->held.push_back(
      {Kind::kErase, std::move(names),
       [this, ids = std::move(ids), mode, done = std::move(noted)] { base().Erase(ids, mode, done); }});
}

void StepBackend::DoClear(StatusDone done) {
  control_->Drain(false);
  base().Clear(std::move(done));
}

void StepBackend::DoFlush(StatusDone done) {
  control_->Drain(false);
  base().Flush(std::move(done));
}

Status StepBackend::DoPutRoot(const RootRecord& record) {
  if (control_->Chance(control_->refuse_root)) return UnavailableError("injected into PutRoot");
  return BackendWrapper::DoPutRoot(record);
}

Result<std::vector<RootRecord>> StepBackend::DoScanRoots() {
  if (control_->Chance(control_->refuse_root)) return UnavailableError("injected into ScanRoots");
  return BackendWrapper::DoScanRoots();
}

Status StepBackend::DoClose(TimePoint deadline) {
  control_->holding = false;
  control_->Drain(true);
  control_->ScribbleOrphans();
  return BackendWrapper::DoClose(deadline);
}

}  // namespace terrace
