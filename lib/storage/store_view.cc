// Store of views: the call takes down what is to be stored, the executor copies it out of the engine's pages
// and commits it chunk by chunk.
#include <algorithm>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/codec/paged_copy.h"
#include "lib/storage/asked.h"
#include "lib/storage/manager_core.h"
#include "lib/storage/store_state.h"

namespace terrace {

KeptView::KeptView(const PagedKvView& from)
    : view(from),
      planes_(from.planes.begin(), from.planes.end()),
      layer_bases_(from.planes.size()),
      block_table_(from.block_table.begin(), from.block_table.end()) {
  for (size_t p = 0; p < planes_.size(); ++p) {
    layer_bases_[p].assign(planes_[p].layer_bases.begin(), planes_[p].layer_bases.end());
    planes_[p].layer_bases = layer_bases_[p];
  }
  view.planes = planes_;
  view.block_table = block_table_;
}

void StoreHandle::State::Free() {
  std::function<void(const StoreReport&)> call;
  StoreReport final_report;
  {
    std::lock_guard lock(mutex);
    if (is_free) return;
    is_free = true;
    call = std::move(on_source_free);
    final_report = report;
    changed.notify_all();
  }
  if (!call) return;
  try {
    call(final_report);
  } catch (...) {
    core->callback_exceptions_->Add();
  }
}

// Frees the source, and the store's place among those that wait, whatever becomes of the work: run, thrown,
// or dropped unrun by an executor that ended.
struct ManagerCore::SourceEnd {
  explicit SourceEnd(std::shared_ptr<StoreHandle::State> s) : store(std::move(s)) {}
  SourceEnd(const SourceEnd&) = delete;
  SourceEnd& operator=(const SourceEnd&) = delete;
  ~SourceEnd() {
    StopWaiting();
    store->Free();
  }
  // The copy begins, or never will.
  void StopWaiting() {
    if (!std::exchange(is_waiting, false)) return;
    std::lock_guard lock(store->core->mutex_);
    --store->core->view_stores_;
  }
  const std::shared_ptr<StoreHandle::State> store;
  bool is_waiting = true;
};

Result<StoreHandle> ManagerCore::Store(const ChunkKey& root_key, const TokenView& prompt, TokenRange range,
                                       std::span<const PagedKvView> views, const StoreOptions& options) {
  std::vector<ObjectPart> parts;
  for (const PagedKvView& view : views) parts.push_back(view.part);
  if (parts.empty()) return InvalidArgumentError("a store without views");
  TERRACE_ASSIGN_OR_RETURN(Asked asked, Ask(options.request_id, root_key, prompt, parts));
  auto store = std::make_shared<StoreHandle::State>();
  const auto take_down = [&]() -> Status {
    TERRACE_RETURN_IF_ERROR(CheckRange(*asked.root, prompt, range));
    for (const PagedKvView& view : views) {
      TERRACE_RETURN_IF_ERROR(view.Validate(asked.root->spec, false));
      if (range.begin < view.first_token || range.end > view.first_token + view.num_tokens)
        return InvalidArgumentError("a view that holds tokens [" + std::to_string(view.first_token) + ", " +
                                    std::to_string(view.first_token + view.num_tokens) +
                                    ") does not cover the range to be stored");
      store->views.emplace_back(view);
    }
    const uint64_t chunk = asked.root->spec.tokens_per_chunk;
    for (uint64_t begin = range.begin; begin < range.end; begin += chunk) {
      const TokenRange tokens{begin, std::min(begin + chunk, range.end)};
      const bool is_full = tokens.end - tokens.begin == chunk;
      store->chunks.push_back(
          {is_full ? asked.request->hasher.full_keys()[begin / chunk] : KeyOfTail(asked, prompt, tokens),
           asked.ParentOf(begin / chunk), tokens});
    }
    return OkStatus();
  };
  Status status = take_down();
  if (status.ok()) {
    ChunkContent content = SliceContent(prompt, range);
    store->tokens = std::move(content.tokens);
    store->items = std::move(content.items);
  }
  KeepAsked(options.request_id, asked);
  TERRACE_RETURN_IF_ERROR(status);
  store->core = shared_from_this();
  store->root = asked.root;
  store->request_id = options.request_id;
  store->range = range;
  store->on_source_free = options.on_source_free;
  store->report.status = CancelledError("the executor dropped the store");  // unless it runs
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    if (view_stores_ >= kMaxViewStores)
      return ResourceExhaustedError(std::to_string(view_stores_) + " stores wait for their copy already");
    ++view_stores_;
    store->ticket = next_id_++;
    tickets_.insert(store->ticket);
  }
  copy_strand_->Post([core = shared_from_this(), store,
                      ticket = std::make_shared<TicketEnd>(shared_from_this(), store->ticket),
                      end = std::make_shared<SourceEnd>(store)] {
    end->StopWaiting();
    core->CopyAndCommit(store);
  });
  return StoreHandle(std::move(store));
}

void ManagerCore::CopyAndCommit(const std::shared_ptr<StoreHandle::State>& store) {
  RequestTracer tracer(traces_, TraceKind::kStore);
  StoreReport report;
  const TokenView prompt(store->tokens, store->items);
  for (const ViewChunk& chunk : store->chunks) {
    if (store->IsCancelled()) report.status = CancelledError("the store was cancelled");
    const TokenRange own{chunk.tokens.begin - store->range.begin, chunk.tokens.end - store->range.begin};
    const PromptSlice content(prompt, own);
    for (size_t i = 0; i < store->views.size() && report.status.ok(); ++i) {
      report.status = CopyOne(*store, chunk, content, i, report);
    }
    if (!report.status.ok()) break;
    report.stored_tokens = chunk.tokens.end - store->range.begin;
  }
  tracer.Step("copy");
  if (RequestTrace* trace = tracer.trace()) {
    trace->request_id = store->request_id;
    trace->root = store->root->root;
    trace->bytes = store->copied_bytes;
    trace->tokens = trace->planned_tokens = store->range.end - store->range.begin;
    trace->done_tokens = report.stored_tokens;
    trace->outcome = report.status.code();
    trace->why_not = report.status.ok() ? "" : report.status.ToString();
  }
  {
    std::lock_guard lock(store->mutex);
    store->report = report;
  }
  store->Free();
}

Status ManagerCore::CopyOne(StoreHandle::State& store, const ViewChunk& chunk, const PromptSlice& content,
                            size_t view_index, StoreReport& report) {
  const PagedKvView& view = store.views[view_index].view;
  const KvSpec& spec = store.root->spec;
  PrepareResult prepared;
  const PayloadSizes sizes = [&](TokenRange tokens, ObjectPart part) -> Result<uint64_t> {
    return spec.PayloadBytes(part, static_cast<uint32_t>(tokens.end - tokens.begin));
  };
  TERRACE_RETURN_IF_ERROR(PrepareOne(
      {*store.root, {chunk.key, view.part}, chunk.parent, chunk.tokens, content, store.root->division}, sizes,
      prepared));
  if (!prepared.chunks[0].writable) {
    ++report.present_objects;
    return OkStatus();
  }
  WritableChunk writable = *std::move(prepared.chunks[0].writable);
  const PayloadLayout layout(spec, view.part);
  TERRACE_RETURN_IF_ERROR(
      GatherLayers({layout, view, chunk.tokens}, chunk.tokens, {0, layout.num_layers()}, writable.payload()));
  store.copied_bytes += writable.payload().size();
  PostPublish(std::move(writable.state()), store.ticket);
  ++report.stored_objects;
  return OkStatus();
}

StoreHandle::StoreHandle() = default;
StoreHandle::~StoreHandle() = default;
StoreHandle::StoreHandle(StoreHandle&&) noexcept = default;
StoreHandle& StoreHandle::operator=(StoreHandle&&) noexcept = default;
StoreHandle::StoreHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

StoreReport StoreHandle::Wait(TimePoint deadline) {
  if (!state_) return StoreReport{.status = FailedPreconditionError("an empty store handle")};
  std::unique_lock lock(state_->mutex);
  const auto is_free = [&] { return state_->is_free; };
  if (deadline == kNoDeadline) {
    state_->changed.wait(lock, is_free);
  } else if (!state_->changed.wait_until(lock, deadline, is_free)) {
    return StoreReport{.status = DeadlineExceededError("the views' memory is still being read")};
  }
  return state_->report;
}

void StoreHandle::Cancel() {
  if (!state_ || state_->core->IsForkedChild()) return;
  std::lock_guard lock(state_->mutex);
  state_->is_cancelled = true;
}

}  // namespace terrace
