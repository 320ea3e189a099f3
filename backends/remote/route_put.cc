// Puts over several servers.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "backends/remote/placement.h"
#include "backends/remote/put_batch.h"
#include "backends/remote/router.h"

namespace terrace::remote {
namespace {

// One copy is enough: stored anywhere is stored.
void MergeStored(Status& merged, const Status& next) {
  const auto rank = [](const Status& status) {
    if (status.ok()) return 2;
    return status.code() == StatusCode::kAlreadyExists ? 1 : 0;
  };
  if (rank(next) > rank(merged)) merged = next;
}

// The key that places the object, where that is known without asking.
const ChunkKey* RunKeyOf(const PutOp& op) {
  if (op.meta.run_key != ChunkKey{}) return &op.meta.run_key;
  if (op.meta.first_token == 0) return &op.id.key;
  // Full chunks of one root are equally long.
  const size_t tokens = op.meta.content ? op.meta.content->tokens.size() : 0;
  if (tokens == 0 || op.meta.first_token % tokens != 0) return nullptr;
  const uint64_t chunk = op.meta.first_token / tokens;
  return RunBegin(chunk) == chunk ? &op.id.key : nullptr;
}

class RoutedPut : public std::enable_shared_from_this<RoutedPut> {
 public:
  RoutedPut(std::shared_ptr<Router> router, std::vector<PutOp> ops, CommitOrder order, PutDone done)
      : router_(std::move(router)),
        list_(router_->servers()),
        ops_(std::move(ops)),
        order_(std::move(order)),
        done_(std::move(done)) {
    results_.assign(ops_.size(), UnavailableError("no server is known"));
    is_answered_.resize(ops_.size());
  }

  void Start() {
    if (list_->current.empty()) return Finish();
    targets_.resize(ops_.size());
    std::vector<ObjectId> parents;
    TimePoint deadline = TimePoint::min();
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (const ChunkKey* run_key = RunKeyOf(ops_[i])) {
        targets_[i] = Owners(*run_key);
        continue;
      }
      asking_.push_back(i);
      parents.push_back({ops_[i].meta.parent, ops_[i].id.part});
      deadline = std::max(deadline, ops_[i].deadline);
    }
    if (asking_.empty()) return Send();
    router_->Locate(std::move(parents), deadline, [self = shared_from_this()](Router::Located located) {
      for (size_t k = 0; k < located.servers.size(); ++k) {
        const size_t i = self->asking_[k];
        // Former servers take nothing new.
        std::erase_if(located.servers[k], [&](const LinkRef& link) {
          const auto& current = self->list_->current;
          return std::find(current.begin(), current.end(), link) == current.end();
        });
        // A parent that is nowhere: a server that refuses the object says so.
        self->targets_[i] =
            located.servers[k].empty() ? self->Owners(self->ops_[i].id.key) : std::move(located.servers[k]);
      }
      self->Send();
    });
  }

 private:
  std::vector<LinkRef> Owners(const ChunkKey& run_key) const {
    std::vector<LinkRef> owners;
    const uint32_t replicas = router_->environment().options.replicas;
    for (const size_t place : OwnersOf(run_key, list_->words, replicas))
      owners.push_back(list_->current[place]);
    return owners;
  }

  void Send() {
    std::map<LinkRef, std::vector<size_t>> by_server;
    for (size_t i = 0; i < targets_.size(); ++i) {
      for (const LinkRef& link : targets_[i]) by_server[link].push_back(i);
    }
    num_open_ = by_server.size();
    std::map<LinkRef, std::vector<PutOp>> ops;
    for (const auto& [link, named] : by_server) {
      for (const size_t i : named) ops[link].push_back(ops_[i]);
    }
    for (PutOp& op : ops_) op.frame.Reset();  // the batches hold it now
    for (const auto& [link, named] : by_server) {
      StartPut(link, std::move(ops[link]), order_,
               [self = shared_from_this(), link, named](std::span<const Status> results) {
                 self->Take(link, named, results);
               });
    }
  }

  void Take(const LinkRef& link, const std::vector<size_t>& named, std::span<const Status> results) {
    {
      std::lock_guard lock(mutex_);
      for (size_t k = 0; k < named.size(); ++k) {
        const size_t i = named[k];
        if (!is_answered_[i]) {
          results_[i] = results[k];
          is_answered_[i] = true;
        } else {
          MergeStored(results_[i], results[k]);
        }
        if (results[k].ok() || results[k].code() == StatusCode::kAlreadyExists)
          router_->places().Set(ops_[i].id.key, link->serial());
      }
      if (--num_open_ > 0) return;
    }
    Finish();
  }

  void Finish() {
    const PutDone done = std::move(done_);
    done(results_);
  }

  const std::shared_ptr<Router> router_;
  const ServerListRef list_;
  std::vector<PutOp> ops_;
  const CommitOrder order_;
  PutDone done_;
  std::vector<size_t> asking_;
  std::vector<std::vector<LinkRef>> targets_;

  std::mutex mutex_;
  std::vector<Status> results_;
  std::vector<bool> is_answered_;
  size_t num_open_ = 0;
};

}  // namespace

void Router::Put(std::vector<PutOp> ops, PutDone done) {
  std::vector<ObjectId> ids;
  ids.reserve(ops.size());
  for (const PutOp& op : ops) ids.push_back(op.id);
  const uint64_t flight = order_.Begin(ids);
  PutDone ended = [self = shared_from_this(), flight,
                   done = std::move(done)](std::span<const Status> results) {
    done(results);
    self->order_.End(flight);
  };
  CommitOrder order = [self = shared_from_this(), flight](std::span<const ObjectId> parents,
                                                          std::function<void()> commit) {
    if (parents.empty()) return commit();
    self->order_.After(parents, std::move(commit), flight);
  };
  const ServerListRef list = servers();
  if (list->current.size() == 1) {
    return StartPut(list->current.front(), std::move(ops), std::move(order), std::move(ended));
  }
  auto routed =
      std::make_shared<RoutedPut>(shared_from_this(), std::move(ops), std::move(order), std::move(ended));
  environment_->timers->Post([routed] { routed->Start(); });
}

}  // namespace terrace::remote
