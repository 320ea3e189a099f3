// Runs the conformance suite on the backends of this tree and on what wraps them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "terrace/backend_wrapper.h"
#include "terrace/host_backend.h"
#include "terrace/nvme_backend.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/fault_test.h"
#include "tests/conformance/kept_backend.h"
#include "tests/conformance/wire_header.h"
#include "tests/support/fault_backend.h"

namespace terrace {
namespace {

BackendFixture HostFixture() {
  BackendFixture fixture;
  fixture.make = [](uint64_t capacity_bytes) { return MakeHostBackend({.capacity_bytes = capacity_bytes}); };
  return fixture;
}

BackendFixture KeptFixture() {
  BackendFixture fixture;
  fixture.make =
      [disk = std::make_shared<KeptDisk>()](uint64_t capacity_bytes) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<KeptBackend>(disk, capacity_bytes));
  };
  fixture.durable = true;
  return fixture;
}

// A directory of its own, gone with the fixture.
struct TemporaryDirectory {
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-conformance-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) DieOfBadResult(UnavailableError("no temporary directory: " + name));
    path = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

BackendFixture NvmeFixture() {
  BackendFixture fixture;
  auto directory = std::make_shared<TemporaryDirectory>();
  fixture.make = [directory](uint64_t capacity_bytes) {
    return MakeNvmeBackend({.directory = (directory->path / "tier").string(),
                            .capacity_bytes = capacity_bytes,
                            .segment_bytes = uint64_t{16} << 20});
  };
  fixture.durable = true;
  fixture.write_header = WriteWireHeader;
  fixture.roomy_bytes = uint64_t{256} << 20;
  // The manifest has its share: 48 MiB leave two segments at least.
  fixture.tight_bytes = uint64_t{48} << 20;
  return fixture;
}

// The same fixture with what `wrap` makes of its backend.
template <typename Wrap>
FixtureFactory Wrapped(FixtureFactory factory, Wrap wrap) {
  return [factory = std::move(factory), wrap] {
    BackendFixture fixture = factory();
    fixture.make = [make = std::move(fixture.make),
                    wrap](uint64_t capacity) -> Result<std::unique_ptr<Backend>> {
      Result<std::unique_ptr<Backend>> base = make(capacity);
      if (!base.ok()) return base.status();
      return std::unique_ptr<Backend>(wrap(std::move(*base)));
    };
    return fixture;
  };
}

void RegisterAll() {
  auto plain = [](std::unique_ptr<Backend> base) {
    return std::make_unique<BackendWrapper>(std::move(base));
  };
  auto no_faults = [](std::unique_ptr<Backend> base) {
    return std::make_unique<FaultBackend>(std::move(base), FaultOptions{});
  };
  auto late = [](std::unique_ptr<Backend> base) {
    FaultOptions options;
    options.late_by = std::chrono::microseconds(200);
    options.get.late = options.put.late = options.erase.late = options.clear.late = options.flush.late = 0.5;
    return std::make_unique<FaultBackend>(std::move(base), options);
  };
  RegisterBackendConformance("Host", HostFixture);
  RegisterBackendConformance("WrappedHost", Wrapped(HostFixture, plain));
  RegisterBackendConformance("FaultFreeHost", Wrapped(HostFixture, no_faults));
  RegisterBackendConformance("LateHost", Wrapped(HostFixture, late));
  RegisterBackendFaults("Host", HostFixture);
  RegisterBackendConformance("Kept", KeptFixture);
  RegisterBackendConformance("LateKept", Wrapped(KeptFixture, late));
  RegisterBackendFaults("Kept", KeptFixture);
  RegisterBackendConformance("Nvme", NvmeFixture);
  RegisterBackendConformance("FaultFreeNvme", Wrapped(NvmeFixture, no_faults));
  RegisterBackendFaults("Nvme", NvmeFixture);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  terrace::RegisterAll();
  return RUN_ALL_TESTS();
}
