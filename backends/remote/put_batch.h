// PutBatch: a batch of puts to one server.
//
//   session, roots -> BeginPut: have or need -> the needed frames' bytes by the path, CommitPut beside them
//   -> results
//
// A frame is charged to the ledger until the transport has let go of it; what exceeds its limit is
// kResourceExhausted at once. A put that ends early tells the server to drop the transfer, but only after the
// path has stopped sending: with shared memory the place would be another's while it is still written.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/remote/server_link.h"

namespace terrace::remote {

// Runs `commit` when the parents may be known to the server, as far as they are on their way there.
using CommitOrder = std::function<void(std::span<const ObjectId> parents, std::function<void()> commit)>;

// `done` once, on a thread of gRPC, of the path or of the timers; never inside the call.
void StartPut(std::shared_ptr<ServerLink> link, std::vector<PutOp> ops, CommitOrder order, PutDone done);

}  // namespace terrace::remote
