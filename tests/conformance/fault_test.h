// A backend behind tests/support/fault_backend.h with faults on.
#pragma once

#include <string>

#include "tests/conformance/conformance.h"

namespace terrace {

// Adds the tests under the name "<name>Faults".
void RegisterBackendFaults(const std::string& name, FixtureFactory factory);

}  // namespace terrace
