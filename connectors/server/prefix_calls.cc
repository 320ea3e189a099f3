#include <algorithm>

#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"

namespace terrace::server {
namespace {

Duration LeaseOf(uint64_t wanted_ms) {
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(kMaxLease).count();
  return std::chrono::milliseconds(std::min<uint64_t>(wanted_ms, static_cast<uint64_t>(most)));
}

}  // namespace

void Lookup(const Exchange<v1::LookupRequest, v1::LookupResponse>& exchange) {
  Result<PrefixQuery> query = PrefixQueryOf(exchange.request);
  if (!query.ok()) return exchange.call->End(query.status());
  if (exchange.service.draining.load()) return exchange.call->End(OkStatus());  // nothing matches
  query->lease = LeaseOf(exchange.request.lease_ms());
  const SessionRef session = exchange.call->session();
  const PrefixMatch match = session->name_space->store->Match(*query);
  if (!match.status.ok()) return exchange.call->End(match.status);
  v1::LookupResponse& response = exchange.response;
  response.set_matched_tokens(match.matched_tokens);
  for (size_t i = 0; i < match.chunks.size(); ++i) {
    const ChunkPresence& presence = match.chunks[i];
    v1::ChunkPresence* chunk = response.add_chunks();
    const size_t place = i / query->parts.size();
    if (place >= query->keys.size() || query->keys[place] != presence.key) {
      SetDigest(presence.key, chunk->mutable_key());
    }
    chunk->set_present(presence.present);
    chunk->set_frame_bytes(presence.frame_bytes);
  }
  if (!match.lease_token.empty()) {
    response.set_lease(match.lease_token);
    response.set_lease_ms(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(query->lease).count()));
    session->AddLease(match.lease_token);
  }
  exchange.call->End(OkStatus());
}

void Release(const Exchange<v1::ReleaseRequest, v1::ReleaseResponse>& exchange) {
  const SessionRef session = exchange.call->session();
  for (const std::string& lease : exchange.request.leases()) session->ReleaseLease(lease);
  if (const std::shared_ptr<ShmArea> area = session->shm()) {
    for (const uint64_t place : exchange.request.places()) area->ReleasePlace(place);
  }
  exchange.call->End(OkStatus());
}

void Pin(const Exchange<v1::PinRequest, v1::PinResponse>& exchange) {
  const v1::PinRequest& request = exchange.request;
  if (request.name().empty() || request.name().size() > kMaxNameBytes) {
    return exchange.call->End(InvalidArgumentError("name: 1 to 256 bytes are allowed"));
  }
  const Result<PrefixQuery> query = PrefixQueryOf(request.prefix());
  if (!query.ok()) return exchange.call->End(query.status());
  const auto ttl = std::chrono::milliseconds(
      std::min<uint64_t>(request.ttl_ms(), std::chrono::milliseconds(std::chrono::hours(24 * 365)).count()));
  const SessionRef session = exchange.call->session();
  const Result<uint64_t> tokens =
      exchange.service.pins.Pin(*session->tenant, session->name_space, request.name(), *query, ttl);
  if (tokens.ok()) exchange.response.set_pinned_tokens(*tokens);
  exchange.call->End(tokens.status());
}

void Unpin(const Exchange<v1::UnpinRequest, v1::UnpinResponse>& exchange) {
  const SessionRef session = exchange.call->session();
  exchange.response.set_found(
      exchange.service.pins.Unpin(*session->tenant, session->name_space, exchange.request.name()));
  exchange.call->End(OkStatus());
}

}  // namespace terrace::server
