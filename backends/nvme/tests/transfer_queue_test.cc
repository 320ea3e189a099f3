// TransferQueue on an engine of the test's own: what is started is a list, completions are what the test
// says.
#include "backends/nvme/transfer_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>

namespace terrace {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct ListEngine : IoEngine {
  IoEngineMode mode() const override { return {.engine = "list"}; }
  void Start(IoRequest* request) override { started.push_back(request); }
  void Wait(std::optional<Duration>, std::vector<IoCompletion>*) override {}
  void Wake() override {}
  std::vector<IoRequest*> started;
};

uint64_t BytesOf(const IoRequest& request) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.num_memory; ++i) bytes += request.memory[i].iov_len;
  return bytes;
}

class TransferQueueTest : public ::testing::Test {
 protected:
  TransferRef Make(IoDirection direction, uint64_t bytes, uint64_t offset = 0) {
    auto transfer = std::make_shared<Transfer>();
    transfer->direction = direction;
    transfer->spans.push_back({3, offset, bytes, memory_});
    transfer->on_end = [this, raw = transfer.get()](const Status& status) { ends_[raw].push_back(status); };
    transfer->on_bytes = [this](std::byte* at, uint64_t n) { pieces_.emplace_back(at - memory_, n); };
    return transfer;
  }
  // Completes the oldest request.
  void Complete(int64_t result) {
    ASSERT_FALSE(engine_.started.empty());
    IoRequest* request = engine_.started.front();
    engine_.started.erase(engine_.started.begin());
    queue_.OnCompletion({request, result});
    queue_.Pump();
    queue_.Report();
  }
  void CompleteWhole() {
    ASSERT_FALSE(engine_.started.empty());
    Complete(static_cast<int64_t>(BytesOf(*engine_.started.front())));
  }
  uint64_t InFlight(IoDirection direction) const {
    uint64_t bytes = 0;
    for (const IoRequest* request : engine_.started)
      bytes += request->direction == direction ? BytesOf(*request) : 0;
    return bytes;
  }
  StatusCode EndOf(const TransferRef& transfer) {
    const std::vector<Status>& ends = ends_[transfer.get()];
    EXPECT_EQ(ends.size(), 1u) << "ended once";
    return ends.empty() ? StatusCode::kUnknown : ends[0].code();
  }

  // Never touched: only its addresses are.
  std::byte* const memory_ = reinterpret_cast<std::byte*>(uintptr_t{1} << 32);
  ListEngine engine_;
  TransferQueue queue_{&engine_, {2 * kMiB, 8 * kMiB}};
  std::map<Transfer*, std::vector<Status>> ends_;
  std::vector<std::pair<uint64_t, uint64_t>> pieces_;
};

TEST_F(TransferQueueTest, SplitsBoundsAndReportsEachByteOnce) {
  const TransferRef read = Make(IoDirection::kRead, 21 * kMiB + 4096);
  queue_.Add(read);
  queue_.Pump();
  EXPECT_EQ(InFlight(IoDirection::kRead), 8 * kMiB);
  uint64_t largest = 0;
  int requests = 0;
  while (!engine_.started.empty()) {
    ASSERT_LE(InFlight(IoDirection::kRead), 8 * kMiB);
    largest = std::max(largest, BytesOf(*engine_.started.front()));
    ++requests;
    CompleteWhole();
  }
  EXPECT_EQ(largest, 2 * kMiB);
  EXPECT_EQ(requests, 11);
  EXPECT_EQ(EndOf(read), StatusCode::kOk);
  std::sort(pieces_.begin(), pieces_.end());
  uint64_t end = 0;
  for (const auto& [offset, n] : pieces_) {
    EXPECT_EQ(offset, end);
    end = offset + n;
  }
  EXPECT_EQ(end, 21 * kMiB + 4096);
  EXPECT_EQ(queue_.bytes_done(IoDirection::kRead), 21 * kMiB + 4096);
  EXPECT_EQ(queue_.bytes_done(IoDirection::kWrite), 0u);
}

TEST_F(TransferQueueTest, WhatFollowsIsStartedBeforeWhatArrivedIsReported) {
  const TransferRef read = Make(IoDirection::kRead, 9 * kMiB);
  size_t started_at_report = 0;
  read->on_bytes = [&](std::byte*, uint64_t) { started_at_report = engine_.started.size(); };
  queue_.Add(read);
  queue_.Pump();
  ASSERT_EQ(engine_.started.size(), 4u);
  IoRequest* first = engine_.started.front();
  engine_.started.erase(engine_.started.begin());
  queue_.OnCompletion({first, static_cast<int64_t>(BytesOf(*first))});
  EXPECT_EQ(started_at_report, 0u) << "reported before the next could start";
  queue_.Pump();
  queue_.Report();
  EXPECT_EQ(started_at_report, 4u);
  while (!engine_.started.empty()) CompleteWhole();
  EXPECT_EQ(EndOf(read), StatusCode::kOk);
}

TEST_F(TransferQueueTest, NoEndBeforeTheLastBytesAreReported) {
  const TransferRef read = Make(IoDirection::kRead, 4096);
  read->on_bytes = [&](std::byte*, uint64_t n) {
    EXPECT_TRUE(ends_.empty());
    pieces_.emplace_back(0, n);
  };
  queue_.Add(read);
  queue_.Pump();
  queue_.OnCompletion({engine_.started.front(), 4096});
  engine_.started.clear();
  queue_.Stop(read);  // whoever gave it up waits for the report as well
  EXPECT_TRUE(ends_.empty());
  queue_.Report();
  EXPECT_EQ(pieces_.size(), 1u);
  EXPECT_EQ(EndOf(read), StatusCode::kOk) << "everything had arrived";
  queue_.Report();
  EXPECT_EQ(pieces_.size(), 1u);
}

TEST_F(TransferQueueTest, RequestsAreNotCutToTheRoomThatIsLeft) {
  const TransferRef first = Make(IoDirection::kWrite, 7 * kMiB);
  const TransferRef second = Make(IoDirection::kWrite, 4096);
  second->spans.push_back({3, 4096, 2 * kMiB - 4096, memory_ + 64 * kMiB});  // a tier page and a frame
  queue_.Add(first);
  queue_.Add(second);
  queue_.Pump();
  EXPECT_EQ(InFlight(IoDirection::kWrite), 7 * kMiB) << "1 MiB is room for the page, not for the request";
  CompleteWhole();
  ASSERT_EQ(engine_.started.size(), 4u);
  EXPECT_EQ(BytesOf(*engine_.started.back()), 2 * kMiB);
  EXPECT_EQ(engine_.started.back()->num_memory, 2u);
  while (!engine_.started.empty()) CompleteWhole();
  EXPECT_EQ(EndOf(first), StatusCode::kOk);
  EXPECT_EQ(EndOf(second), StatusCode::kOk);
}

TEST_F(TransferQueueTest, ShortResultsGoOnWhereTheyStopped) {
  const TransferRef write = Make(IoDirection::kWrite, 2 * kMiB, 64 * kMiB);
  queue_.Add(write);
  queue_.Pump();
  Complete(4096 * 3 + 700);  // not even aligned: the rest of the page is written again
  ASSERT_EQ(engine_.started.size(), 1u);
  EXPECT_EQ(engine_.started[0]->offset, 64 * kMiB + 3 * 4096);
  EXPECT_EQ(engine_.started[0]->memory[0].iov_base, memory_ + 3 * 4096);
  EXPECT_EQ(BytesOf(*engine_.started[0]), 2 * kMiB - 3 * 4096);
  EXPECT_TRUE(ends_.empty()) << "a short write was taken for success";
  CompleteWhole();
  EXPECT_EQ(EndOf(write), StatusCode::kOk);
}

TEST_F(TransferQueueTest, PageAndFrameShareARequest) {
  auto transfer = Make(IoDirection::kWrite, 4096);
  transfer->spans.push_back({3, 4096, kMiB, memory_ + 64 * kMiB});
  transfer->spans.push_back({4, 0, 4096, memory_ + 65 * kMiB});
  queue_.Add(transfer);
  queue_.Pump();
  ASSERT_EQ(engine_.started.size(), 2u);
  EXPECT_EQ(engine_.started[0]->num_memory, 2u);
  EXPECT_EQ(BytesOf(*engine_.started[0]), kMiB + 4096);
  EXPECT_EQ(engine_.started[1]->fd, 4);
  // A result that ends within the second run of memory.
  Complete(8192);
  ASSERT_EQ(engine_.started.size(), 2u);
  const IoRequest& rest = *engine_.started[1];
  EXPECT_EQ(rest.offset, 8192u);
  EXPECT_EQ(rest.num_memory, 1u);
  EXPECT_EQ(rest.memory[0].iov_base, memory_ + 64 * kMiB + 4096);
  EXPECT_EQ(BytesOf(rest), kMiB - 4096);
  CompleteWhole();
  CompleteWhole();
  EXPECT_EQ(EndOf(transfer), StatusCode::kOk);
}

TEST_F(TransferQueueTest, RetriesAreBounded) {
  const TransferRef patient = Make(IoDirection::kRead, 4096);
  queue_.Add(patient);
  queue_.Pump();
  for (int i = 0; i < 50; ++i) Complete(i % 2 ? -EAGAIN : -EINTR);
  EXPECT_TRUE(ends_.empty());
  CompleteWhole();
  EXPECT_EQ(EndOf(patient), StatusCode::kOk);

  const TransferRef hopeless = Make(IoDirection::kRead, 4096);
  queue_.Add(hopeless);
  queue_.Pump();
  int tries = 0;
  for (; !engine_.started.empty() && tries < 1000; ++tries) Complete(-EAGAIN);
  EXPECT_EQ(EndOf(hopeless), StatusCode::kUnavailable);
  EXPECT_LT(tries, 200);
}

TEST_F(TransferQueueTest, AnErrorEndsItsOwnTransferOnly) {
  const TransferRef bad = Make(IoDirection::kRead, 16 * kMiB);
  const TransferRef good = Make(IoDirection::kRead, 4 * kMiB);
  queue_.Add(bad);
  queue_.Add(good);
  queue_.Pump();
  ASSERT_EQ(engine_.started.size(), 4u);
  Complete(-EIO);
  EXPECT_TRUE(ends_.empty()) << "three requests still touch its memory";
  while (!engine_.started.empty()) CompleteWhole();
  EXPECT_EQ(EndOf(bad), StatusCode::kUnavailable);
  EXPECT_EQ(EndOf(good), StatusCode::kOk);
}

TEST_F(TransferQueueTest, EndOfFileAndFullFileSystemHaveTheirCodes) {
  const TransferRef read = Make(IoDirection::kRead, 8192);
  const TransferRef write = Make(IoDirection::kWrite, 8192);
  queue_.Add(read);
  queue_.Pump();
  Complete(4096);
  Complete(0);
  EXPECT_EQ(EndOf(read), StatusCode::kDataLoss);
  queue_.Add(write);
  queue_.Pump();
  Complete(-ENOSPC);
  EXPECT_EQ(EndOf(write), StatusCode::kResourceExhausted);
}

TEST_F(TransferQueueTest, ReadsGoFirstAndWritesDoNotStarve) {
  std::vector<TransferRef> all;
  for (int i = 0; i < 16; ++i) all.push_back(Make(IoDirection::kWrite, 4 * kMiB));
  for (int i = 0; i < 8; ++i) all.push_back(Make(IoDirection::kRead, 4 * kMiB));
  for (const TransferRef& transfer : all) queue_.Add(transfer);
  queue_.Pump();
  EXPECT_EQ(InFlight(IoDirection::kRead), 8 * kMiB);
  EXPECT_EQ(InFlight(IoDirection::kWrite), 2 * kMiB) << "one write while reads wait, and not none";
  EXPECT_EQ(engine_.started[0]->direction, IoDirection::kRead);
  // Only writes complete: they go on, one at a time, although reads wait all the while.
  for (int i = 0; i < 4; ++i) {
    const auto at = std::find_if(engine_.started.begin(), engine_.started.end(),
                                 [](IoRequest* r) { return r->direction == IoDirection::kWrite; });
    ASSERT_NE(at, engine_.started.end()) << "starved after " << i;
    std::rotate(engine_.started.begin(), at, at + 1);
    CompleteWhole();
    EXPECT_EQ(InFlight(IoDirection::kWrite), 2 * kMiB);
  }
  // The same without a read that waits: those in flight wait in the device behind the writes.
  while (InFlight(IoDirection::kRead) > 0) {
    ASSERT_EQ(InFlight(IoDirection::kWrite), 2 * kMiB);
    const auto at = std::find_if(engine_.started.begin(), engine_.started.end(),
                                 [](IoRequest* r) { return r->direction == IoDirection::kRead; });
    std::rotate(engine_.started.begin(), at, at + 1);
    CompleteWhole();
  }
  // Their budget comes back with what completes, not at once.
  EXPECT_EQ(InFlight(IoDirection::kWrite), 2 * kMiB);
  CompleteWhole();
  EXPECT_EQ(InFlight(IoDirection::kWrite), 4 * kMiB);
  bool wide = false;
  while (!engine_.started.empty()) {
    wide |= InFlight(IoDirection::kWrite) == 8 * kMiB;
    CompleteWhole();
  }
  EXPECT_TRUE(wide) << "without waiting reads, writes have their whole budget";
  for (const TransferRef& transfer : all) EXPECT_EQ(EndOf(transfer), StatusCode::kOk);
}

TEST_F(TransferQueueTest, ANextReadFindsNoMoreWritesThanTheOneBefore) {
  for (int i = 0; i < 16; ++i) queue_.Add(Make(IoDirection::kWrite, 4 * kMiB));
  queue_.Pump();
  EXPECT_EQ(InFlight(IoDirection::kWrite), 8 * kMiB) << "nobody reads";
  for (int i = 0; i < 4; ++i) {
    const TransferRef read = Make(IoDirection::kRead, kMiB);
    queue_.Add(read);
    queue_.Pump();
    // What was in flight when the first one came goes, and is not replaced.
    while (!ends_.contains(read.get())) CompleteWhole();
    EXPECT_LE(InFlight(IoDirection::kWrite), 2 * kMiB) << "after read " << i;
    EXPECT_GT(InFlight(IoDirection::kWrite), 0u) << "after read " << i;
  }
  while (!engine_.started.empty()) CompleteWhole();
  EXPECT_EQ(queue_.bytes_done(IoDirection::kWrite), 64 * kMiB);
}

TEST_F(TransferQueueTest, SmallWritesBesideReadsShareOneRequestsBytes) {
  for (int i = 0; i < 100; ++i) queue_.Add(Make(IoDirection::kWrite, 64 * 1024));
  queue_.Add(Make(IoDirection::kRead, 4 * kMiB));
  queue_.Pump();
  EXPECT_EQ(InFlight(IoDirection::kWrite), 2 * kMiB);
  EXPECT_EQ(engine_.started.size(), 34u) << "two of the read, 32 of the writes";
  while (!engine_.started.empty()) CompleteWhole();
}

TEST_F(TransferQueueTest, StopWaitsForWhatIsInFlight) {
  const TransferRef busy = Make(IoDirection::kWrite, 12 * kMiB);
  const TransferRef waiting = Make(IoDirection::kWrite, 4 * kMiB);
  queue_.Add(busy);
  queue_.Add(waiting);
  queue_.Pump();
  queue_.Stop(waiting);
  EXPECT_EQ(EndOf(waiting), StatusCode::kCancelled) << "nothing of it was in flight";
  queue_.Stop(busy);
  EXPECT_FALSE(ends_.contains(busy.get())) << "four requests read its memory";
  for (int i = 0; i < 3; ++i) CompleteWhole();
  EXPECT_FALSE(ends_.contains(busy.get()));
  Complete(4096);  // short, and not continued
  EXPECT_TRUE(engine_.started.empty());
  EXPECT_EQ(EndOf(busy), StatusCode::kCancelled);
}

}  // namespace
}  // namespace terrace
