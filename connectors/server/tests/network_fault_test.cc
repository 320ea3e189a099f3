// The remote backend and the server with a wire between them that delays, stalls and breaks in the middle of
// frames: right bytes or a miss, every buffer let go of, and all well again by itself.
#include "connectors/server/tests/stress_fixture.h"
#include "connectors/server/tests/tcp_proxy.h"

namespace terrace::server {
namespace {

using Fault = TcpProxy::Fault;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class NetworkFaultTest : public ServiceTest, public testing::WithParamInterface<RemotePath> {
 protected:
  void SetUp() override {
    Start();
    Client client = ClientOf("alice");
    ASSERT_TRUE(client.Open({v1::DATA_PATH_BULK}).ok());
    const std::string address = server->addresses().front();
    const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
    // Another address of this host: a client asks for bulk sockets at the host that it reached the calls at.
    control_ = std::make_unique<TcpProxy>("127.0.0.2", 0, port);
    const auto bulk_port = static_cast<uint16_t>(client.opened.bulk().tcp_port());
    bulk_ = std::make_unique<TcpProxy>("127.0.0.2", bulk_port, bulk_port);
    RemoteOptions remote;
    remote.addresses = {"127.0.0.2:" + std::to_string(control_->port())};
    remote.token = "token-of-alice";
    remote.path = GetParam();
    engine_ = std::make_unique<StressClient>(remote);
    ASSERT_TRUE(Eventually([&] { return engine_->Put(chunks_); }));
    ASSERT_TRUE(Eventually([&] { return engine_->Get(chunks_) == chunks_.size(); }));
  }
  void TearDown() override {
    engine_.reset();
    EXPECT_TRUE(Eventually([&] { return ClientInflight() == 0; })) << "the server let go of everything";
  }
  uint64_t ClientInflight() const {
    Client client = ClientOf("alice");
    return client.Open().ok() ? client.Stats().inflight_bytes() : ~uint64_t{0};
  }
  // The proxy that frames pass through.
  TcpProxy& wire() { return GetParam() == RemotePath::kBulk ? *bulk_ : *control_; }

  // Gets and puts under the fault, then without.
  void Endure(Fault fault, uint64_t fault_bytes) {
    const uint64_t faults = wire().num_faults();
    const std::vector<TestChunk> fresh = MakeChunks(++seed_, 2, kMiB);
    wire().Set(fault, fault_bytes);
    engine_->Get(chunks_);
    engine_->Put(fresh);
    engine_->Get(fresh);
    EXPECT_TRUE(fault == Fault::kLatency || wire().num_faults() > faults) << "the fault was never met";
    wire().Set(Fault::kNone);
    EXPECT_TRUE(Eventually([&] { return engine_->Get(chunks_) == chunks_.size(); })) << "found again";
    EXPECT_TRUE(Eventually([&] { return engine_->Put(fresh); }));
    EXPECT_TRUE(Eventually([&] { return engine_->Get(fresh) == fresh.size(); }));
  }

  const std::vector<TestChunk> chunks_ = MakeChunks(1, 3, 2 * kMiB);
  uint32_t seed_ = 1;
  std::unique_ptr<TcpProxy> control_;
  std::unique_ptr<TcpProxy> bulk_;
  std::unique_ptr<StressClient> engine_;
};

TEST_P(NetworkFaultTest, LatencyChangesNoByte) {
  const uint64_t passed = wire().passed_bytes();
  Endure(Fault::kLatency, 0);
  EXPECT_GT(wire().passed_bytes(), passed + 12 * kMiB) << "the bytes took another way";
}

TEST_P(NetworkFaultTest, AResetInTheMiddleOfAFrame) {
  // In the first message's head, in its bytes, between messages, and in a later frame.
  for (const uint64_t bytes : {uint64_t{7}, kMiB + 11, 2 * kMiB + 20, 5 * kMiB}) Endure(Fault::kReset, bytes);
}

TEST_P(NetworkFaultTest, HalfAFrameIsSent) {
  for (const uint64_t bytes : {uint64_t{31}, 1234567 + kMiB, 3 * kMiB}) Endure(Fault::kHalf, bytes);
}

TEST_P(NetworkFaultTest, AWireThatStallsCostsNoMoreThanTheDeadline) { Endure(Fault::kStall, kMiB / 2); }

TEST_P(NetworkFaultTest, APartitionIsAMiss) { Endure(Fault::kRefuse, 0); }

INSTANTIATE_TEST_SUITE_P(Paths, NetworkFaultTest, testing::Values(RemotePath::kStreams, RemotePath::kBulk),
                         [](const auto& path) {
                           return std::string(path.param == RemotePath::kBulk ? "Bulk" : "Streams");
                         });

}  // namespace
}  // namespace terrace::server
