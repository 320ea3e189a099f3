// One end in a reactor, the other a peer that does what it likes.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/wire/bulk_fixture.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kPage = 4 * kKiB;
// More than any socket's buffers take.
constexpr uint64_t kTooMuch = 64 * kMiB;

class BulkPeerTest : public ::testing::Test {
 protected:
  void Start(BulkReactorOptions options = {}, uint64_t max_message_bytes = kMaxBulkMessageBytes) {
    reactor_ = StartReactor(options);
    const SocketEnds ends = Connect(Transport::kUnix);
    peer_ = std::make_unique<RawPeer>(ends.fd[1]);
    end_.Join(*reactor_, ends.fd[0], nullptr, max_message_bytes);
  }
  void TearDown() override {
    reactor_.reset();
    EXPECT_TRUE(end_.closed.arrived());
    EXPECT_EQ(FrameCounter::live(), 0);
  }
  // The connection ends because of what the peer did, and its socket with it.
  Status Ended() {
    const Status status = end_.closed.Get();
    EXPECT_EQ(end_.connection->queued_bytes(), 0u);
    return status;
  }

  std::unique_ptr<BulkReactor> reactor_;
  std::unique_ptr<RawPeer> peer_;
  BulkEnd end_;
};

TEST_F(BulkPeerTest, GarbageEndsTheConnection) {
  Start();
  peer_->Write(RandomBytes(kBulkMessageBytes, 1));
  EXPECT_EQ(Ended().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(peer_->AtEnd());
}

TEST_F(BulkPeerTest, AnOversizeMessageEndsTheConnection) {
  Start();
  Incoming incoming(2 * kMaxBulkMessageBytes);
  ASSERT_TRUE(end_.landings->Add(1, incoming.MakeLanding({{0, 2 * kMaxBulkMessageBytes, 0}})).ok());
  peer_->WriteMessage({.transfer = 1, .length = kMaxBulkMessageBytes + kPage});
  EXPECT_EQ(Ended().code(), StatusCode::kDataLoss);
  EXPECT_EQ(end_.landings->missing_bytes(), 2 * kMaxBulkMessageBytes);
  end_.landings->FailAll(UnavailableError("the connection is gone"));
}

TEST_F(BulkPeerTest, BytesThatWereNotAskedForEndTheConnection) {
  Start();
  Incoming incoming(4 * kPage);
  ASSERT_TRUE(end_.landings->Add(1, incoming.MakeLanding({{kPage, kPage, 0}})).ok());
  peer_->WriteMessage({.transfer = 1, .offset = kPage, .length = 2 * kPage});
  EXPECT_EQ(Ended().code(), StatusCode::kDataLoss);
  EXPECT_EQ(incoming.memory(), std::vector<std::byte>(4 * kPage));
  EXPECT_TRUE(end_.landings->Drop(1));
}

TEST_F(BulkPeerTest, BytesThatCameBeforeEndTheConnection) {
  Start();
  Incoming incoming(2 * kPage);
  ASSERT_TRUE(end_.landings->Add(1, incoming.MakeLanding({{0, 2 * kPage, 0}})).ok());
  const auto first = RandomBytes(kPage, 1);
  peer_->WriteMessage({.transfer = 1, .length = kPage});
  peer_->Write(first);
  peer_->WriteMessage({.transfer = 1, .length = kPage});
  EXPECT_EQ(Ended().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), incoming.memory().begin()));
  EXPECT_EQ(incoming.reported_bytes(), kPage);
  EXPECT_TRUE(end_.landings->Drop(1));
}

TEST_F(BulkPeerTest, AnUnknownTransferIsReadAndDropped) {
  Start();
  Incoming incoming(kPage);
  ASSERT_TRUE(end_.landings->Add(2, incoming.MakeLanding({{0, kPage, 0}})).ok());
  peer_->WriteMessage({.transfer = 1, .offset = 40 * kPage, .length = kMiB});
  peer_->Write(RandomBytes(kMiB, 1));
  peer_->WriteMessage({.kind = BulkKind::kAbort, .transfer = 1, .code = BulkCode::kGivenUp});
  peer_->WriteMessage({.transfer = 2, .length = kPage});
  peer_->Write(RandomBytes(kPage, 2));
  EXPECT_TRUE(incoming.Wait().ok());
  EXPECT_EQ(incoming.memory(), RandomBytes(kPage, 2));
}

TEST_F(BulkPeerTest, APeerThatClosesInAMessageFailsItsTransfer) {
  Start();
  Incoming half(4 * kPage);
  Incoming other(kPage);
  ASSERT_TRUE(end_.landings->Add(1, half.MakeLanding({{0, 4 * kPage, 0}})).ok());
  ASSERT_TRUE(end_.landings->Add(2, other.MakeLanding({{0, kPage, 0}})).ok());
  peer_->WriteMessage({.transfer = 1, .length = 4 * kPage});
  peer_->Write(RandomBytes(kPage + 1, 1));
  peer_->Close();
  EXPECT_EQ(half.Wait().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Ended().code(), StatusCode::kUnavailable);
  EXPECT_EQ(half.reported_bytes(), kPage + 1);
  EXPECT_EQ(end_.landings->size(), 1u) << "the other is its owner's to fail";
  EXPECT_TRUE(end_.landings->Drop(2));
}

TEST_F(BulkPeerTest, AHeaderInPiecesIsPutTogether) {
  Start();
  Incoming incoming(kPage);
  ASSERT_TRUE(end_.landings->Add(7, incoming.MakeLanding({{0, kPage, 0}})).ok());
  for (const std::byte byte : EncodeBulkMessage({.transfer = 7, .length = kPage})) peer_->Write({&byte, 1});
  peer_->Write(RandomBytes(kPage, 7));
  EXPECT_TRUE(incoming.Wait().ok());
  EXPECT_EQ(incoming.memory(), RandomBytes(kPage, 7));
}

TEST_F(BulkPeerTest, ATransferThatIsDroppedInAMessageLosesNothingElse) {
  Start();
  Incoming dropped(2 * kPage);
  Incoming next(kPage);
  std::promise<void> half_promise;
  Landing landing = dropped.MakeLanding({{0, 2 * kPage, 0}});
  landing.on_bytes = [&](uint64_t, uint64_t) {
    EXPECT_TRUE(end_.landings->Drop(1));
    half_promise.set_value();
  };
  ASSERT_TRUE(end_.landings->Add(1, std::move(landing)).ok());
  ASSERT_TRUE(end_.landings->Add(2, next.MakeLanding({{0, kPage, 0}})).ok());
  peer_->WriteMessage({.transfer = 1, .length = 2 * kPage});
  peer_->Write(RandomBytes(kPage, 1));
  ASSERT_EQ(half_promise.get_future().wait_for(kPatience), std::future_status::ready);
  peer_->Write(RandomBytes(kPage, 2));
  peer_->WriteMessage({.transfer = 2, .length = kPage});
  peer_->Write(RandomBytes(kPage, 3));
  EXPECT_TRUE(next.Wait().ok());
  EXPECT_FALSE(dropped.ended());
}

TEST_F(BulkPeerTest, APeerThatStopsSendingInAMessageIsDropped) {
  Start({.stall_limit = std::chrono::milliseconds(50)});
  Incoming incoming(kPage);
  ASSERT_TRUE(end_.landings->Add(1, incoming.MakeLanding({{0, kPage, 0}})).ok());
  peer_->WriteMessage({.transfer = 1, .length = kPage});
  EXPECT_EQ(incoming.Wait().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Ended().message(), HasSubstr("stands still"));
}

TEST_F(BulkPeerTest, APeerThatStopsSendingInAHeaderIsDropped) {
  Start({.stall_limit = std::chrono::milliseconds(50)});
  const auto header = EncodeBulkMessage({.transfer = 1, .length = kPage});
  peer_->Write(Bytes(header).first(5));
  EXPECT_THAT(Ended().message(), HasSubstr("stands still"));
}

TEST_F(BulkPeerTest, APeerThatStopsReadingIsDropped) {
  Start({.stall_limit = std::chrono::milliseconds(50)});
  Awaited sent;
  end_.connection->Send(1, FrameCounter::Make(kTooMuch, 1), {{0, kTooMuch, 0}}, sent.callback());
  EXPECT_EQ(sent.Get().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Ended().message(), HasSubstr("stands still"));
  EXPECT_EQ(FrameCounter::live(), 0);
}

TEST_F(BulkPeerTest, CloseTellsEveryQueuedSendOnce) {
  Start();
  std::vector<Awaited> sent(10);
  const BufferRef frame = FrameCounter::Make(kTooMuch, 1);
  for (uint64_t i = 0; i < sent.size(); ++i) {
    end_.connection->Send(i, frame, {{0, kTooMuch, 0}}, sent[i].callback());
  }
  peer_->AwaitReadable();
  EXPECT_GT(end_.connection->queued_bytes(), 9 * kTooMuch);
  end_.connection->Close();
  EXPECT_EQ(Ended().code(), StatusCode::kCancelled);
  for (const Awaited& one : sent) EXPECT_EQ(one.Get().code(), StatusCode::kCancelled);
  EXPECT_EQ(frame.use_count(), 1u);
}

TEST_F(BulkPeerTest, CancelLetsTheMessageEndAndTellsThePeer) {
  Start();
  Awaited first;
  Awaited second;
  Awaited third;
  const BufferRef frame = FrameCounter::Make(kTooMuch, 1);
  end_.connection->Send(1, frame, {{0, kTooMuch, 0}}, first.callback());
  end_.connection->Send(2, frame, {{0, kMiB, 0}}, second.callback());
  end_.connection->Send(3, frame, {{kMiB, kPage, 0}}, third.callback());
  peer_->AwaitReadable();  // the first message is under way, and stays so until it is read
  end_.connection->CancelSend(2);
  EXPECT_EQ(second.Get().code(), StatusCode::kCancelled);
  end_.connection->CancelSend(1);

  BulkMessage message = peer_->ReadMessage();
  uint64_t begun = 0;
  for (; message.kind == BulkKind::kData; message = peer_->ReadMessage()) {
    ASSERT_EQ(message.transfer, 1u);
    ASSERT_EQ(message.offset, begun);
    const Bytes expected = frame.frame().subspan(begun, message.length);
    const auto got = peer_->Read(message.length);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin()));
    begun += message.length;
  }
  EXPECT_LT(begun, kTooMuch);
  EXPECT_GT(begun, 0u);
  EXPECT_EQ(message.transfer, 1u);
  EXPECT_EQ(message.code, BulkCode::kGivenUp);
  EXPECT_EQ(first.Get().code(), StatusCode::kCancelled);
  message = peer_->ReadMessage();
  EXPECT_EQ(message.kind, BulkKind::kAbort);
  EXPECT_EQ(message.transfer, 2u);
  message = peer_->ReadMessage();
  EXPECT_EQ(message.transfer, 3u);
  EXPECT_EQ(message.offset, kMiB);
  peer_->Read(kPage);
  EXPECT_TRUE(third.Get().ok());
  EXPECT_EQ(end_.connection->queued_bytes(), 0u);
}

TEST_F(BulkPeerTest, CancelOfWhatIsNotQueuedSaysNothing) {
  Start();
  end_.connection->CancelSend(1);
  end_.connection->SendAbort(2, BulkCode::kDraining);
  const BulkMessage message = peer_->ReadMessage();
  EXPECT_EQ(message.kind, BulkKind::kAbort);
  EXPECT_EQ(message.transfer, 2u);
  EXPECT_EQ(message.code, BulkCode::kDraining);
}

TEST_F(BulkPeerTest, MessagesAreNoLongerThanThePeerTakes) {
  Start({}, 2 * kPage);
  const BufferRef frame = FrameCounter::Make(8 * kPage, 1);
  end_.connection->Send(1, frame, {{kPage, 5 * kPage, 0}, {7 * kPage, kPage, 0}}, nullptr);
  const std::pair<uint64_t, uint64_t> expected[] = {{1, 2}, {3, 2}, {5, 1}, {7, 1}};
  for (const auto& [first, n] : expected) {
    const BulkMessage message = peer_->ReadMessage();
    EXPECT_EQ(message.offset, first * kPage);
    ASSERT_EQ(message.length, n * kPage);
    const auto got = peer_->Read(n * kPage);
    EXPECT_TRUE(
        std::equal(got.begin(), got.end(), frame.frame().begin() + static_cast<ptrdiff_t>(first * kPage)));
  }
}

TEST_F(BulkPeerTest, RangesThatAreNotOfTheFrameAreRefused) {
  Start();
  const BufferRef frame = FrameCounter::Make(4 * kPage, 1);
  const std::vector<std::vector<FrameRange>> wrong = {{},
                                                      {{0, 0, 0}},
                                                      {{0, 5 * kPage, 0}},
                                                      {{4 * kPage, kPage, 0}},
                                                      {{0, kPage, 0}, {UINT64_MAX - kPage + 1, 2 * kPage, 0}},
                                                      {{1, kPage, 0}},
                                                      {{0, kPage + 1, 0}}};
  for (const auto& ranges : wrong) {
    Awaited sent;
    end_.connection->Send(1, frame, ranges, sent.callback());
    EXPECT_EQ(sent.Get().code(), StatusCode::kInvalidArgument);
  }
  Awaited no_frame;
  end_.connection->Send(1, BufferRef(), {{0, kPage, 0}}, no_frame.callback());
  EXPECT_EQ(no_frame.Get().code(), StatusCode::kInvalidArgument);
  end_.connection->Send(2, frame, {{0, 4 * kPage, 0}}, nullptr);
  EXPECT_EQ(peer_->ReadMessage().transfer, 2u) << "and nothing of the others went out";
}

TEST_F(BulkPeerTest, MoreSendsThanTheQueueHoldsAreRefused) {
  Start({.max_queued_sends = 2});
  const BufferRef frame = FrameCounter::Make(kTooMuch, 1);
  end_.connection->Send(1, frame, {{0, kTooMuch, 0}}, nullptr);
  peer_->AwaitReadable();
  Awaited sent[3];
  for (Awaited& one : sent) end_.connection->Send(2, frame, {{0, kTooMuch, 0}}, one.callback());
  EXPECT_EQ(sent[2].Get().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(sent[0].arrived() || sent[1].arrived());
  peer_->Close();
  EXPECT_EQ(sent[0].Get().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sent[1].Get().code(), StatusCode::kUnavailable);
}

TEST_F(BulkPeerTest, WrongConnectionsAreRefusedAndTheirSocketsClosed) {
  Start();
  const SocketEnds ends = Connect(Transport::kUnix);
  RawPeer peer(ends.fd[1]);
  EXPECT_EQ(reactor_->Add({.fd = ends.fd[0]}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(peer.AtEnd());
  for (const uint64_t wrong : {uint64_t{0}, kPage + 1, kMaxBulkMessageBytes + kPage}) {
    const SocketEnds more = Connect(Transport::kUnix);
    RawPeer other(more.fd[1]);
    const auto added =
        reactor_->Add({.fd = more.fd[0], .landings = end_.landings, .max_message_bytes = wrong});
    EXPECT_EQ(added.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(other.AtEnd());
  }
}

TEST_F(BulkPeerTest, WhatIsNoSocketEndsAtOnce) {
  Start();
  BulkEnd end;
  end.Join(*reactor_, -1);
  EXPECT_FALSE(end.closed.Get().ok());
}

TEST(BulkReactorOptionsTest, EachFieldIsChecked) {
  EXPECT_TRUE(BulkReactorOptions().Validate().ok());
  for (const BulkReactorOptions& wrong :
       {BulkReactorOptions{.threads = 0}, BulkReactorOptions{.threads = 17},
        BulkReactorOptions{.stall_limit = Duration(0)}, BulkReactorOptions{.max_queued_sends = 0}}) {
    EXPECT_EQ(BulkReactor::Start(wrong).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace terrace
