// Certificates that have expired, are not yet valid, or are of somebody else, on either side and on both
// ports.
#include "connectors/server/tests/stress_fixture.h"
#include "tests/support/tls_identity.h"

namespace terrace::server {
namespace {

class CertificateTest : public ServiceTest {
 protected:
  // A server that shows `shown` and takes clients of `client_roots` alone; empty: any.
  void StartWith(const TlsIdentity& shown, const std::string& client_roots) {
    options.tls = {shown.certificate, shown.key, client_roots};
    Start();
  }
  RemoteOptions Options(const std::string& roots, const TlsIdentity* shown, RemotePath path) const {
    RemoteOptions remote;
    remote.addresses = {server->addresses().front()};
    remote.token = "token-of-alice";
    remote.path = path;
    remote.tls.use_tls = true;
    remote.tls.roots = roots;
    if (shown) {
      remote.tls.certificate = shown->certificate;
      remote.tls.private_key = shown->key;
    }
    return remote;
  }
  void ExpectRefused(const std::string& roots, const TlsIdentity* shown, const char* why) {
    for (const RemotePath path : {RemotePath::kStreams, RemotePath::kBulk}) {
      StressClient engine(Options(roots, shown, path));
      EXPECT_FALSE(engine.Put(chunks)) << why;
      EXPECT_EQ(engine.Get(chunks), 0u) << why;
    }
    EXPECT_EQ(server->num_sessions(), 0u) << why;
  }
  void ExpectTaken(const std::string& roots, const TlsIdentity* shown) {
    for (const RemotePath path : {RemotePath::kStreams, RemotePath::kBulk}) {
      StressClient engine(Options(roots, shown, path));
      EXPECT_TRUE(Eventually([&] { return engine.Put(chunks); }));
      EXPECT_TRUE(Eventually([&] { return engine.Get(chunks) == chunks.size(); }));
    }
  }

  const std::vector<TestChunk> chunks = MakeChunks(1, 1, 300'000);
  const TlsIdentity ours = MakeTlsIdentity();
  const TlsIdentity expired = MakeTlsIdentity(-60);
  const TlsIdentity early = MakeTlsIdentity(7200, 3600);
  const TlsIdentity strangers = MakeTlsIdentity();
};

TEST_F(CertificateTest, AClientWithoutAGoodCertificateGetsNothing) {
  // The expired one is of a root that the server trusts: only its time is wrong.
  StartWith(ours, ours.certificate + expired.certificate + early.certificate);
  ExpectRefused(ours.certificate, &expired, "expired");
  ExpectRefused(ours.certificate, &early, "not yet valid");
  ExpectRefused(ours.certificate, &strangers, "of another authority");
  ExpectRefused(ours.certificate, nullptr, "none");
  ExpectTaken(ours.certificate, &ours);
}

TEST_F(CertificateTest, AServerWithAnExpiredCertificateIsNotTrusted) {
  StartWith(expired, "");
  ExpectRefused(expired.certificate, nullptr, "expired");
}

TEST_F(CertificateTest, AServerOfAnotherAuthorityIsNotTrusted) {
  StartWith(strangers, "");
  ExpectRefused(ours.certificate, nullptr, "of another authority");
  ExpectTaken(strangers.certificate, nullptr);
}

}  // namespace
}  // namespace terrace::server
