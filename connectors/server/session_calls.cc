#include <algorithm>

#include "connectors/server/message_checks.h"
#include "connectors/server/service_calls.h"

namespace terrace::server {
namespace {

constexpr size_t kMaxClientNameBytes = 128;

template <typename Array>
void SetArray(const Array& bytes, std::string* out) {
  out->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Unknown values count as unspecified, which asks for nothing.
bool Wants(const v1::OpenSessionRequest& request, v1::DataPath path) {
  return std::find(request.paths().begin(), request.paths().end(), path) != request.paths().end();
}

void OfferBulk(ServiceContext& service, const Session& session, uint32_t wanted, v1::BulkOffer* offer) {
  offer->set_tcp_port(service.bulk->tcp_port);
  offer->set_unix_path(service.bulk->unix_path);
  offer->set_tls(service.bulk->tls);
  const uint32_t num_tokens = std::clamp(wanted, 1u, std::max(1u, service.options.bulk_connections));
  for (uint32_t i = 0; i < num_tokens; ++i) {
    SetArray(service.sessions.MakeToken(session.id, SessionTable::Purpose::kBulk), offer->add_tokens());
  }
}

}  // namespace

void OpenSession(const Exchange<v1::OpenSessionRequest, v1::OpenSessionResponse>& exchange) {
  ServiceContext& service = exchange.service;
  const v1::OpenSessionRequest& request = exchange.request;
  if (service.draining.load()) return exchange.call->End(UnavailableError("the server is draining"));
  if (request.client_name().size() > kMaxClientNameBytes ||
      request.client_version().size() > kMaxClientNameBytes) {
    return exchange.call->End(InvalidArgumentError("client_name, client_version: at most 128 bytes"));
  }
  const TenantRef tenant = exchange.call->tenant();
  NamespaceRef name_space = service.namespaces->Find(tenant->name_space);
  if (!name_space || !name_space->store) {
    return exchange.call->End(UnavailableError("the tenant's namespace has no store at present"));
  }
  const uint64_t largest_frame_bytes = name_space->store->largest_frame_bytes();
  const Result<SessionRef> opened = service.sessions.Open(tenant, std::move(name_space));
  if (!opened.ok()) {
    service.metrics.CountRefusal("sessions");
    return exchange.call->End(opened.status());
  }
  const Session& session = **opened;
  v1::OpenSessionResponse& response = exchange.response;
  SetArray(session.id, response.mutable_session_id());
  response.set_minor_version(kMinorVersion);
  response.set_server_version(TERRACE_VERSION);
  response.set_tenant(tenant->name);
  response.mutable_limits()->set_max_frame_bytes(largest_frame_bytes);
  response.mutable_limits()->set_max_batch(kMaxBatch);
  response.mutable_limits()->set_max_inflight_bytes(tenant->limits.max_inflight_bytes);
  response.mutable_limits()->set_max_lease_ms(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(kMaxLease).count()));
  response.set_session_ttl_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(service.options.sessions.session_ttl).count()));
  SetArray(service.server_id, response.mutable_server_id());
  if (service.bulk && Wants(request, v1::DATA_PATH_BULK)) {
    OfferBulk(service, session, request.bulk_connections(), response.mutable_bulk());
  }
  // Who maps the pool reads all of the namespace.
  const bool may_map = tenant->may_read && session.name_space->store->shared_pool().has_value();
  if (service.shm_path_for && may_map && Wants(request, v1::DATA_PATH_SHM)) {
    const std::string path = service.shm_path_for(request.host_id());
    if (!path.empty()) {
      response.mutable_shm()->set_unix_path(path);
      SetArray(service.sessions.MakeToken(session.id, SessionTable::Purpose::kShm),
               response.mutable_shm()->mutable_token());
    }
  }
  exchange.call->End(OkStatus());
}

void CloseSession(const Exchange<v1::CloseSessionRequest, v1::CloseSessionResponse>& exchange) {
  exchange.service.sessions.Close(exchange.call->session()->id);
  exchange.call->End(OkStatus());
}

void Stats(const Exchange<v1::StatsRequest, v1::StatsResponse>& exchange) {
  const SessionRef session = exchange.call->session();
  for (const TierUsage& usage : session->name_space->store->Usage()) {
    v1::TierStats* tier = exchange.response.add_tiers();
    tier->set_name(usage.name);
    tier->set_capacity_bytes(usage.capacity_bytes);
    tier->set_used_bytes(usage.used_bytes);
    tier->set_objects(usage.objects);
  }
  exchange.response.set_sessions(exchange.service.sessions.CountOf(*session->tenant));
  exchange.response.set_inflight_bytes(exchange.service.sessions.UseOf(*session->tenant)->inflight_bytes());
  if (session->name_space->events) {
    exchange.response.set_next_sequence(session->name_space->events->last_sequence() + 1);
  }
  const auto uptime = Clock::Real()->Now() - exchange.service.started;
  exchange.response.set_uptime_ms(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(uptime).count()));
  exchange.call->End(OkStatus());
}

}  // namespace terrace::server
