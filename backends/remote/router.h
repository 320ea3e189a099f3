// Router: which servers an operation goes to, and how their answers become one.
//
//   put     the owners of the object's run (run_key of its meta; else its own key where it begins a run; else
//           where its parent is)
//   match   cut at runs, each run's owner asked, and former servers; joined up to the first gap
//   get     where the last match or put saw the chunk; what is not there, or is not known, is looked for on
//   all erase, clear, flush: all
//
// Threads: every call from every thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/remote/link_operations.h"
#include "backends/remote/membership.h"
#include "backends/remote/place_map.h"
#include "backends/remote/put_order.h"

namespace terrace::remote {

class Router : public std::enable_shared_from_this<Router> {
 public:
  Router(std::shared_ptr<LinkEnvironment> environment, std::shared_ptr<Membership> membership)
      : environment_(std::move(environment)), membership_(std::move(membership)) {}

  void Get(std::vector<GetOp> ops, GetDone done);
  void Put(std::vector<PutOp> ops, PutDone done);
  void Match(PrefixQuery query, MatchDone done);
  void Release(std::string_view lease_token);
  void Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done);
  void Clear(StatusDone done);
  void Flush(StatusDone done);

  LinkEnvironment& environment() const { return *environment_; }
  ServerListRef servers() const { return membership_->servers(); }
  PlaceMap& places() { return places_; }
  // For each id the servers that have it. `status` is an error where a server did not say: what was not found
  // may be there.
  struct Located {
    Status status;
    std::vector<std::vector<LinkRef>> servers;
  };
  void Locate(std::vector<ObjectId> ids, TimePoint deadline, std::function<void(Located)> done);

 private:
  // Starts `each` on every server; one status of all: OK, or the first error.
  void OnAll(const std::function<void(const LinkRef&, StatusDone)>& each, StatusDone done);

  const std::shared_ptr<LinkEnvironment> environment_;
  const std::shared_ptr<Membership> membership_;
  PlaceMap places_;
  PutOrder order_;
};

// Lease tokens as the tier above sees them: the servers' own, each behind the server's serial.
struct ServerLease {
  uint64_t server = 0;
  std::string lease;
};
std::string EncodeLeases(std::span<const ServerLease> leases);
std::vector<ServerLease> DecodeLeases(std::string_view token);  // empty where it is none of ours

}  // namespace terrace::remote
