// LoadRegistry: the loads of a manager that are not over, so that none waits for what another one only keeps
// ready, prefetches live until they are done, and Close ends all of them. Also their way to the executor.
//
// Threads: every call from every thread. Its mutex is a leaf: nothing is called while it is held.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "terrace/executor.h"
#include "terrace/load.h"
#include "terrace/metrics.h"

namespace terrace {

class LoadRegistry {
 public:
  LoadRegistry(std::shared_ptr<Executor> executor, MetricRegistry& metrics);

  // False once CloseAll was called. With `keep` the registry owns the load until Release.
  bool Add(const std::shared_ptr<LoadHandle::State>& load, bool keep);
  void Release(LoadHandle::State* load);  // a kept one is done
  void Remove(LoadHandle::State* load);   // at its end

  // False: it will not run. An executor that throws is counted.
  bool Post(std::function<void()> work);

  // A starving load holds nothing that can be taken next, and found no room. While there is one, others do
  // not read ahead.
  void BeginStarving(LoadHandle::State* load);
  void EndStarving(LoadHandle::State* load);
  bool OthersStarve(const LoadHandle::State* load) const;
  // Lets the load that is farthest ahead give back what it keeps ready; it reads that again later. False:
  // nobody has anything to give.
  bool ShedOne(const LoadHandle::State* starving);
  // Something became ready in `by`, which a starving load may want to be shed.
  void WakeStarving(const LoadHandle::State* by);

  // Ends every load; what is posted from here on does not run. Safe to call twice.
  void CloseAll(TimePoint deadline);

 private:
  struct Entry {
    std::weak_ptr<LoadHandle::State> load;
    std::shared_ptr<LoadHandle::State> kept;
    bool is_starving = false;
  };
  std::vector<std::shared_ptr<LoadHandle::State>> Others(const LoadHandle::State* load, bool starving) const;

  Counter* const exceptions_;
  Counter* const shed_;
  std::atomic<size_t> num_starving_{0};  // changed with mutex_ held
  mutable std::mutex mutex_;             // guards all below
  std::shared_ptr<Executor> executor_;
  bool is_closed_ = false;
  std::map<const LoadHandle::State*, Entry> loads_;
};

}  // namespace terrace
