// The conformance suite of terrace::Backend. It needs include/terrace/ and GoogleTest only, so that a backend
// outside this tree can run it: compile tests/conformance/{conformance*,test_object}.cc beside a main() that
// calls
//
//   terrace::RegisterBackendConformance("MyBackend", [] { return BackendFixture{.make = ...}; });
//
// between InitGoogleTest and RUN_ALL_TESTS.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "terrace/backend.h"

namespace terrace {

// What a backend is known to do otherwise. Each is a promise of the interface that the suite then does not
// hold it to; say why where it is set.
struct ConformanceDeviations {
  bool scan_without_content = false;  // Scan gives no tokens and items
  bool reports_no_bytes = false;      // on_bytes is never called
  // Each object has its own part of the space: what one gives back may not serve another.
  bool divides_space = false;
  // A full store makes room by itself, as a cache server does: what was put last is there, what was put first
  // need not be.
  bool makes_room = false;
  // Roots are known only where they are right: their spec parses. And there are roots that the fixture put.
  bool checks_roots = false;
  // Is not there at all without capacity: shared memory of no bytes is none.
  bool needs_capacity = false;
  // used_bytes() is what a peer said some time ago.
  bool usage_is_late = false;
};

// A backend and the place that it lives in. Made once per test, so that each test begins with nothing.
struct BackendFixture {
  // Opens the backend on the fixture's place, not attached. Called again after Close: a durable backend then
  // finds what it had.
  std::function<Result<std::unique_ptr<Backend>>(uint64_t capacity_bytes)> make;
  bool durable = false;
  // Writes the beginning of a frame whose other bytes are set, for a backend that reads frame headers, and
  // sets id.key and meta.payload_bytes to fit. Null: frames are arbitrary bytes.
  std::function<Status(ObjectId& id, ObjectMeta& meta, MutableBytes frame)> write_header;
  uint64_t smallest_frame_bytes = 4096;
  // A capacity with room for all that a test puts (some 64 MiB at a time), and one that is soon full but
  // holds four frames of 1 MiB at least.
  uint64_t roomy_bytes = uint64_t{1} << 30;
  uint64_t tight_bytes = uint64_t{16} << 20;
  ConformanceDeviations deviations;
};

using FixtureFactory = std::function<BackendFixture()>;

// Adds the suite's tests under the name "<name>Conformance". Call it before RUN_ALL_TESTS.
void RegisterBackendConformance(const std::string& name, FixtureFactory factory);

}  // namespace terrace
