// Load: what is asked for is checked and becomes a list of steps; see load_state.h.
#include <algorithm>
#include <map>

#include "lib/base/status_macros.h"
#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {
namespace {

// `items` of a whole lease. Tokens before which no boundary of it can be computed from: a full group can stop
// after each chunk, a window group once its window lies in what is loaded, a state only where it was taken.
uint64_t FirstWholeToken(const KvSpec& spec, std::span<const LeaseItem> items) {
  std::map<ObjectPart, const LeaseItem*> first;
  for (const LeaseItem& item : items) first.try_emplace(item.id.part, &item);
  const uint64_t chunk = spec.tokens_per_chunk;
  uint64_t token = 0;
  for (const auto& [part, item] : first) {
    const GroupSpec& group = spec.groups[part.group];
    if (group.rule == Retention::kState) token = std::max(token, item->payload_tokens.end);
    if (group.rule == Retention::kWindow && item->chunk_index > 0) {
      token = std::max(token, (item->chunk_index + (group.window_tokens + chunk - 1) / chunk) * chunk);
    }
  }
  return token;
}

Status CheckLoadRange(const KvSpec& spec, uint64_t matched_tokens, TokenRange range, bool has_views) {
  const uint64_t chunk = spec.tokens_per_chunk;
  const bool may_cut = has_views && spec.cut == Cut::kRanged;
  const bool ends_right = !has_views || may_cut || range.end % chunk == 0 || range.end == matched_tokens;
  if ((range.begin % chunk == 0 || may_cut) && range.begin <= range.end && range.end <= matched_tokens &&
      ends_right) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "token range [" + std::to_string(range.begin) + ", " + std::to_string(range.end) +
      "); allowed: from a multiple of " + std::to_string(chunk) + " to at most the match (" +
      std::to_string(matched_tokens) + "); with views, inside chunks only where the spec's cut is ranged");
}

Status CheckOrder(const KvSpec& spec, const LoadTarget& target, LoadOrder order) {
  if (order == LoadOrder::kChunkMajor) return OkStatus();
  if (order != LoadOrder::kLayerMajor)
    return InvalidArgumentError("LoadOrder " + std::to_string(static_cast<int>(order)) + "; allowed: 1, 2");
  if (spec.payload_form != PayloadForm::kCanonical)
    return InvalidArgumentError("layer-major order of opaque payloads; allowed: canonical ones");
  if (target.is_taken_by_caller())
    return InvalidArgumentError("layer-major order without a sink; allowed: LoadSink.memory or views");
  return OkStatus();
}

}  // namespace

std::shared_ptr<LoadHandle::State> ManagerCore::NewLoad(const Lease& lease, TokenRange range,
                                                        TraceKind kind) {
  auto load = std::make_shared<LoadHandle::State>();
  load->core = shared_from_this();
  load->lease = lease.state();
  if (load->lease) load->root = load->lease->root;
  load->begin_token = range.begin;
  load->report.recompute_from = range.begin;
  if (!traces_.is_on()) return load;
  load->trace = std::make_unique<LoadTrace>(kind);
  RequestTrace& record = load->trace->record();
  if (load->lease) {
    load->lease->Describe(tiers_.size(), record);
    record.root = load->root->root;
    record.request_id = load->lease->request_id;
  }
  record.tokens = record.planned_tokens = range.end - range.begin;
  return load;
}

LoadHandle ManagerCore::Load(const Lease& lease, TokenRange range, const LoadSink& sink, LoadOrder order) {
  std::shared_ptr<LoadHandle::State> load = NewLoad(lease, range, TraceKind::kLoad);
  if (Status status = PlanLoad(*load, range, sink, order); !status.ok()) {
    load->items.clear();
    load->devices.reset();
    load->report.status = std::move(status);
    return LoadHandle(std::move(load));
  }
  StartLoad(load, /*keep=*/false);
  return LoadHandle(std::move(load));
}

Status ManagerCore::PlanLoad(LoadHandle::State& load, TokenRange range, const LoadSink& sink,
                             LoadOrder order) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  if (!load.root) return range.begin == range.end ? OkStatus() : InvalidArgumentError("an empty lease");
  const KvSpec& spec = load.root->spec;
  TERRACE_RETURN_IF_ERROR(CheckLoadRange(spec, load.lease->MatchedTokens(), range, !sink.views.empty()));
  const std::vector<LeaseItem> matched_items = load.lease->Items();
  load.first_whole_token = FirstWholeToken(spec, matched_items);
  for (const LeaseItem& item : matched_items) {
    if (item.matched_tokens.end <= range.begin || item.matched_tokens.begin >= range.end) continue;
    load.items.push_back(item);
    TokenRange& matched = load.items.back().matched_tokens;
    matched.end = std::min(matched.end, range.end);
  }
  if (std::any_of(sink.views.begin(), sink.views.end(), IsOnDevice)) {
    TERRACE_ASSIGN_OR_RETURN(load.devices, UseDevices());
  }
  const DeviceSet* const devices = load.devices ? &load.devices->devices() : nullptr;
  TERRACE_ASSIGN_OR_RETURN(load.target, LoadTarget::Make(sink, spec, load.items, range, devices));
  TERRACE_RETURN_IF_ERROR(CheckOrder(spec, load.target, order));
  load.order = order;
  return OkStatus();
}

void ManagerCore::StartLoad(const std::shared_ptr<LoadHandle::State>& load, bool keep) {
  load->window_bytes = options_.load_window_bytes != 0 ? options_.load_window_bytes : pool_->size_bytes() / 2;
  if (load->root) {
    const KvSpec& spec = load->root->spec;
    const bool by_layer = load->order == LoadOrder::kLayerMajor;
    load->units = by_layer ? PlanLayerMajor(spec, load->items) : PlanChunkMajor(spec, load->items);
    if (by_layer && load->units.empty()) {
      load->taken_layers.end = load->done_layers.end = static_cast<uint32_t>(spec.layers.size());
      load->report.loaded_layers = load->done_layers.end;
    }
  }
  load->slots.resize(load->units.size());
  load->units_left.resize(load->items.size());
  for (const LoadUnit& unit : load->units) ++load->units_left[unit.item];
  uint64_t frame_bytes = 0;
  for (const LeaseItem& item : load->items) frame_bytes += PoolBytes(item.meta.frame_bytes);
  if (load->order == LoadOrder::kLayerMajor && frame_bytes <= load->window_bytes) {
    load->assemblies.resize(load->items.size());
    for (LoadHandle::State::Assembly& assembly : load->assemblies)
      assembly.phase = LoadHandle::State::Assembly::Phase::kNone;
  }
  if (!loads_->Add(load, keep)) {
    load->Cancel(FailedPreconditionError("the manager is closed"));
    load->report.status = FailedPreconditionError("the manager is closed");
    return;
  }
  load->Pump();
  load->ReleaseIfKept();
}

}  // namespace terrace
