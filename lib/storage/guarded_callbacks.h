// What a caller's plug-ins throw ends here: the manager's own state is in the middle of a change where it
// calls them. Each exception is counted.
#pragma once

#include <memory>

#include "terrace/eviction_policy.h"
#include "terrace/log_sink.h"
#include "terrace/metrics.h"

namespace terrace {

// A call that throws does nothing; a Victim that throws names none. `exceptions` outlives the policy.
std::unique_ptr<EvictionPolicy> GuardPolicy(std::unique_ptr<EvictionPolicy> policy, Counter* exceptions);

// A line whose writing throws is lost. `exceptions` is a counter of `metrics`, which the sink keeps.
std::shared_ptr<LogSink> GuardLogSink(std::shared_ptr<LogSink> log, std::shared_ptr<MetricRegistry> metrics,
                                      Counter* exceptions);

}  // namespace terrace
