// terrace-llama chat: a conversation on standard input and output that goes on after a restart.
#pragma once

#include "connectors/llamacpp/tool/kv_store.h"

namespace terrace::llamacpp {

// The program's exit code.
int RunChat(const ChatOptions& options, const StoreOpener& opener);

}  // namespace terrace::llamacpp
