// Prefix queries over several servers.
#include <algorithm>
#include <mutex>
#include <utility>

#include "backends/remote/placement.h"
#include "backends/remote/router.h"

namespace terrace::remote {
namespace {

class RoutedMatch : public std::enable_shared_from_this<RoutedMatch> {
 public:
  RoutedMatch(std::shared_ptr<Router> router, const PrefixQuery& query, MatchDone done)
      : router_(std::move(router)), done_(std::move(done)) {
    const ServerListRef list = router_->servers();
    for (SubQuery& sub : SplitQuery(query)) {
      Run run{.asked = std::move(sub)};
      run.links = LinksFor(*list, run.asked);
      run.answers.resize(run.links.size());
      num_open_ += run.links.size();
      runs_.push_back(std::move(run));
    }
  }

  void Start() {
    ++num_open_;  // until all are asked: servers that are given up answer inside the call
    for (size_t r = 0; r < runs_.size(); ++r) {
      for (size_t s = 0; s < runs_[r].links.size(); ++s) {
        StartMatch(runs_[r].links[s], runs_[r].asked.query,
                   [self = shared_from_this(), r, s](const PrefixMatch& match) { self->Take(r, s, match); });
      }
    }
    Leave();
  }

 private:
  struct Run {
    SubQuery asked;
    std::vector<LinkRef> links;
    std::vector<PrefixMatch> answers;  // by link
  };

  // One owner that is up (any replica does), and the former servers; or all.
  std::vector<LinkRef> LinksFor(const ServerList& list, const SubQuery& sub) const {
    if (sub.ask_all) return list.All();
    std::vector<LinkRef> links;
    const auto owners = OwnersOf(sub.run_key, list.words, router_->environment().options.replicas);
    for (const size_t place : owners) {
      if (!links.empty() && !links.front()->is_down()) break;
      links.assign(1, list.current[place]);
    }
    links.insert(links.end(), list.former.begin(), list.former.end());
    return links;
  }

  void Take(size_t r, size_t s, const PrefixMatch& match) {
    {
      std::lock_guard lock(mutex_);
      runs_[r].answers[s] = match;
    }
    Leave();
  }

  void Leave() {
    {
      std::lock_guard lock(mutex_);
      if (--num_open_ > 0) return;
    }
    Finish();
  }

  void Finish() {
    PrefixMatch joined;
    std::vector<ServerLease> leases;
    if (runs_.empty() || runs_.front().links.empty()) joined.status = UnavailableError("no server is known");
    bool goes_on = joined.status.ok();
    for (size_t r = 0; r < runs_.size(); ++r) {
      Run& run = runs_[r];
      const size_t best = Best(run);
      for (size_t s = 0; s < run.links.size(); ++s) {
        PrefixMatch& answer = run.answers[s];
        if (s == best && goes_on) continue;
        if (!answer.lease_token.empty()) run.links[s]->Release(std::move(answer.lease_token));
      }
      if (!goes_on) continue;
      if (run.links.empty()) break;
      PrefixMatch& answer = run.answers[best];
      if (r == 0) joined.status = answer.status;
      for (const ChunkPresence& chunk : answer.chunks) {
        if (chunk.present) router_->places().Set(chunk.key, run.links[best]->serial());
      }
      if (!answer.lease_token.empty())
        leases.push_back({run.links[best]->serial(), std::move(answer.lease_token)});
      goes_on = JoinMatch(run.asked, answer, joined);
    }
    joined.lease_token = EncodeLeases(leases);
    const MatchDone done = std::move(done_);
    done(joined);
  }

  static size_t Best(const Run& run) {
    size_t best = 0;
    for (size_t s = 1; s < run.answers.size(); ++s) {
      const PrefixMatch& a = run.answers[s];
      const PrefixMatch& b = run.answers[best];
      if (!a.status.ok()) continue;
      if (!b.status.ok() || a.matched_tokens > b.matched_tokens) best = s;
    }
    return best;
  }

  const std::shared_ptr<Router> router_;
  MatchDone done_;
  std::vector<Run> runs_;
  std::mutex mutex_;
  size_t num_open_ = 0;
};

}  // namespace

void Router::Match(PrefixQuery query, MatchDone done) {
  const ServerListRef list = servers();
  if (list->current.size() == 1 && list->former.empty()) {
    const LinkRef& link = list->current.front();
    return StartMatch(link, query,
                      [serial = link->serial(), done = std::move(done)](const PrefixMatch& match) {
                        if (match.lease_token.empty()) return done(match);
                        PrefixMatch named = match;
                        const ServerLease lease{serial, match.lease_token};
                        named.lease_token = EncodeLeases({&lease, 1});
                        done(named);
                      });
  }
  std::make_shared<RoutedMatch>(shared_from_this(), query, std::move(done))->Start();
}

}  // namespace terrace::remote
