#include "lib/storage/store_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/codec/paged_copy.h"
#include "lib/device/eventual_fence.h"
#include "lib/storage/prefix_match.h"

namespace terrace {
namespace {

// What a copy is to the window: the buffer that it fills.
uint64_t BufferBytes(uint64_t payload_bytes) {
  return RoundUp(kTierPageBytes + kFrameAlignment + payload_bytes, kPoolUnitBytes);
}

}  // namespace

// In the order of the store: one that was there, one that is being copied or was, the end of a chunk, or the
// error that ended the store.
struct StoreRun::Object {
  std::unique_ptr<WritableChunk::State> chunk;
  bool is_present = false;
  uint64_t end_token = 0;  // of the chunk that ends here
  bool is_done = true;
  Status status;
};

// A copy that a device was given. Its end gives the place in the window back; where nobody ran it, nothing
// else would go on either.
struct StoreRun::CopyEnd {
  CopyEnd(std::shared_ptr<StoreRun> r, std::shared_ptr<Object> o, uint64_t b)
      : run(std::move(r)), queue(run->core().stores_), object(std::move(o)), bytes(BufferBytes(b)) {
    queue->Take(bytes);
  }
  CopyEnd(const CopyEnd&) = delete;
  CopyEnd& operator=(const CopyEnd&) = delete;
  ~CopyEnd() {
    if (has_run) return;
    queue->GiveBack(bytes);
    queue->DropAll();
  }
  void Run() {
    has_run = true;
    queue->GiveBack(bytes);
    run->OnCopied(*object, status);
    queue->Pump();
  }

  const std::shared_ptr<StoreRun> run;
  const std::shared_ptr<StoreQueue> queue;
  const std::shared_ptr<Object> object;
  const uint64_t bytes;
  Status status;
  bool has_run = false;
};

StoreRun::StoreRun(std::shared_ptr<StoreHandle::State> store, std::shared_ptr<DeviceUse> devices)
    : store_(std::move(store)), devices_(std::move(devices)) {
  ticket_end_.emplace(store_->core, store_->ticket);
}

// No copy is running any more: each one that was enqueued holds the run.
StoreRun::~StoreRun() {
  if (!is_freed_) {
    if (!ready_.empty()) report_.stored_tokens = ready_.front()->tokens.begin - store_->range.begin;
    report_.stored_objects -= ready_.size();
    report_.status = CancelledError("the executor dropped the store");
  }
  objects_.clear();
  ready_.clear();
  TellFree();
  std::lock_guard lock(core().mutex_);
  --core().view_stores_;
}

void StoreRun::TellFree() {
  if (std::exchange(is_freed_, true)) return;
  Trace();
  for (SourceView& view : store_->views) view.place.enqueued.reset();
  {
    std::lock_guard lock(store_->mutex);
    store_->report = report_;
    store_->last_copies.clear();
  }
  store_->Free();
}

void StoreRun::Trace() {
  if (!tracer_) return;
  tracer_->Step("copy");
  if (RequestTrace* trace = tracer_->trace()) {
    trace->request_id = store_->request_id;
    trace->root = store_->root->root;
    trace->bytes = copied_bytes_;
    trace->tokens = trace->planned_tokens = store_->range.end - store_->range.begin;
    trace->done_tokens = report_.stored_tokens;
    trace->outcome = report_.status.code();
    trace->why_not = report_.status.ok() ? "" : report_.status.ToString();
  }
  tracer_.reset();
}

void StoreRun::End(Status status) {
  if (is_enqueued_) return;
  if (!status.ok()) {
    objects_.push_back(std::make_shared<Object>());
    objects_.back()->status = std::move(status);
  }
  is_enqueued_ = true;
  std::lock_guard lock(store_->mutex);
  store_->is_enqueued = true;
  store_->changed.notify_all();
}

bool StoreRun::Enqueue(StoreQueue& queue) {
  if (!tracer_) tracer_.emplace(core().traces_, TraceKind::kStore);
  while (!is_enqueued_) {
    if (has_failed_ || next_chunk_ == store_->chunks.size()) {
      End(OkStatus());
    } else if (next_view_ == 0 && store_->IsCancelled()) {
      End(CancelledError("the store was cancelled"));
    } else if (!EnqueueNext(queue)) {
      return false;
    }
    Settle();
    if (queue.IsFirst(*this)) PublishReady();
  }
  return true;
}

bool StoreRun::EnqueueNext(StoreQueue& queue) {
  const ViewChunk& chunk = store_->chunks[next_chunk_];
  const SourceView& view = store_->views[next_view_];
  const TokenRange held = view.layout.HeldTokens(chunk.tokens);
  const uint64_t payload_bytes = view.layout.bytes_per_token() * (held.end - held.begin);
  if (view.place.copier != nullptr && !queue.HasRoom(BufferBytes(payload_bytes))) return false;
  if (Status status = EnqueueObject(view, chunk); !status.ok()) {
    End(std::move(status));
    return true;
  }
  if (++next_view_ < store_->views.size()) return true;
  objects_.push_back(std::make_shared<Object>());
  objects_.back()->end_token = chunk.tokens.end;
  next_view_ = 0;
  ++next_chunk_;
  return true;
}

// A window's last chunks are needed for the end of the range; earlier ones, and of a state all that the view
// does not hold, are of no use to it.
Result<bool> StoreRun::IsHeld(const SourceView& source, const ViewChunk& chunk) const {
  const PagedKvView& view = source.kept.view;
  const KvSpec& spec = store_->root->spec;
  const GroupSpec& group = spec.groups[view.part.group];
  if (group.rule == Retention::kFull || CheckHeld(view, source.layout.HeldTokens(chunk.tokens)).ok())
    return true;
  if (group.rule == Retention::kState) return false;
  const uint64_t chunk_index = chunk.tokens.begin / spec.tokens_per_chunk;
  const uint64_t num_full = store_->range.end / spec.tokens_per_chunk;
  if (chunk_index + WindowChunks(group, spec.tokens_per_chunk) < num_full) return false;
  if (core().IsStoredOrComing({chunk.key, view.part})) return false;
  return InvalidArgumentError(
      "tokens [" + std::to_string(chunk.tokens.begin) + ", " + std::to_string(chunk.tokens.end) +
      ") are neither stored nor in the view of group " + std::to_string(view.part.group) +
      ", whose window needs them at the range's end");
}

Status StoreRun::EnqueueObject(const SourceView& view, const ViewChunk& chunk) {
  TERRACE_ASSIGN_OR_RETURN(const bool is_held, IsHeld(view, chunk));
  if (!is_held) return OkStatus();
  const KvSpec& spec = store_->root->spec;
  const TokenView prompt(store_->tokens, store_->items);
  const PromptSlice content(
      prompt, {chunk.tokens.begin - store_->range.begin, chunk.tokens.end - store_->range.begin});
  const ObjectPart part = view.layout.part();
  PrepareResult prepared;
  TERRACE_RETURN_IF_ERROR(core().PrepareOne(
      {*store_->root, {chunk.key, part}, chunk.parent, chunk.tokens, content, store_->root->division},
      [&](TokenRange tokens, ObjectPart p) -> Result<uint64_t> {
        return spec.PayloadBytes(p, static_cast<uint32_t>(tokens.end - tokens.begin));
      },
      prepared));
  if (!prepared.chunks[0].writable) {
    objects_.push_back(std::make_shared<Object>());
    objects_.back()->is_present = true;
    return OkStatus();
  }
  WritableChunk writable = *std::move(prepared.chunks[0].writable);
  const MutableBytes payload = writable.payload();
  const TokenRange tokens = view.layout.HeldTokens(chunk.tokens);
  const PagedCopy copy{.layout = view.layout, .view = view.kept.view, .payload_tokens = tokens};
  const LayerSpan layers{0, view.layout.num_layers()};
  auto object = std::make_shared<Object>();
  if (view.place.copier == nullptr) {
    TERRACE_RETURN_IF_ERROR(GatherLayers(copy, tokens, layers, payload));
    object->chunk = std::move(writable.state());
    objects_.push_back(std::move(object));
  } else {
    TERRACE_ASSIGN_OR_RETURN(const KernelCopy kernel,
                             MakeKernelCopy(copy, tokens, layers, CopyDirection::kToHost, payload.data()));
    object->chunk = std::move(writable.state());
    objects_.push_back(object);
    EnqueueCopy(view, kernel, object);
  }
  copied_bytes_ += payload.size();
  return OkStatus();
}

void StoreRun::EnqueueCopy(const SourceView& view, const KernelCopy& copy,
                           const std::shared_ptr<Object>& object) {
  constexpr CopyDirection kDirection = CopyDirection::kToHost;
  DeviceCopier& copier = *view.place.copier;
  const uint64_t bytes = PagedCopyBytes(copy.args);
  object->is_done = false;
  FenceEnd end;
  if (Result<std::shared_ptr<Event>> done = copier.Copy(copy.args, view.place.enqueued.get()); done.ok()) {
    end.event = *std::move(done);
  } else {
    devices_->CountRefused(copier, kDirection);
    object->status = done.status();
    has_failed_ = true;
    end = FenceOf(copier, kDirection);
  }
  {
    std::lock_guard lock(store_->mutex);
    if (end.is_marked) store_->last_copies[&copier] = end.event;
    store_->has_unmarked_copies |= !end.is_marked;
  }
  auto copy_end = std::make_shared<CopyEnd>(shared_from_this(), object, bytes);
  devices_->Await(copier, kDirection, bytes, std::move(end.event),
                  [copy_end = std::move(copy_end)](const Status& status) mutable {
                    copy_end->status = status;
                    Strand& strand = *copy_end->run->core().copy_strand_;
                    strand.Post([copy_end = std::move(copy_end)] { copy_end->Run(); });
                  });
}

void StoreRun::OnCopied(Object& object, const Status& status) {
  object.is_done = true;
  if (object.status.ok()) object.status = status;
  if (!object.status.ok()) {
    has_failed_ = true;
    AbandonFrom(object);
  }
  Settle();
}

// Others may store these chunks at once; the buffers stay with what a device is still doing to them.
void StoreRun::AbandonFrom(const Object& first) {
  auto at = std::find_if(objects_.begin(), objects_.end(),
                         [&](const std::shared_ptr<Object>& object) { return object.get() == &first; });
  for (; at != objects_.end(); ++at) {
    const Object& object = **at;
    if (!object.chunk || object.is_done || object.chunk->store_id == 0) continue;
    core().pool_->MarkOrphan(object.chunk->buffer);
    core().Abandon(object.chunk->id, std::exchange(object.chunk->store_id, 0));
  }
}

void StoreRun::Settle() {
  while (!objects_.empty() && objects_.front()->is_done) {
    const std::shared_ptr<Object> object = std::move(objects_.front());
    objects_.pop_front();
    if (!report_.status.ok()) continue;
    if (!object->status.ok()) {
      report_.status = object->status;
    } else if (object->chunk) {
      ready_.push_back(std::move(object->chunk));
      ++report_.stored_objects;
    } else if (object->is_present) {
      ++report_.present_objects;
    } else {
      report_.stored_tokens = object->end_token - store_->range.begin;
    }
  }
  if (is_enqueued_ && objects_.empty()) TellFree();
}

void StoreRun::PublishReady() {
  while (!ready_.empty()) {
    core().PostPublish(std::move(ready_.front()), store_->ticket);
    ready_.pop_front();
  }
}

}  // namespace terrace
