// Store of views: the call takes down what is to be stored; see StoreRun for what the executor does then.
#include <algorithm>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/codec/paged_copy.h"
#include "lib/storage/asked.h"
#include "lib/storage/device_use.h"
#include "lib/storage/manager_core.h"
#include "lib/storage/store_run.h"

namespace terrace {

KeptView::KeptView(const PagedKvView& from)
    : view(from), block_table_(from.block_table.begin(), from.block_table.end()) {
  for (const PlaneView& plane : from.planes) planes_.Add(plane);
  view.planes = planes_.planes();
  view.block_table = block_table_;
}

namespace {

// A full group's tokens must all be there; of the others' the range's last chunk, without which nothing could
// go on behind the range.
Status CheckCovers(const SourceView& source, Retention rule, TokenRange range, TokenRange last_chunk) {
  const TokenRange needed = rule == Retention::kFull ? range : source.layout.HeldTokens(last_chunk);
  const TokenRange held = TokensOf(source.kept.view);
  if (held.begin <= needed.begin && needed.end <= held.end) return OkStatus();
  return InvalidArgumentError("a view that holds tokens [" + std::to_string(held.begin) + ", " +
                              std::to_string(held.end) + ") does not cover the range to be stored: [" +
                              std::to_string(needed.begin) + ", " + std::to_string(needed.end) + ")");
}

}  // namespace

Status ManagerCore::TakeDown(const Asked& asked, const TokenView& prompt, std::span<const PagedKvView> views,
                             StoreHandle::State& store) const {
  const TokenRange range = store.range;
  const KvSpec& spec = asked.root->spec;
  TERRACE_RETURN_IF_ERROR(CheckRange(*asked.root, prompt, range));
  for (const PagedKvView& view : views) TERRACE_RETURN_IF_ERROR(view.Validate(spec, false));
  const uint64_t chunk = spec.tokens_per_chunk;
  for (uint64_t begin = range.begin; begin < range.end; begin += chunk) {
    const TokenRange tokens{begin, std::min(begin + chunk, range.end)};
    const bool is_full = tokens.end - tokens.begin == chunk;
    store.chunks.push_back({is_full ? asked.request->keys[begin / chunk] : KeyOfTail(asked, prompt, tokens),
                            asked.ParentOf(begin / chunk), tokens});
  }
  for (const PagedKvView& view : views) {
    const SourceView& source = store.views.emplace_back(view, spec);
    if (store.chunks.empty()) continue;
    TERRACE_RETURN_IF_ERROR(
        CheckCovers(source, spec.groups[view.part.group].rule, range, store.chunks.back().tokens));
  }
  ChunkContent content = SliceContent(prompt, range);
  store.tokens = std::move(content.tokens);
  store.items = std::move(content.items);
  return OkStatus();
}

// Null where no view is of a device. The streams are the caller's, and are touched here alone.
Result<std::shared_ptr<DeviceUse>> ManagerCore::TakeDownDevices(std::span<const PagedKvView> views,
                                                                StoreHandle::State& store) {
  std::shared_ptr<DeviceUse> use;
  if (std::any_of(views.begin(), views.end(), IsOnDevice)) {
    TERRACE_ASSIGN_OR_RETURN(use, UseDevices());
  }
  ViewPlaces places(use ? &use->devices() : nullptr);
  for (size_t i = 0; i < views.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(store.views[i].place, places.PlaceOf(views[i]));
    store.views[i].kept.view.stream.reset();
  }
  return use;
}

Result<StoreHandle> ManagerCore::Store(const ChunkKey& root_key, const TokenView& prompt, TokenRange range,
                                       std::span<const PagedKvView> views, const StoreOptions& options) {
  std::vector<ObjectPart> parts;
  for (const PagedKvView& view : views) parts.push_back(view.part);
  if (parts.empty()) return InvalidArgumentError("a store without views");
  TERRACE_ASSIGN_OR_RETURN(Asked asked, Ask(options.request_id, root_key, prompt, parts));
  auto store = std::make_shared<StoreHandle::State>();
  store->core = shared_from_this();
  store->root = asked.root;
  store->request_id = options.request_id;
  store->range = range;
  const Status status = TakeDown(asked, prompt, views, *store);
  KeepAsked(options.request_id, asked);
  TERRACE_RETURN_IF_ERROR(status);
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceUse> devices, TakeDownDevices(views, *store));
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    if (view_stores_ >= kMaxViewStores)
      return ResourceExhaustedError(std::to_string(view_stores_) + " stores wait for their copy already");
    ++view_stores_;
    store->ticket = next_id_++;
    tickets_.insert(store->ticket);
  }
  store->on_source_free = options.on_source_free;
  auto run =
      std::make_shared<StoreRun>(store, std::move(devices));  // frees the source, whatever becomes of it
  copy_strand_->Post([core = shared_from_this(), run = std::move(run)] { core->stores_->Begin(run); });
  return StoreHandle(std::move(store));
}

}  // namespace terrace
