// Gets over several servers.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "backends/remote/get_batch.h"
#include "backends/remote/router.h"

namespace terrace::remote {
namespace {

class RoutedGet : public std::enable_shared_from_this<RoutedGet> {
 public:
  RoutedGet(std::shared_ptr<Router> router, std::vector<GetOp> ops, GetDone done)
      : router_(std::move(router)), done_(std::move(done)) {
    for (GetOp& op : ops) items_.push_back({.op = std::move(op)});
  }

  void Start() {
    const ServerListRef list = router_->servers();
    std::map<LinkRef, std::vector<size_t>> by_server;
    for (size_t i = 0; i < items_.size(); ++i) {
      const auto place = router_->places().Find(items_[i].op.id.key);
      const LinkRef link = place ? list->Find(*place) : nullptr;
      if (link && !link->is_down()) {
        by_server[link].push_back(i);
      } else {
        unknown_.push_back(i);
      }
    }
    Ask(by_server, [self = shared_from_this()] { self->Look(); });
  }

 private:
  struct Item {
    GetOp op;
    std::shared_ptr<std::atomic<bool>> is_touched = std::make_shared<std::atomic<bool>>(false);
    GetResult result{.status = NotFoundError("")};
  };

  // Gets from each server what is named; then `next`.
  void Ask(const std::map<LinkRef, std::vector<size_t>>& by_server, std::function<void()> next) {
    struct Round {
      std::mutex mutex;
      size_t num_open;
      std::function<void()> next;
    };
    if (by_server.empty()) return next();
    auto round = std::make_shared<Round>();
    round->num_open = by_server.size();
    round->next = std::move(next);
    for (const auto& [link, named] : by_server) {
      std::vector<GetOp> ops;
      for (const size_t i : named) ops.push_back(TouchingOp(items_[i]));
      StartGet(link, std::move(ops),
               [self = shared_from_this(), round, link, named](std::span<const GetResult> results) {
                 bool is_last = false;
                 {
                   std::lock_guard lock(round->mutex);
                   for (size_t k = 0; k < named.size(); ++k) self->Take(named[k], link, results[k]);
                   is_last = --round->num_open == 0;
                 }
                 if (is_last) round->next();
               });
    }
  }

  // Bytes that were reported once are not asked for again.
  static GetOp TouchingOp(const Item& item) {
    GetOp op = item.op;
    if (!op.on_bytes) return op;
    op.on_bytes = [touched = item.is_touched, report = item.op.on_bytes](uint64_t offset, uint64_t n) {
      *touched = true;
      report(offset, n);
    };
    return op;
  }

  void Take(size_t i, const LinkRef& link, const GetResult& result) {
    Item& item = items_[i];
    item.result = result;
    if (result.status.ok()) return router_->places().Set(item.op.id.key, link->serial());
    const bool may_be_elsewhere =
        result.status.code() == StatusCode::kNotFound || result.status.code() == StatusCode::kUnavailable;
    if (may_be_elsewhere && !item.is_touched->load() && !has_looked_) {
      unknown_.push_back(i);
      tried_.push_back({i, link});
    }
  }

  // Asks all servers which of them has what is missing.
  void Look() {
    if (unknown_.empty()) return Finish();
    has_looked_ = true;
    std::vector<ObjectId> ids;
    TimePoint deadline = TimePoint::min();
    for (const size_t i : unknown_) {
      ids.push_back(items_[i].op.id);
      deadline = std::max(deadline, items_[i].op.deadline);
    }
    router_->Locate(std::move(ids), deadline, [self = shared_from_this()](Router::Located located) {
      std::map<LinkRef, std::vector<size_t>> by_server;
      for (size_t k = 0; k < located.servers.size(); ++k) {
        const size_t i = self->unknown_[k];
        const LinkRef* found = nullptr;
        for (const LinkRef& link : located.servers[k]) {
          const std::pair<size_t, LinkRef> tried(i, link);
          if (std::find(self->tried_.begin(), self->tried_.end(), tried) != self->tried_.end()) continue;
          found = &link;
          break;
        }
        if (found != nullptr) {
          by_server[*found].push_back(i);
        } else if (!located.status.ok()) {
          // Nobody who answered has it; who did not answer may.
          self->items_[i].result.status = UnavailableError(std::string(located.status.message()));
        }
      }
      self->Ask(by_server, [self] { self->Finish(); });
    });
  }

  void Finish() {
    std::vector<GetResult> results;
    for (Item& item : items_) {
      results.push_back(std::move(item.result));
      item.op = GetOp{};  // lets go of the destination first
    }
    const GetDone done = std::move(done_);
    done(results);
  }

  const std::shared_ptr<Router> router_;
  GetDone done_;
  std::vector<Item> items_;
  std::vector<size_t> unknown_;
  std::vector<std::pair<size_t, LinkRef>> tried_;
  bool has_looked_ = false;
};

}  // namespace

void Router::Get(std::vector<GetOp> ops, GetDone done) {
  const std::vector<LinkRef> all = servers()->All();
  if (all.size() == 1) return StartGet(all.front(), std::move(ops), std::move(done));
  auto routed = std::make_shared<RoutedGet>(shared_from_this(), std::move(ops), std::move(done));
  environment_->timers->Post([routed] { routed->Start(); });
}

}  // namespace terrace::remote
