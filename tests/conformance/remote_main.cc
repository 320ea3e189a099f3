// Runs the conformance suite on the remote tier: a RemoteBackend over a cache server in this process, on each
// way that bytes can take, over TLS, and with an NVMe tier below the server.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "connectors/server/cache_server.h"
#include "connectors/server/namespace_opener.h"
#include "terrace/remote_backend.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/fault_test.h"
#include "tests/conformance/wire_header.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tls_identity.h"

namespace terrace {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Way {
  RemotePath path = RemotePath::kStreams;
  bool over_unix = false;
  bool over_tls = false;
  bool on_nvme = false;  // the host tier below the server is too small for what a test puts
};

// The root of all objects of the suite. That some lie in groups which it does not have is none of the
// server's business: nobody's lookup asks for them.
RootRecord SuiteRoot() { return ComputeRoot(KvSpec{.model_id = "conformance"}, {}, "").value(); }

// First chunks of the suite's root, each with a frame as the wire wants it.
Status WriteFirstChunk(ObjectId& id, ObjectMeta& meta, MutableBytes frame) {
  meta.root = meta.parent = SuiteRoot().root;
  meta.first_token = 0;
  return WriteWireHeader(id, meta, frame);
}

// A server, which lives as long as the test: closing a backend closes a client.
class ServerPlace {
 public:
  explicit ServerPlace(Way way) : way_(way) {
    if (way.over_tls) identity_ = MakeTlsIdentity();
  }
  ~ServerPlace() {
    server_.reset();
    if (namespaces_) {
      const Status closed = namespaces_->Close(Clock::Real()->Now() + std::chrono::minutes(1));
      EXPECT_TRUE(closed.ok()) << closed.ToString();
    }
  }

  Result<std::unique_ptr<Backend>> MakeClient(uint64_t capacity_bytes) {
    if (!server_) {
      if (Status started = Start(capacity_bytes); !started.ok()) return started;
    }
    RemoteOptions options;
    options.addresses = {way_.over_unix ? server_->addresses().back() : server_->addresses().front()};
    options.path = way_.path;
    options.tls = {.use_tls = way_.over_tls,
                   .roots = identity_.certificate,
                   .certificate = {},
                   .private_key = {},
                   .server_name = {}};
    options.connect_deadline = std::chrono::seconds(30);
    options.operation_deadline = std::chrono::minutes(1);
    return MakeRemoteBackend(options);
  }

 private:
  Status Start(uint64_t capacity_bytes) {
    server::NamespaceOpenerOptions opener;
    server::NamespaceQuota quota{.name = "default", .host_bytes = capacity_bytes};
    if (way_.on_nvme) {
      opener.nvme_dir = folder_ / "nvme";
      quota.nvme_bytes = capacity_bytes;
      quota.host_bytes = std::min(capacity_bytes, 24 * kMiB);
    }
    opener.share_pool = way_.path == RemotePath::kSharedMemory;
    namespaces_ = std::make_shared<server::NamespaceMap>(server::MakeNamespaceOpener(opener));
    if (Status opened = namespaces_->Set({quota}); !opened.ok()) return opened;
    if (Status root = namespaces_->Find("default")->store->PutRoot(SuiteRoot()); !root.ok()) return root;
    server::CacheServerOptions options;
    options.listen = {"127.0.0.1:0"};
    options.unix_path = folder_ / "s";
    options.bulk = way_.path == RemotePath::kBulk;
    options.shm = way_.path == RemotePath::kSharedMemory;
    if (way_.over_tls) options.tls = {identity_.certificate, identity_.key, {}};
    options.log = MakeNullLogSink();
    options.metrics = std::make_shared<MetricRegistry>();
    auto tenants = std::make_shared<server::TenantTable>(std::vector<server::TenantEntry>());
    Result<std::unique_ptr<server::CacheServer>> started =
        server::CacheServer::Start(options, std::move(tenants), namespaces_);
    if (!started.ok()) return started.status();
    server_ = *std::move(started);
    return OkStatus();
  }

  const Way way_;
  const TemporaryDirectory folder_;  // gone after what lies in it
  TlsIdentity identity_;
  std::shared_ptr<server::NamespaceMap> namespaces_;
  std::unique_ptr<server::CacheServer> server_;
};

FixtureFactory FixtureOf(Way way) {
  return [way] {
    BackendFixture fixture;
    fixture.make = [place = std::make_shared<ServerPlace>(way)](uint64_t capacity_bytes) {
      return place->MakeClient(capacity_bytes);
    };
    fixture.durable = true;
    fixture.write_header = WriteFirstChunk;
    fixture.smallest_frame_bytes = 8192;  // a header and a payload
    fixture.roomy_bytes = 192 * kMiB;
    fixture.tight_bytes = (way.on_nvme ? 48 : 16) * kMiB;
    fixture.deviations.makes_room = true;
    fixture.deviations.checks_roots = true;
    fixture.deviations.usage_is_late = true;
    fixture.deviations.needs_capacity = way.path == RemotePath::kSharedMemory;
    return fixture;
  };
}

void RegisterAll() {
  const Way streams;
  const Way bulk{.path = RemotePath::kBulk};
  const Way shm{.path = RemotePath::kSharedMemory, .over_unix = true};
  RegisterBackendConformance("RemoteStreams", FixtureOf(streams));
  RegisterBackendConformance("RemoteBulk", FixtureOf(bulk));
  RegisterBackendConformance("RemoteShm", FixtureOf(shm));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // the same code; it takes them minutes
  RegisterBackendConformance("RemoteStreamsUnix", FixtureOf({.over_unix = true}));
  RegisterBackendConformance("RemoteBulkUnix", FixtureOf({.path = RemotePath::kBulk, .over_unix = true}));
  RegisterBackendConformance("RemoteStreamsTls", FixtureOf({.over_tls = true}));
#endif
  RegisterBackendConformance("RemoteBulkTls", FixtureOf({.path = RemotePath::kBulk, .over_tls = true}));
  RegisterBackendConformance("RemoteOfNvme", FixtureOf({.path = RemotePath::kBulk, .on_nvme = true}));
  RegisterBackendFaults("RemoteStreams", FixtureOf(streams));
  RegisterBackendFaults("RemoteBulk", FixtureOf(bulk));
  RegisterBackendFaults("RemoteShm", FixtureOf(shm));
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  terrace::RegisterAll();
  return RUN_ALL_TESTS();
}
