// The cases nvme, remote and shm of `terrace-llama bench`: measured in a process of its own, which starts
// with nothing in memory.
#pragma once

#include <string>
#include <vector>

#include "connectors/llamacpp/tool/bench_context.h"
#include "connectors/llamacpp/tool/kv_store.h"

namespace terrace::llamacpp {

struct TierRun {
  FirstToken first;
  double set_data_ms = 0;     // bare, in that process
  uint64_t tier_objects = 0;  // loaded from the case's tier
};

// Starts this program again for the case, with the tier of options.cache that it needs. A directory must not
// be held by this process.
Result<TierRun> MeasureInNewProcess(const BenchOptions& options, const std::string& name,
                                    const std::string& salt);

// What the new process does: prints one JSON object, writes the logits to options.child_logits.
Status MeasureAsNewProcess(const BenchOptions& options, const LoadedModel& model, const KvStore& store,
                           const std::vector<llama_token>& prompt);

}  // namespace terrace::llamacpp
