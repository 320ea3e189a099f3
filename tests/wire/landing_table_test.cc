#include "lib/wire/landing_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tests/wire/bulk_fixture.h"

namespace terrace {
namespace {

// Ranges of a frame that land apart and in another order: [0, 100) at 300, [200, 300) at 0.
const std::vector<FrameRange> kTwoRanges = {{0, 100, 300}, {200, 100, 0}};

TEST(LandingTableTest, EveryByteIsReportedOnceAtItsPlace) {
  LandingTable table;
  Incoming incoming(400);
  ASSERT_TRUE(table.Add(1, incoming.MakeLanding(kTwoRanges)).ok());
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.missing_bytes(), 200u);
  auto middle = table.Reserve(1, 30, 40);
  ASSERT_TRUE(middle.ok());
  EXPECT_EQ(middle->memory().data(), incoming.memory().data() + 330);
  EXPECT_EQ(middle->memory().size(), 40u);
  middle->Landed(15);
  middle->Landed(25);
  EXPECT_EQ(table.missing_bytes(), 160u);
  for (const auto& [offset, length, place] : {FrameRange{200, 100, 0}, {0, 30, 300}, {70, 30, 370}}) {
    EXPECT_FALSE(incoming.ended());
    auto reserved = table.Reserve(1, offset, length);
    ASSERT_TRUE(reserved.ok()) << offset;
    EXPECT_EQ(reserved->memory().data(), incoming.memory().data() + place);
    reserved->Landed(length);
  }
  ASSERT_TRUE(incoming.ended());
  EXPECT_TRUE(incoming.Wait().ok());
  EXPECT_EQ(incoming.reported_bytes(), 200u);
  EXPECT_TRUE(incoming.ReportedOnce());
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.missing_bytes(), 0u);
  EXPECT_EQ(table.Reserve(1, 0, 100).status().code(), StatusCode::kNotFound);
}

TEST(LandingTableTest, WrongLandingsAreRefused) {
  LandingTable table;
  Incoming incoming(400);
  const std::vector<std::vector<FrameRange>> wrong = {
      {},                             // nothing awaited
      {{0, 0, 0}},                    // empty
      {{0, 401, 0}},                  // longer than the memory
      {{0, 100, 301}},                // outside
      {{0, 100, UINT64_MAX - 50}},    // outside, around the end of numbers
      {{UINT64_MAX - 50, 100, 0}},    // no such bytes in any frame
      {{0, 100, 0}, {99, 100, 200}},  // overlap in the frame
      {{0, 100, 0}, {200, 100, 99}},  // overlap in the memory
      {{0, 10, 0}, {0, 10, 20}},      // the same bytes twice
  };
  for (const auto& ranges : wrong) {
    EXPECT_EQ(table.Add(1, incoming.MakeLanding(ranges)).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(table.size(), 0u);
  ASSERT_TRUE(table.Add(1, incoming.MakeLanding(kTwoRanges)).ok());
  EXPECT_EQ(table.Add(1, incoming.MakeLanding(kTwoRanges)).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(table.missing_bytes(), 200u);
  EXPECT_FALSE(incoming.ended());
}

TEST(LandingTableTest, ReservationsOutsideOrTwiceAreRefused) {
  LandingTable table;
  Incoming incoming(400);
  ASSERT_TRUE(table.Add(1, incoming.MakeLanding(kTwoRanges)).ok());
  const std::pair<uint64_t, uint64_t> wrong[] = {
      {0, 0},    {100, 1},        {99, 2},   {150, 10}, {0, 300},        {300, 1},
      {199, 50}, {0, UINT64_MAX}, {50, 100}, {299, 2},  {UINT64_MAX, 1}, {250, UINT64_MAX - 100}};
  for (const auto& [offset, length] : wrong) {
    EXPECT_EQ(table.Reserve(1, offset, length).status().code(), StatusCode::kDataLoss)
        << offset << " " << length;
  }
  auto taken = table.Reserve(1, 40, 20);
  ASSERT_TRUE(taken.ok());
  for (const auto& [offset, length] :
       {std::pair<uint64_t, uint64_t>{40, 20}, {59, 2}, {39, 2}, {45, 1}, {0, 100}}) {
    EXPECT_EQ(table.Reserve(1, offset, length).status().code(), StatusCode::kDataLoss)
        << offset << " " << length;
  }
  EXPECT_TRUE(table.Reserve(1, 60, 40).ok()) << "beside it there is room";
  EXPECT_EQ(incoming.Wait().code(), StatusCode::kUnavailable) << "that one was given up at once";
}

TEST(LandingTableTest, AReservationThatIsGivenUpFailsTheTransfer) {
  LandingTable table;
  Incoming incoming(400);
  ASSERT_TRUE(table.Add(1, incoming.MakeLanding(kTwoRanges)).ok());
  {
    auto reserved = table.Reserve(1, 0, 100);
    ASSERT_TRUE(reserved.ok());
    reserved->Landed(99);
    EXPECT_FALSE(incoming.ended());
  }
  EXPECT_EQ(incoming.Wait().code(), StatusCode::kUnavailable);
  EXPECT_EQ(incoming.reported_bytes(), 99u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.missing_bytes(), 0u);
}

TEST(LandingTableTest, WhoHearsOfAnErrorKnowsWhetherTheMemoryIsFree) {
  LandingTable table;
  std::vector<bool> was_held;
  const auto add = [&](uint64_t transfer, Incoming& incoming) {
    auto keep = std::make_shared<int>(0);
    Landing landing = incoming.MakeLanding({{0, 400, 0}});
    landing.on_end = [&was_held, weak = std::weak_ptr<int>(keep)](const Status&) {
      was_held.push_back(!weak.expired());
    };
    landing.keep = std::move(keep);
    ASSERT_TRUE(table.Add(transfer, std::move(landing)).ok());
  };
  Incoming first(400);
  Incoming second(400);
  add(1, first);
  add(2, second);
  {
    const auto given_up = table.Reserve(1, 0, 100);
    ASSERT_TRUE(given_up.ok());
  }
  ASSERT_EQ(was_held, (std::vector<bool>{false}));
  const auto reserved = table.Reserve(2, 0, 100);
  ASSERT_TRUE(reserved.ok());
  table.Fail(2, UnavailableError("lost"));
  EXPECT_EQ(was_held, (std::vector<bool>{false, true})) << "it is received into";
}

TEST(LandingTableTest, AMovedReservationIsGivenUpOnce) {
  LandingTable table;
  Incoming incoming(400);
  ASSERT_TRUE(table.Add(1, incoming.MakeLanding({{0, 400, 0}})).ok());
  LandingTable::Reservation first = *table.Reserve(1, 0, 100);
  first.Landed(60);
  LandingTable::Reservation second = std::move(first);
  first = LandingTable::Reservation();
  EXPECT_FALSE(incoming.ended());
  second.Landed(40);
  second = *table.Reserve(1, 100, 300);
  EXPECT_FALSE(incoming.ended()) << "what was replaced had landed";
  second.Landed(300);
  EXPECT_TRUE(incoming.Wait().ok());
}

TEST(LandingTableTest, FailEndsOnceAndLaterBytesSayNothing) {
  LandingTable table;
  Incoming incoming(400);
  ASSERT_TRUE(table.Add(1, incoming.MakeLanding(kTwoRanges)).ok());
  auto reserved = table.Reserve(1, 0, 100);
  ASSERT_TRUE(reserved.ok());
  EXPECT_TRUE(table.Fail(1, DataLossError("why")));
  EXPECT_EQ(incoming.Wait().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(table.Fail(1, DataLossError("again")));
  EXPECT_FALSE(table.Drop(1));
  reserved->Landed(100);
  EXPECT_EQ(incoming.reported_bytes(), 0u);
  EXPECT_EQ(table.missing_bytes(), 0u);
}

TEST(LandingTableTest, FailAllEndsEveryOne) {
  LandingTable table;
  Incoming incoming[3] = {Incoming(10), Incoming(10), Incoming(10)};
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(table.Add(i, incoming[i].MakeLanding({{0, 10, 0}})).ok());
  table.FailAll(CancelledError("closing"));
  for (const Incoming& one : incoming) EXPECT_EQ(one.Wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(table.size(), 0u);
}

TEST(LandingTableTest, DropKeepsTheMemoryForWhoReceivesIntoIt) {
  LandingTable table;
  Incoming incoming(400);
  const auto keep = std::make_shared<int>(0);
  const auto captured = std::make_shared<int>(0);
  Landing landing = incoming.MakeLanding(kTwoRanges);
  landing.keep = keep;
  landing.on_end = [&, captured](const Status&) { ADD_FAILURE() << "an end after Drop"; };
  ASSERT_TRUE(table.Add(1, std::move(landing)).ok());
  {
    auto reserved = table.Reserve(1, 0, 100);
    ASSERT_TRUE(reserved.ok());
    EXPECT_TRUE(table.Drop(1));
    EXPECT_FALSE(table.Drop(1));
    EXPECT_EQ(captured.use_count(), 1) << "the callbacks go at once";
    EXPECT_EQ(keep.use_count(), 2);
    // The number may be used anew, and the old receiver does not touch that transfer.
    Incoming next(400);
    ASSERT_TRUE(table.Add(1, next.MakeLanding(kTwoRanges)).ok());
    reserved->Landed(50);
    *reserved = LandingTable::Reservation();
    EXPECT_FALSE(next.ended());
    EXPECT_EQ(table.missing_bytes(), 200u);
    EXPECT_TRUE(table.Drop(1));
  }
  EXPECT_EQ(keep.use_count(), 1);
  EXPECT_EQ(incoming.reported_bytes(), 0u);
}

TEST(LandingTableTest, TheMemoryIsLetGoOfAfterTheEnd) {
  LandingTable table;
  Incoming incoming(10);
  const auto keep = std::make_shared<int>(0);
  Landing landing = incoming.MakeLanding({{0, 10, 0}});
  landing.keep = keep;
  ASSERT_TRUE(table.Add(1, std::move(landing)).ok());
  auto reserved = table.Reserve(1, 0, 10);
  ASSERT_TRUE(reserved.ok());
  reserved->Landed(10);
  EXPECT_EQ(keep.use_count(), 1) << "although the reservation lives";
}

TEST(LandingTableTest, ADropInACallbackIsTheLastThatIsHeard) {
  LandingTable table;
  std::vector<std::byte> memory(10);
  int reports = 0;
  ASSERT_TRUE(table
                  .Add(1, {.memory = memory,
                           .ranges = {{0, 10, 0}},
                           .on_bytes =
                               [&](uint64_t, uint64_t) {
                                 ++reports;
                                 EXPECT_TRUE(table.Drop(1));
                               },
                           .on_end = [](const Status&) { ADD_FAILURE() << "an end after Drop"; }})
                  .ok());
  auto reserved = table.Reserve(1, 0, 10);
  ASSERT_TRUE(reserved.ok());
  reserved->Landed(5);
  reserved->Landed(5);
  EXPECT_EQ(reports, 1);
}

TEST(LandingTableTest, AFailInACallbackEndsAfterIt) {
  LandingTable table;
  std::vector<std::byte> memory(10);
  bool inside = false;
  Awaited end;
  ASSERT_TRUE(table
                  .Add(1, {.memory = memory,
                           .ranges = {{0, 10, 0}},
                           .on_bytes =
                               [&](uint64_t, uint64_t) {
                                 inside = true;
                                 EXPECT_TRUE(table.Fail(1, DataLossError("a wrong piece")));
                                 EXPECT_FALSE(end.arrived());
                                 inside = false;
                               },
                           .on_end =
                               [&](const Status& status) {
                                 EXPECT_FALSE(inside);
                                 end.callback()(status);
                               }})
                  .ok());
  auto reserved = table.Reserve(1, 0, 10);
  ASSERT_TRUE(reserved.ok());
  reserved->Landed(5);
  ASSERT_TRUE(end.arrived());
  EXPECT_EQ(end.Get().code(), StatusCode::kDataLoss);
}

TEST(LandingTableTest, NoCallbacksAreNeeded) {
  LandingTable table;
  std::vector<std::byte> memory(10);
  ASSERT_TRUE(table.Add(1, {.memory = memory, .ranges = {{0, 10, 0}}}).ok());
  auto reserved = table.Reserve(1, 0, 10);
  ASSERT_TRUE(reserved.ok());
  reserved->Landed(10);
  EXPECT_EQ(table.size(), 0u);
}

// Threads bring the pieces of many transfers in any order, a few of which are failed or dropped meanwhile.
TEST(LandingTableTest, ThreadsLandEveryByteOnce) {
  constexpr uint64_t kTransfers = 64;
  constexpr uint64_t kPieces = 40;
  constexpr uint64_t kPiece = 64;
  LandingTable table;
  std::vector<std::unique_ptr<Incoming>> incoming;
  for (uint64_t i = 0; i < kTransfers; ++i) {
    incoming.push_back(std::make_unique<Incoming>(kPieces * kPiece));
    ASSERT_TRUE(table.Add(i, incoming[i]->MakeLanding({{0, kPieces * kPiece, 0}})).ok());
  }
  std::vector<uint64_t> pieces(kTransfers * kPieces);
  std::iota(pieces.begin(), pieces.end(), 0);
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(1));
  std::atomic<size_t> next{0};
  const auto bring = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const uint64_t transfer = pieces[i] / kPieces;
      const uint64_t piece = pieces[i] % kPieces;
      // Of every eighth transfer one is failed, of the next one dropped.
      if (transfer % 8 == 0 && piece == 7) table.Fail(transfer, CancelledError("failed"));
      if (transfer % 8 == 1 && piece == 7) table.Drop(transfer);
      auto reserved = table.Reserve(transfer, piece * kPiece, kPiece);
      if (!reserved.ok()) continue;
      std::fill(reserved->memory().begin(), reserved->memory().end(), static_cast<std::byte>(transfer));
      reserved->Landed(kPiece / 2);
      reserved->Landed(kPiece / 2);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(bring);
  for (std::thread& thread : threads) thread.join();
  for (uint64_t i = 0; i < kTransfers; ++i) {
    if (i % 8 == 1) {
      EXPECT_FALSE(incoming[i]->ended());
    } else if (i % 8 == 0) {
      EXPECT_EQ(incoming[i]->Wait().code(), StatusCode::kCancelled);
    } else {
      EXPECT_TRUE(incoming[i]->Wait().ok());
      EXPECT_EQ(incoming[i]->reported_bytes(), kPieces * kPiece);
      EXPECT_EQ(incoming[i]->memory(), std::vector<std::byte>(kPieces * kPiece, static_cast<std::byte>(i)));
    }
    EXPECT_TRUE(incoming[i]->ReportedOnce());
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.missing_bytes(), 0u);
}

}  // namespace
}  // namespace terrace
