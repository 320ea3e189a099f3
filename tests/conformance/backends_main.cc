// Runs the conformance suite on the backends of this tree and on what wraps them.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/statfs.h>

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
#include "tests/support/temporary_directory.h"

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

BackendFixture NvmeFixtureIn(const std::filesystem::path& parent, IoEngineKind engine,
                             const std::vector<EncryptionKey>& keys = {}) {
  BackendFixture fixture;
  auto directory = std::make_shared<TemporaryDirectory>(parent);
  fixture.make = [directory, engine, keys](uint64_t capacity_bytes) {
    NvmeOptions options;
    options.directory = *directory / "tier";
    options.capacity_bytes = capacity_bytes;
    options.segment_bytes = uint64_t{16} << 20;
    options.prepare_ahead_bytes = uint64_t{4} << 20;
    options.io_engine = engine;
    options.keys = keys;
    return MakeNvmeBackend(options);
  };
  fixture.durable = true;
  fixture.write_header = WriteWireHeader;
  fixture.roomy_bytes = uint64_t{256} << 20;
  // The manifest has its share: 48 MiB leave two segments at least.
  fixture.tight_bytes = uint64_t{48} << 20;
  return fixture;
}

BackendFixture NvmeFixture() {
  return NvmeFixtureIn(std::filesystem::temp_directory_path(), IoEngineKind::kAuto);
}

BackendFixture NvmeThreadsFixture() {
  return NvmeFixtureIn(std::filesystem::temp_directory_path(), IoEngineKind::kThreads);
}

BackendFixture NvmeTmpfsFixture() { return NvmeFixtureIn("/dev/shm", IoEngineKind::kAuto); }

// Empty where a tier fits there; else why not.
std::string WhyNoTmpfs() {
  struct statfs facts {};
  if (statfs("/dev/shm", &facts) != 0 || facts.f_type != TMPFS_MAGIC) return "/dev/shm is no tmpfs";
  constexpr uint64_t kNeeded = uint64_t{1} << 30;  // the fixture's room, and what the tier leaves free
  const uint64_t available = uint64_t{facts.f_bavail} * static_cast<uint64_t>(facts.f_bsize);
  return available < kNeeded ? "/dev/shm has " + std::to_string(available) + " bytes free" : "";
}

class SkippedTest : public ::testing::Test {
 public:
  explicit SkippedTest(std::string reason) : reason_(std::move(reason)) {}
  void TestBody() override { GTEST_SKIP() << reason_; }

 private:
  std::string reason_;
};

void RegisterTmpfs() {
  const std::string reason = WhyNoTmpfs();
  if (reason.empty()) return RegisterBackendConformance("NvmeTmpfs", NvmeTmpfsFixture);
  ::testing::RegisterTest("NvmeTmpfs", "Conformance", nullptr, nullptr, __FILE__, __LINE__,
                          [reason]() -> SkippedTest* { return new SkippedTest(reason); });
}

BackendFixture EncryptedNvmeFixture() {
  return NvmeFixtureIn(std::filesystem::temp_directory_path(), IoEngineKind::kAuto,
                       {{.id = 1, .bytes = {std::byte{7}}}, {.id = 2, .bytes = {std::byte{8}}}});
}

// Two directories as one, with space written ahead of use.
BackendFixture NvmeStripeFixture() {
  BackendFixture fixture = NvmeFixture();
  auto directory = std::make_shared<TemporaryDirectory>();
  fixture.make = [directory](uint64_t capacity_bytes) {
    NvmeOptions options;
    options.directory = *directory / "tier";
    options.more_directories = {*directory / "other"};
    options.capacity_bytes = capacity_bytes;
    options.segment_bytes = uint64_t{16} << 20;
    options.prepare_ahead_bytes = uint64_t{8} << 20;
    return MakeNvmeBackend(options);
  };
  fixture.deviations.divides_space = true;
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
  RegisterBackendConformance("NvmeStripe", NvmeStripeFixture);
  RegisterBackendConformance("EncryptedNvme", EncryptedNvmeFixture);
  RegisterBackendFaults("EncryptedNvme", EncryptedNvmeFixture);
  RegisterBackendConformance("NvmeThreads", NvmeThreadsFixture);
  RegisterTmpfs();
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  terrace::RegisterAll();
  return RUN_ALL_TESTS();
}
