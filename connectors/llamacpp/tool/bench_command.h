// terrace-llama bench: the time to the first token, cold and with the prefix in the context, in host memory,
// on NVMe.
#pragma once

#include "connectors/llamacpp/tool/kv_store.h"

namespace terrace::llamacpp {

// The program's exit code.
int RunBench(const BenchOptions& options, const StoreOpener& opener);

}  // namespace terrace::llamacpp
