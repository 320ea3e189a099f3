// CallGuard: who calls, whether they may, and whether it is too much; the first thing of every call. A token
// is looked at here and nowhere else, and never stands in a message or a log line.
//
// Threads: every call from every thread.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "connectors/server/session_table.h"
#include "connectors/server/tenant_table.h"
#include "terrace/log_sink.h"
#include "terrace/status.h"

namespace grpc {
class CallbackServerContext;
}

namespace terrace::server {

enum class Right : uint8_t { kNone, kRead, kWrite, kAdmin };

class CallGuard;

// Runs a step of a call: what it throws becomes kInternal and a line in the log.
template <typename Step>
Status RunGuarded(LogSink& log, std::string_view method, const Step& step) {
  std::string what;
  try {
    step();
    return OkStatus();
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception without a name";
  }
  log.Log(LogLevel::kError, "server", std::string(method) + ": " + what);
  return InternalError("the call failed inside the server");
}

// A call that was let in, until it is destroyed.
class AdmittedCall {
 public:
  ~AdmittedCall();
  AdmittedCall(const AdmittedCall&) = delete;
  AdmittedCall& operator=(const AdmittedCall&) = delete;

  const TenantRef tenant;
  SessionRef session;  // of calls that have one, once Join found it

 private:
  friend class CallGuard;
  AdmittedCall(CallGuard* guard, TenantRef who, std::shared_ptr<TenantUse> use);
  CallGuard* const guard_;
  const std::shared_ptr<TenantUse> use_;
};

class CallGuard {
 public:
  CallGuard(std::shared_ptr<TenantTable> tenants, SessionTable* sessions)
      : tenants_(std::move(tenants)), sessions_(sessions) {}
  // kUnauthenticated, kPermissionDenied, kResourceExhausted.
  Result<std::unique_ptr<AdmittedCall>> Admit(const grpc::CallbackServerContext& context, Right right);
  // Gives the call its session. kFailedPrecondition: there is none, or it is another tenant's.
  Status Join(AdmittedCall& call, std::string_view session_id) const;
  // Whether the tenant table, read anew meanwhile, leaves the tenant what it had.
  bool StillLetsIn(const Tenant& tenant) const { return tenants_->StillHas(tenant); }
  size_t calls_in_flight() const { return in_flight_.load(); }

 private:
  friend class AdmittedCall;
  const std::shared_ptr<TenantTable> tenants_;
  SessionTable* const sessions_;
  std::atomic<size_t> in_flight_{0};
};

}  // namespace terrace::server
