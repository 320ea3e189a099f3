// GetBatch: a batch of gets from one server, over whatever path the session has.
//
//   session -> landings -> Get or GetStream -> bytes land, results come -> each object ends -> done
//
// Each object ends by its own deadline or cancel flag, whatever the server does; the batch is done when all
// have ended. Objects beyond what one call may name go in further calls, a few at a time.
#pragma once

#include <memory>
#include <vector>

#include "backends/remote/server_link.h"

namespace terrace::remote {

// `done` once, on a thread of gRPC, of the path or of the timers; never inside the call.
void StartGet(std::shared_ptr<ServerLink> link, std::vector<GetOp> ops, GetDone done);

}  // namespace terrace::remote
