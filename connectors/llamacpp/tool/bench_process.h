// The case nvme of `terrace-llama bench`: measured in a process of its own, which starts with nothing in
// memory.
#pragma once

#include <string>
#include <vector>

#include "connectors/llamacpp/tool/bench_context.h"
#include "connectors/llamacpp/tool/kv_store.h"

namespace terrace::llamacpp {

struct NvmeRun {
  FirstToken first;
  double set_data_ms = 0;  // bare, in that process
  uint64_t nvme_objects = 0;
};

// Starts this program again. The directory must not be held by this process.
Result<NvmeRun> MeasureInNewProcess(const BenchOptions& options, const std::string& salt);

// What the new process does: prints one JSON object, writes the logits to options.child_logits.
Status MeasureAsNewProcess(const BenchOptions& options, const LoadedModel& model, const KvStore& store,
                           const std::vector<llama_token>& prompt);

}  // namespace terrace::llamacpp
