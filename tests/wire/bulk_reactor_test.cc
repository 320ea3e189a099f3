// Two ends in reactors, over each kind of socket.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "tests/wire/bulk_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

class BulkReactorTest : public ::testing::TestWithParam<Transport> {
 protected:
  // Both ends of `n` connections, each side with one table.
  void JoinPairs(size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const SocketEnds sockets = Connect(GetParam());
      for (int side : {0, 1}) {
        auto& end = ends_[side].emplace_back(std::make_unique<BulkEnd>());
        end->landings = tables_[side];
        end->Join(*reactors_[side], sockets.fd[side], sockets.tls[side]);
      }
    }
  }
  void TearDown() override {
    for (auto& reactor : reactors_) reactor.reset();
    for (auto& side : ends_) {
      for (auto& end : side) EXPECT_TRUE(end->closed.arrived());
    }
    EXPECT_EQ(FrameCounter::live(), 0);
  }

  std::unique_ptr<BulkReactor> reactors_[2] = {StartReactor(), StartReactor()};
  std::shared_ptr<LandingTable> tables_[2] = {std::make_shared<LandingTable>(),
                                              std::make_shared<LandingTable>()};
  std::vector<std::unique_ptr<BulkEnd>> ends_[2];
};

// A transfer that goes over all connections of a side, every other range of the frame left out.
struct Plan {
  uint64_t transfer;
  int from;
  uint64_t frame_bytes;
  std::vector<FrameRange> ranges;
  std::unique_ptr<Incoming> incoming;
  std::vector<Awaited> sent;

  uint64_t asked_bytes() const {
    uint64_t bytes = 0;
    for (const FrameRange& range : ranges) bytes += range.length;
    return bytes;
  }
};

std::vector<Plan> MakePlans() {
  std::vector<Plan> plans;
  const uint64_t sizes[] = {4 * kKiB, 64 * kKiB, 260 * kKiB, kMiB, 3 * kMiB + 4 * kKiB, 9 * kMiB};
  for (uint64_t i = 0; i < 24; ++i) {
    Plan plan{.transfer = i / 2, .from = static_cast<int>(i % 2), .frame_bytes = sizes[i % std::size(sizes)]};
    const uint64_t step =
        std::max<uint64_t>(4 * kKiB, plan.frame_bytes / 4 / kFrameAlignment * kFrameAlignment);
    for (uint64_t at = 0; at < plan.frame_bytes; at += step) {
      const uint64_t length = std::min(step, plan.frame_bytes - at);
      // Landed in the reverse order of the frame.
      if (plan.frame_bytes < kMiB || at != step)
        plan.ranges.push_back({at, length, plan.frame_bytes - at - length});
    }
    plan.incoming = std::make_unique<Incoming>(plan.frame_bytes);
    plans.push_back(std::move(plan));
  }
  return plans;
}

TEST_P(BulkReactorTest, ManyTransfersBothWaysArriveWhole) {
  constexpr size_t kConnections = 3;
  JoinPairs(kConnections);
  std::vector<Plan> plans = MakePlans();
  for (Plan& plan : plans) {
    ASSERT_TRUE(tables_[1 - plan.from]->Add(plan.transfer, plan.incoming->MakeLanding(plan.ranges)).ok());
  }
  const auto send_side = [&](int side) {
    for (Plan& plan : plans) {
      if (plan.from != side) continue;
      const BufferRef frame =
          FrameCounter::Make(plan.frame_bytes, plan.transfer * 2 + static_cast<uint64_t>(side));
      for (size_t i = 0; i < plan.ranges.size(); ++i) {
        ends_[side][i % kConnections]->connection->Send(plan.transfer, frame, {plan.ranges[i]},
                                                        plan.sent.emplace_back().callback());
      }
    }
  };
  std::thread other([&] { send_side(1); });
  send_side(0);
  other.join();
  for (const Plan& plan : plans) {
    ASSERT_TRUE(plan.incoming->Wait().ok()) << plan.incoming->Wait().ToString();
    for (const Awaited& sent : plan.sent) EXPECT_TRUE(sent.Get().ok());
    const auto expected = RandomBytes(plan.frame_bytes, plan.transfer * 2 + static_cast<uint64_t>(plan.from));
    for (const FrameRange& range : plan.ranges) {
      EXPECT_TRUE(std::equal(expected.begin() + static_cast<ptrdiff_t>(range.frame_offset),
                             expected.begin() + static_cast<ptrdiff_t>(range.frame_offset + range.length),
                             plan.incoming->memory().begin() + static_cast<ptrdiff_t>(range.dst_offset)))
          << "transfer " << plan.transfer << " at " << range.frame_offset;
    }
    EXPECT_EQ(plan.incoming->reported_bytes(), plan.asked_bytes());
    EXPECT_TRUE(plan.incoming->ReportedOnce());
  }
  for (auto& side : ends_) {
    for (auto& end : side) EXPECT_EQ(end->connection->queued_bytes(), 0u);
  }
  EXPECT_EQ(tables_[0]->size() + tables_[1]->size(), 0u);
  EXPECT_EQ(FrameCounter::live(), 0);
}

TEST_P(BulkReactorTest, AnAbortFailsTheTransferAndNoOther) {
  JoinPairs(1);
  Incoming given_up(kMiB);
  Incoming whole(kMiB);
  ASSERT_TRUE(tables_[1]->Add(1, given_up.MakeLanding({{0, kMiB, 0}})).ok());
  ASSERT_TRUE(tables_[1]->Add(2, whole.MakeLanding({{0, kMiB, 0}})).ok());
  BulkConnection& connection = *ends_[0][0]->connection;
  connection.SendAbort(1, BulkCode::kRefused);
  connection.Send(2, FrameCounter::Make(kMiB, 5), {{0, kMiB, 0}}, nullptr);
  EXPECT_TRUE(whole.Wait().ok());
  EXPECT_EQ(whole.memory(), RandomBytes(kMiB, 5));
  EXPECT_EQ(given_up.Wait().code(), StatusCode::kUnavailable);
  EXPECT_THAT(given_up.Wait().message(), ::testing::HasSubstr("code 1"));
}

TEST_P(BulkReactorTest, CloseEndsBothSides) {
  JoinPairs(1);
  ends_[0][0]->connection->Close();
  EXPECT_EQ(ends_[0][0]->closed.Get().code(), StatusCode::kCancelled);
  EXPECT_EQ(ends_[1][0]->closed.Get().code(), StatusCode::kUnavailable);
  ends_[0][0]->connection->Close();
  Awaited sent;
  ends_[0][0]->connection->Send(1, FrameCounter::Make(4 * kKiB, 1), {{0, 4 * kKiB, 0}}, sent.callback());
  EXPECT_EQ(sent.Get().code(), StatusCode::kCancelled);
  EXPECT_EQ(ends_[0][0]->connection->queued_bytes(), 0u);
}

TEST_P(BulkReactorTest, TheReactorsEndEndsItsConnections) {
  JoinPairs(2);
  reactors_[0].reset();
  for (auto& end : ends_[0]) {
    ASSERT_TRUE(end->closed.arrived());
    EXPECT_EQ(end->closed.Get().code(), StatusCode::kCancelled);
  }
  for (auto& end : ends_[1]) EXPECT_EQ(end->closed.Get().code(), StatusCode::kUnavailable);
  Awaited sent;
  ends_[0][0]->connection->Send(1, FrameCounter::Make(4 * kKiB, 1), {{0, 4 * kKiB, 0}}, sent.callback());
  ASSERT_TRUE(sent.arrived());
  EXPECT_EQ(sent.Get().code(), StatusCode::kCancelled);
}

TEST_P(BulkReactorTest, ASendFromACallbackGoesOut) {
  JoinPairs(1);
  Incoming second(kMiB);
  ASSERT_TRUE(tables_[1]->Add(2, second.MakeLanding({{0, kMiB, 0}})).ok());
  BulkConnection* connection = ends_[0][0]->connection.get();
  connection->Send(1, FrameCounter::Make(kMiB, 1), {{0, kMiB, 0}}, [connection](const Status& status) {
    EXPECT_TRUE(status.ok());
    connection->Send(2, FrameCounter::Make(kMiB, 2), {{0, kMiB, 0}}, nullptr);
  });
  EXPECT_TRUE(second.Wait().ok());
  EXPECT_EQ(second.memory(), RandomBytes(kMiB, 2));
}

INSTANTIATE_TEST_SUITE_P(Transports, BulkReactorTest,
                         ::testing::Values(Transport::kUnix, Transport::kTcp, Transport::kTls),
                         [](const auto& instance) { return NameOf(instance.param); });

}  // namespace
}  // namespace terrace
