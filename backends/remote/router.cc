#include "backends/remote/router.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "lib/wire/byte_codec.h"

namespace terrace::remote {
namespace {

constexpr size_t kMaxLeasesInToken = 1024;

Status NoServers() { return UnavailableError("no server is known"); }

// The better of two servers' answers of one erase: it was there if it was there anywhere, and is not surely
// gone where a server did not answer.
void MergeErased(Status& merged, const Status& next) {
  const auto rank = [](const Status& status) {
    if (status.code() == StatusCode::kNotFound) return 0;
    return status.ok() ? 1 : 2;
  };
  if (rank(next) > rank(merged)) merged = next;
}

}  // namespace

std::string EncodeLeases(std::span<const ServerLease> leases) {
  ByteWriter out;
  for (const ServerLease& lease : leases) {
    out.Write<uint64_t>(lease.server);
    out.WriteSized(lease.lease);
  }
  return out.Take();
}

std::vector<ServerLease> DecodeLeases(std::string_view token) {
  std::vector<ServerLease> leases;
  ByteReader in(token);
  while (in.ok() && in.remaining() > 0 && leases.size() < kMaxLeasesInToken) {
    ServerLease lease{.server = in.Read<uint64_t>()};
    lease.lease = std::string(in.ReadSized());
    leases.push_back(std::move(lease));
  }
  if (!in.ok()) leases.clear();
  return leases;
}

void Router::Release(std::string_view lease_token) {
  const ServerListRef list = servers();
  for (ServerLease& lease : DecodeLeases(lease_token)) {
    if (const LinkRef link = list->Find(lease.server)) link->Release(std::move(lease.lease));
  }
}

void Router::Locate(std::vector<ObjectId> ids, TimePoint deadline, std::function<void(Located)> done) {
  struct State {
    std::mutex mutex;
    std::vector<LinkRef> links;
    std::vector<std::vector<bool>> have;  // by server
    size_t num_open = 0;
    Status status;
    std::function<void(Located)> done;
  };
  auto state = std::make_shared<State>();
  state->links = servers()->All();
  state->have.resize(state->links.size());
  state->num_open = state->links.size();
  state->done = std::move(done);
  if (state->links.empty()) return state->done({NoServers(), std::vector<std::vector<LinkRef>>(ids.size())});
  const TimePoint limit =
      std::min(deadline, environment_->clock->Now() + environment_->options.connect_deadline);
  for (size_t s = 0; s < state->links.size(); ++s) {
    StartHave(state->links[s], ids, limit,
              [state, s, n = ids.size()](const Status& status, std::vector<bool> have) {
                {
                  std::lock_guard lock(state->mutex);
                  state->have[s] = std::move(have);
                  if (state->status.ok()) state->status = status;
                  if (--state->num_open > 0) return;
                }
                Located located{state->status, std::vector<std::vector<LinkRef>>(n)};
                for (size_t i = 0; i < n; ++i) {
                  for (size_t each = 0; each < state->links.size(); ++each) {
                    if (state->have[each][i]) located.servers[i].push_back(state->links[each]);
                  }
                }
                state->done(std::move(located));
              });
  }
}

void Router::OnAll(const std::function<void(const LinkRef&, StatusDone)>& each, StatusDone done) {
  struct State {
    std::mutex mutex;
    Status status;
    size_t num_open = 0;
    StatusDone done;
  };
  auto state = std::make_shared<State>();
  const std::vector<LinkRef> links = servers()->All();
  state->num_open = links.size();
  state->done = std::move(done);
  // On a thread of ours: servers that are given up answer inside the call.
  environment_->timers->Post([state, links, each] {
    if (links.empty()) return state->done(NoServers());
    for (const LinkRef& link : links) {
      each(link, [state](const Status& status) {
        {
          std::lock_guard lock(state->mutex);
          if (state->status.ok()) state->status = status;
          if (--state->num_open > 0) return;
        }
        state->done(state->status);
      });
    }
  });
}

void Router::Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  struct State {
    std::mutex mutex;
    std::vector<Status> merged;
  };
  auto state = std::make_shared<State>();
  state->merged.assign(ids.size(), NotFoundError(""));
  const std::vector<ObjectId> awaited = ids;
  order_.After(awaited,
               [self = shared_from_this(), state, ids = std::move(ids), mode, done = std::move(done)] {
                 const auto each = [self, state, ids, mode](const LinkRef& link, StatusDone ended) {
                   StartErase(link, ids, mode, [self, state, link, ended](std::span<const Status> results) {
                     {
                       std::lock_guard lock(state->mutex);
                       for (size_t i = 0; i < results.size(); ++i) MergeErased(state->merged[i], results[i]);
                     }
                     // What is used is asked for before the answer: who erases wants room.
                     link->RefreshStats(self->environment().DeadlineOf(kNoDeadline),
                                        [ended](const Status&) { ended(OkStatus()); });
                   });
                 };
                 self->OnAll(each, [state, done](const Status& status) {
                   if (!status.ok()) std::fill(state->merged.begin(), state->merged.end(), status);
                   done(state->merged);
                 });
               });
}

void Router::Clear(StatusDone done) {
  order_.After({}, [self = shared_from_this(), done = std::move(done)] {
    self->places_.Clear();
    self->OnAll(
        [self](const LinkRef& link, StatusDone ended) {
          StartClear(link, [self, link, ended](const Status& status) {
            if (!status.ok()) return ended(status);
            link->RefreshStats(self->environment().DeadlineOf(kNoDeadline),
                               [ended](const Status&) { ended(OkStatus()); });
          });
        },
        done);
  });
}

void Router::Flush(StatusDone done) {
  order_.After({}, [self = shared_from_this(), done = std::move(done)] { self->OnAll(StartFlush, done); });
}

}  // namespace terrace::remote
