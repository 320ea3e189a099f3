// HoldGrpc: keeps gRPC's threads for the process's life, once the first channel or server of Terrace was made.
//
// gRPC 1.51 runs callbacks on threads that it starts with the first channel or server that uses them, and joins
// when the last one goes. Where that happens on one of these threads (the last reference to a channel is
// dropped by a callback), it joins itself, and the process ends with "assertion failed: prior > 0". The end of
// gRPC itself, with its last user, also waits up to ten seconds for sockets of streams that were cancelled.
#pragma once

namespace terrace {

void HoldGrpc();

}  // namespace terrace
