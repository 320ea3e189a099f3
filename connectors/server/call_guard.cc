#include "connectors/server/call_guard.h"

#include <grpcpp/server_context.h>

#include "connectors/server/message_checks.h"

namespace terrace::server {
namespace {

constexpr std::string_view kScheme = "Bearer ";

std::string_view BearerOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) return {};
  const std::string_view value(found->second.data(), found->second.size());
  return value.starts_with(kScheme) ? value.substr(kScheme.size()) : std::string_view{};
}

bool Has(const Tenant& tenant, Right right) {
  switch (right) {
    case Right::kNone:
      return true;
    case Right::kRead:
      return tenant.may_read;
    case Right::kWrite:
      return tenant.may_write;
    case Right::kAdmin:
      return tenant.may_admin;
  }
  return false;
}

}  // namespace

AdmittedCall::AdmittedCall(CallGuard* guard, TenantRef who, std::shared_ptr<TenantUse> use)
    : tenant(std::move(who)), guard_(guard), use_(std::move(use)) {
  ++guard_->in_flight_;
}

AdmittedCall::~AdmittedCall() {
  if (session) session->Touch();
  use_->EndCall();
  --guard_->in_flight_;
}

Result<std::unique_ptr<AdmittedCall>> CallGuard::Admit(const grpc::CallbackServerContext& context,
                                                       Right right) {
  TenantRef tenant = tenants_->Find(BearerOf(context));
  if (!tenant) return Status(StatusCode::kUnauthenticated, "no token, or one that is not known here");
  if (!Has(*tenant, right)) {
    return Status(StatusCode::kPermissionDenied, "the tenant lacks the right for this call");
  }
  std::shared_ptr<TenantUse> use = sessions_->UseOf(*tenant);
  if (const Status status = use->BeginCall(tenant->limits, Clock::Real()->Now()); !status.ok()) return status;
  return std::unique_ptr<AdmittedCall>(new AdmittedCall(this, std::move(tenant), std::move(use)));
}

Status CallGuard::Join(AdmittedCall& call, std::string_view session_id) const {
  const Result<SessionId> id = SessionIdOf(session_id);
  if (!id.ok()) return id.status();
  call.session = sessions_->Find(*id, call.tenant);
  if (!call.session) return FailedPreconditionError("no such session: open one anew");
  call.session->Touch();
  return OkStatus();
}

}  // namespace terrace::server
