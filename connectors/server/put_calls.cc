#include <algorithm>

#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"

namespace terrace::server {
namespace {

// A transfer for an object that the store lacks.
Status Begin(ServiceContext& service, const SessionRef& session, PutNames names, v1::PutNeed& need) {
  const uint64_t frame_bytes = names.meta.frame_bytes;
  if (!session->TakeBytes(frame_bytes)) {
    service.metrics.CountRefusal("bytes_in_flight");
    return ResourceExhaustedError("more bytes in flight than the tenant may have");
  }
  Result<std::shared_ptr<ArrivingFrame>> frame = session->name_space->store->Allocate(frame_bytes);
  if (!frame.ok()) {
    session->GiveBytes(frame_bytes);
    service.metrics.CountRefusal("no_room");
    return frame.status();
  }
  PutTransfer transfer;
  transfer.id = names.id;
  transfer.meta = std::move(names.meta);
  transfer.frame = std::move(*frame);
  if (const std::shared_ptr<ShmArea> area = session->shm()) {
    // Without room there the bytes come on the streams.
    const Result<uint64_t> offset = area->AllocateStaging(frame_bytes);
    if (offset.ok()) transfer.staging_offset = *offset;
  }
  const std::optional<uint64_t> staging_offset = transfer.staging_offset;
  const uint64_t number = session->AddTransfer(std::move(transfer));
  if (number == 0)
    return ResourceExhaustedError("the session has ended, or holds as many transfers as it may");
  need.set_transfer(number);
  need.set_staged(staging_offset.has_value());
  need.set_staging_offset(staging_offset.value_or(0));
  return OkStatus();
}

Status PublishOne(ServiceContext& service, Session& session, PutTransfer& put) {
  if (put.staging_offset) {
    const std::shared_ptr<ShmArea> area = session.shm();
    if (!area) return UnavailableError("the session's shared memory is gone");
    if (const Status copied = area->CopyOut(*put.staging_offset, *put.frame); !copied.ok()) return copied;
  }
  const uint64_t rest = put.meta.frame_bytes - std::min(put.meta.frame_bytes, put.streamed_bytes);
  service.metrics.AddBytes(ByteDirection::kIn, "streams", session.tenant->name, put.streamed_bytes);
  service.metrics.AddBytes(ByteDirection::kIn, put.staging_offset ? "shm" : "bulk", session.tenant->name,
                           rest);
  return session.name_space->store->Publish(put.id, put.meta, put.frame);
}

using CommitExchange = Exchange<v1::CommitPutRequest, v1::CommitPutResponse>;

void Publish(const CommitExchange& exchange, const SessionRef& session, std::vector<Status>& arrived,
             std::vector<PutTransfer>& taken) {
  for (size_t i = 0; i < arrived.size(); ++i) {
    if (arrived[i].ok()) arrived[i] = PublishOne(exchange.service, *session, taken[i]);
    taken[i] = PutTransfer{};  // its bytes count no longer
    if (!arrived[i].ok() && arrived[i].code() != StatusCode::kAlreadyExists) {
      exchange.service.metrics.CountRefusal(StatusCodeName(arrived[i].code()));
    }
    SetResult(arrived[i], exchange.response.add_results());
  }
  exchange.call->End(OkStatus());
}

// So long before the call's deadline the wait for bytes ends, so that what has arrived is published and the
// caller hears of it.
Duration MarginOf(TimePoint deadline) {
  const Duration left = deadline - Clock::Real()->Now();
  return std::clamp<Duration>(left / 10, Duration::zero(), std::chrono::milliseconds(200));
}

}  // namespace

void BeginPut(const Exchange<v1::BeginPutRequest, v1::BeginPutResponse>& exchange) {
  if (static_cast<uint32_t>(exchange.request.objects_size()) > kMaxBatch) {
    return exchange.call->End(InvalidArgumentError("objects: at most " + std::to_string(kMaxBatch)));
  }
  const SessionRef session = exchange.call->session();
  FrameStore& store = *session->name_space->store;
  const uint64_t largest = store.largest_frame_bytes();
  const bool draining = exchange.service.draining.load();
  std::vector<Result<PutNames>> puts;
  std::vector<ObjectId> ids;
  for (const v1::PutObject& object : exchange.request.objects()) {
    puts.push_back(draining ? Result<PutNames>(UnavailableError("the server is draining"))
                            : PutNamesOf(object, largest));
    if (puts.back().ok()) ids.push_back(puts.back()->id);
  }
  const std::vector<bool> has = store.Has(ids);
  absl::flat_hash_set<ObjectId, ObjectIdHash> begun;
  size_t next = 0;
  for (Result<PutNames>& put : puts) {
    v1::PutNeed& need = *exchange.response.add_needs();
    if (!put.ok()) {
      exchange.service.metrics.CountRefusal(StatusCodeName(put.status().code()));
      SetResult(put.status(), need.mutable_result());
      continue;
    }
    const bool is_there = has[next++] || !begun.insert(put->id).second;
    SetResult(is_there ? AlreadyExistsError("") : Begin(exchange.service, session, std::move(*put), need),
              need.mutable_result());
  }
  exchange.call->End(OkStatus());
}

void CommitPut(const CommitExchange& exchange) {
  const v1::CommitPutRequest& request = exchange.request;
  if (static_cast<uint32_t>(request.transfers_size()) > kMaxBatch ||
      static_cast<uint32_t>(request.abandoned_size()) > kMaxBatch) {
    return exchange.call->End(
        InvalidArgumentError("transfers, abandoned: at most " + std::to_string(kMaxBatch)));
  }
  const SessionRef session = exchange.call->session();
  for (const uint64_t transfer : request.abandoned()) session->DropTransfer(transfer);
  const std::vector<uint64_t> transfers(request.transfers().begin(), request.transfers().end());
  exchange.call->OnCancelled([session, transfers] {
    for (const uint64_t transfer : transfers) session->DropTransfer(transfer);
  });
  const TimePoint deadline = exchange.call->deadline() - MarginOf(exchange.call->deadline());
  session->TakeWhole(
      transfers, deadline, [exchange, session](std::vector<Status> arrived, std::vector<PutTransfer> taken) {
        const bool posted = exchange.service.publishing.Post(
            [exchange, session, arrived = std::move(arrived), taken = std::move(taken)]() mutable {
              exchange.call->Guarded([&] { Publish(exchange, session, arrived, taken); });
            });
        if (!posted) {
          exchange.call->End(ResourceExhaustedError("too many commits wait already"));
        }
      });
}

}  // namespace terrace::server
