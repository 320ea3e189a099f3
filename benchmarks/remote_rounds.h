// RemoteRounds: the rounds of one transport and one size of chunks: the library, then each bare probe, again
// and again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmarks/bare_probes.h"
#include "benchmarks/remote_client.h"
#include "benchmarks/remote_probe.h"
#include "benchmarks/remote_server.h"

namespace terrace::bench {

// Rows `put` and `get`.
Result<std::vector<RemoteResult>> MeasureTransport(const RemoteBenchOptions& options,
                                                   const RemoteServer& server, const BareFarEnds& far_ends,
                                                   const RemoteTransport& transport, uint64_t chunk_bytes);
// Row `lookup128` of a gRPC transport, `view` of shared memory.
Result<RemoteResult> MeasureLookup(const RemoteBenchOptions& options, const RemoteServer& server,
                                   const BareFarEnds& far_ends, const RemoteTransport& transport);
Result<RemoteResult> MeasureView(const RemoteBenchOptions& options, const RemoteServer& server,
                                 const BareFarEnds& far_ends, const RemoteTransport& transport);
// Rows `put` and `get` of many sessions at once.
Result<std::vector<RemoteResult>> MeasureSessions(const RemoteBenchOptions& options,
                                                  const RemoteServer& server,
                                                  const RemoteTransport& transport, uint64_t chunk_bytes);

}  // namespace terrace::bench
