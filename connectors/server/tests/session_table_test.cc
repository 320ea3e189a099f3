#include "connectors/server/session_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include "connectors/server/work_queue.h"

namespace terrace::server {
namespace {

constexpr uint64_t kFrameBytes = 8192;

class ManualClock final : public Clock {
 public:
  TimePoint Now() override { return now; }
  WallTime WallNow() override { return {}; }
  TimePoint now = TimePoint(std::chrono::hours(1));
};

class PlainFrame final : public ArrivingFrame {
 public:
  MutableBytes bytes() override { return bytes_; }
  void MarkPresent(uint64_t, uint64_t n) override { present += n; }
  uint64_t present = 0;

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kFrameBytes);
};

class SessionTableTest : public testing::Test {
 protected:
  SessionTableTest() {
    options.clock = &clock;
    options.max_sessions = 3;
    Tenant a{"a", "a", true, true, true, {}};
    a.limits.max_sessions = 2;
    a.limits.max_inflight_bytes = 4 * kFrameBytes;
    tenant = std::make_shared<Tenant>(a);
    Tenant b = a;
    b.name = "b";
    other = std::make_shared<Tenant>(b);
    table = std::make_unique<SessionTable>(options);
  }
  SessionRef Open() { return *table->Open(tenant, std::make_shared<Namespace>()); }
  uint64_t Add(Session& session) {
    EXPECT_TRUE(session.TakeBytes(kFrameBytes));
    PutTransfer put;
    put.meta.frame_bytes = kFrameBytes;
    put.frame = std::make_shared<PlainFrame>();
    return session.AddTransfer(std::move(put));
  }
  static void Land(Session& session, uint64_t transfer) {
    auto reserved = session.landings->Reserve(transfer, 0, kFrameBytes);
    ASSERT_TRUE(reserved.ok()) << reserved.status().ToString();
    std::memset(reserved->memory().data(), 7, kFrameBytes);
    reserved->Landed(kFrameBytes);
  }
  // The codes of a TakeWhole; empty before it is over.
  std::shared_ptr<std::vector<StatusCode>> Take(Session& session, std::vector<uint64_t> transfers,
                                                TimePoint deadline = kNoDeadline) {
    auto codes = std::make_shared<std::vector<StatusCode>>();
    session.TakeWhole(std::move(transfers), deadline,
                      [codes, this](std::vector<Status> arrived, std::vector<PutTransfer> taken) {
                        for (size_t i = 0; i < arrived.size(); ++i) {
                          codes->push_back(arrived[i].code());
                          EXPECT_EQ(arrived[i].ok(), taken[i].frame != nullptr);
                          if (taken[i].frame) last_taken = taken[i];
                        }
                      });
    return codes;
  }

  ManualClock clock;
  SessionTable::Options options;
  TenantRef tenant;
  TenantRef other;
  std::unique_ptr<SessionTable> table;
  PutTransfer last_taken;
};

TEST_F(SessionTableTest, SessionsAreTheirTenantsOnlyAndLimited) {
  const SessionRef first = Open();
  const SessionRef second = Open();
  EXPECT_NE(first->id, second->id);
  EXPECT_EQ(table->Find(first->id, tenant), first);
  EXPECT_EQ(table->Find(first->id, other), nullptr);
  EXPECT_EQ(table->CountOf(*tenant), 2u);
  const auto third = table->Open(tenant, std::make_shared<Namespace>());
  EXPECT_EQ(third.status().code(), StatusCode::kResourceExhausted) << "the tenant's limit";
  EXPECT_TRUE(table->Open(other, std::make_shared<Namespace>()).ok());
  const auto fourth = table->Open(other, std::make_shared<Namespace>());
  EXPECT_EQ(fourth.status().code(), StatusCode::kResourceExhausted) << "the table's limit";
  table->Close(first->id);
  EXPECT_TRUE(first->ended());
  EXPECT_EQ(table->Find(first->id, tenant), nullptr);
  EXPECT_TRUE(table->Open(tenant, std::make_shared<Namespace>()).ok());
}

TEST_F(SessionTableTest, TokensAreGoodOnceForOnePurposeAndForSeconds) {
  using Purpose = SessionTable::Purpose;
  const SessionRef session = Open();
  const SessionRef second = Open();
  const OneTimeToken token = table->MakeToken(session->id, Purpose::kBulk);
  EXPECT_EQ(table->Redeem(second->id, token, Purpose::kBulk), nullptr) << "another session's";
  EXPECT_EQ(table->Redeem(session->id, token, Purpose::kBulk), session);
  EXPECT_EQ(table->Redeem(session->id, token, Purpose::kBulk), nullptr) << "used";
  const OneTimeToken misused = table->MakeToken(session->id, Purpose::kShm);
  EXPECT_EQ(table->Redeem(session->id, misused, Purpose::kBulk), nullptr);
  EXPECT_EQ(table->Redeem(session->id, misused, Purpose::kShm), nullptr) << "the wrong use was its one";
  const OneTimeToken late = table->MakeToken(session->id, Purpose::kBulk);
  clock.now += options.token_ttl;
  EXPECT_EQ(table->Redeem(session->id, late, Purpose::kBulk), nullptr);
  EXPECT_EQ(table->Redeem(session->id, OneTimeToken{}, Purpose::kBulk), nullptr);
}

TEST_F(SessionTableTest, WholeTransfersAreTakenOnceAndTheirBytesComeBack) {
  const SessionRef session = Open();
  const uint64_t a = Add(*session);
  const uint64_t b = Add(*session);
  Land(*session, a);
  const auto codes = Take(*session, {b, a, 99});
  EXPECT_TRUE(codes->empty()) << "b lacks its bytes";
  const auto twice = Take(*session, {b});
  EXPECT_EQ(*twice, std::vector{StatusCode::kFailedPrecondition});
  Land(*session, b);
  EXPECT_EQ(*codes, (std::vector{StatusCode::kOk, StatusCode::kOk, StatusCode::kNotFound}));
  EXPECT_EQ(static_cast<PlainFrame&>(*last_taken.frame).present, kFrameBytes);
  EXPECT_EQ(last_taken.frame->bytes()[5], std::byte{7});
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), kFrameBytes) << "the one that is held here";
  last_taken = {};
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), 0u);
  EXPECT_EQ(*Take(*session, {a}), std::vector{StatusCode::kNotFound});
}

TEST_F(SessionTableTest, WaitsEndAtTheirDeadlineAndDropWhatIsMissing) {
  const SessionRef session = Open();
  const uint64_t a = Add(*session);
  const uint64_t b = Add(*session);
  Land(*session, a);
  const auto codes = Take(*session, {a, b}, clock.now + std::chrono::seconds(1));
  table->Tick();
  EXPECT_TRUE(codes->empty());
  clock.now += std::chrono::seconds(1);
  table->Tick();
  EXPECT_EQ(*codes, (std::vector{StatusCode::kOk, StatusCode::kDeadlineExceeded}));
  EXPECT_EQ(session->landings->Reserve(b, 0, kFrameBytes).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(table->deadlines()->size(), 0u);
  last_taken = {};
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), 0u);
}

TEST_F(SessionTableTest, AFailedTransferTellsWhyAndHoldsNothing) {
  const SessionRef session = Open();
  const uint64_t a = Add(*session);
  EXPECT_TRUE(session->landings->Fail(a, DataLossError("wrong")));
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), 0u);
  EXPECT_EQ(*Take(*session, {a}), std::vector{StatusCode::kDataLoss});
  const uint64_t b = Add(*session);
  const auto waiting = Take(*session, {b});
  session->DropTransfer(b);
  EXPECT_EQ(*waiting, std::vector{StatusCode::kCancelled});
  EXPECT_EQ(session->num_transfers(), 0u);
}

TEST_F(SessionTableTest, ATransferThatIsNotCommittedInTimeIsDropped) {
  const SessionRef session = Open();
  const uint64_t a = Add(*session);
  Land(*session, a);
  clock.now += options.transfer_ttl - std::chrono::seconds(1);
  table->Reap();
  EXPECT_EQ(session->num_transfers(), 1u);
  clock.now += std::chrono::seconds(1);
  table->Reap();
  EXPECT_EQ(session->num_transfers(), 0u);
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), 0u);
}

TEST_F(SessionTableTest, ASilentSessionEndsAndGivesBackWhatItHolds) {
  options.transfer_ttl = std::chrono::hours(1);
  table = std::make_unique<SessionTable>(options);
  const SessionRef session = Open();
  const uint64_t a = Add(*session);
  auto reserved = session->landings->Reserve(a, 0, kFrameBytes);
  ASSERT_TRUE(reserved.ok());
  const auto codes = Take(*session, {a});
  clock.now += options.session_ttl - std::chrono::seconds(1);
  session->Touch();
  clock.now += std::chrono::seconds(1);
  table->Reap();
  EXPECT_FALSE(session->ended()) << "it was touched";
  clock.now += options.session_ttl;
  table->Reap();
  EXPECT_TRUE(session->ended());
  EXPECT_EQ(*codes, std::vector{StatusCode::kCancelled});
  EXPECT_EQ(table->size(), 0u);
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), kFrameBytes) << "somebody still receives into it";
  reserved = NotFoundError("gone");
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), 0u);
  EXPECT_TRUE(session->TakeBytes(kFrameBytes));
  PutTransfer late;
  late.meta.frame_bytes = kFrameBytes;
  late.frame = std::make_shared<PlainFrame>();
  EXPECT_EQ(session->AddTransfer(std::move(late)), 0u) << "an ended session takes nothing";
  EXPECT_EQ(table->UseOf(*tenant)->inflight_bytes(), 0u);
}

TEST_F(SessionTableTest, SessionsOfATenantThatMayNotGoOnEnd) {
  const SessionRef mine = Open();
  const SessionRef others = *table->Open(other, std::make_shared<Namespace>());
  mine->Touch();
  table->Reap([](const Tenant& who) { return who.name != "a"; });
  EXPECT_TRUE(mine->ended());
  EXPECT_FALSE(others->ended());
  EXPECT_EQ(table->CountOf(*tenant), 0u);
}

TEST(WorkQueueTest, SlowWorkOfOneLaneLeavesAThreadAndRoomToTheOthers) {
  WorkQueue queue("test", 2, 8);
  std::promise<void> let_go;
  const std::shared_future<void> gate = let_go.get_future().share();
  std::atomic<int> num_run = 0;
  const auto slow = [gate, &num_run] {
    gate.wait();
    ++num_run;
  };
  // One runs and two wait, or all three wait for a moment.
  EXPECT_TRUE(queue.Post(slow, "a") && queue.Post(slow, "a"));
  int num_posted = 2;
  while (num_posted < 8 && queue.Post(slow, "a")) ++num_posted;
  EXPECT_LE(num_posted, 3) << "a quarter of the room, and what runs";
  std::promise<void> ran;
  EXPECT_TRUE(queue.Post([&ran] { ran.set_value(); }, "b"));
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_EQ(num_run, 0);
  let_go.set_value();
  std::promise<void> last;
  while (!queue.Post([&last] { last.set_value(); }, "b")) std::this_thread::yield();
  EXPECT_EQ(last.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  queue.Stop();
  EXPECT_FALSE(queue.Post([] {}, "c"));
}

TEST(EventLogTest, WhatItKeepsIsBoundedInBytesToo) {
  auto content = std::make_shared<ChunkContent>();
  content->tokens.resize(1000);
  content->items.push_back({1, std::vector<std::byte>(64)});
  EventLog log(100, 10'000);
  for (int i = 0; i < 10; ++i) {
    KvEvent event;
    event.content = content;
    log.Record(std::move(event));
  }
  bool missed = false;
  const auto kept = log.ReadAfter(0, 100, missed);
  EXPECT_TRUE(missed);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept.back().sequence, 10u);
  EventLog small(100, 1);
  KvEvent event;
  event.content = content;
  small.Record(std::move(event));
  EXPECT_EQ(small.ReadAfter(0, 100, missed).size(), 1u) << "the last one is kept whatever it takes";
  EXPECT_FALSE(missed);
}

TEST_F(SessionTableTest, BytesInFlightAreTheTenantsOverAllSessions) {
  const SessionRef first = Open();
  const SessionRef second = Open();
  EXPECT_TRUE(first->TakeBytes(3 * kFrameBytes));
  EXPECT_TRUE(second->TakeBytes(kFrameBytes));
  EXPECT_FALSE(second->TakeBytes(1));
  first->GiveBytes(3 * kFrameBytes);
  EXPECT_TRUE(second->TakeBytes(1));
  EXPECT_FALSE(second->TakeBytes(UINT64_MAX));
}

TEST(RateGateTest, PassesASecondsWorthThenWhatTimeBrings) {
  RateGate gate;
  TimePoint now = TimePoint(std::chrono::hours(1));
  EXPECT_TRUE(gate.Pass(0, 1u << 30, now)) << "no limit";
  EXPECT_TRUE(gate.Pass(10, 10, now));
  EXPECT_FALSE(gate.Pass(10, 1, now));
  now += std::chrono::milliseconds(500);
  EXPECT_TRUE(gate.Pass(10, 5, now));
  EXPECT_FALSE(gate.Pass(10, 1, now));
  now += std::chrono::seconds(60);
  EXPECT_TRUE(gate.Pass(10, 25, now)) << "larger than a second's worth: when nothing is owed";
  now += std::chrono::seconds(1);
  EXPECT_FALSE(gate.Pass(10, 1, now)) << "and it is owed afterwards";
}

}  // namespace
}  // namespace terrace::server
