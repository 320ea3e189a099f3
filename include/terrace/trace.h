// RequestTrace: one record per request of a manager, by option, for whoever wants to know what was asked,
// what was there, what was done, and what it cost. Records hold no tokens, salts or payload.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

enum class TraceKind : uint8_t { kLookup = 1, kPeek = 2, kLoad = 3, kStore = 4, kPrefetch = 5, kErase = 6 };

struct TraceStep {
  // "hash", "match", "remote" (lookups); "allocate", "copy" (stores); "read" (until verified, summed over
  // reads that overlap), "copy", "total" (loads); "erase".
  const char* name = "";
  uint64_t us = 0;  // wall time spent in it, summed over the request
};

struct RequestTrace {
  TraceKind kind = TraceKind::kLookup;
  uint64_t request_id = 0;  // of LookupOptions; 0 = anonymous
  ChunkKey root;
  uint64_t tokens = 0;                    // of the prompt, or of the range
  std::vector<uint64_t> matched_by_tier;  // tokens whose fastest copy is in that tier, by tier
  uint64_t remote_tokens = 0;             // matched by a remote tier's own answer
  uint64_t planned_tokens = 0;            // that the request set out to load or store
  uint64_t done_tokens = 0;               // loaded, or stored (present ones included)
  uint64_t bytes = 0;                     // of payload
  std::string why_not;                    // empty, or why done falls short of planned, planned of tokens
  std::vector<TraceStep> steps;
  StatusCode outcome = StatusCode::kOk;
};

class TERRACE_API TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Called from any thread, never under a lock of the manager; must not block. An exception is caught and
  // counted.
  virtual void Record(const RequestTrace& trace) = 0;
};

// One JSON object per line, appended to `path` (mode 0600). Lines are written by the caller's thread.
// Unwritable: kUnavailable.
TERRACE_API Result<std::shared_ptr<TraceSink>> MakeJsonTraceFile(const std::string& path);
TERRACE_API std::string_view TraceKindName(TraceKind kind);

}  // namespace terrace
