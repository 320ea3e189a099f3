// terrace-llama run: answers prompts.
#pragma once

#include "connectors/llamacpp/tool/kv_store.h"

namespace terrace::llamacpp {

// The program's exit code.
int RunPrompts(const RunOptions& options, const StoreOpener& opener);

}  // namespace terrace::llamacpp
