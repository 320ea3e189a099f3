#include "lib/wire/bulk_receiver.h"

#include <algorithm>
#include <string>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// What is received at once: reported, and hashed, while it lies in a core's second-level cache.
constexpr uint64_t kStepBytes = uint64_t{512} << 10;
constexpr uint64_t kTurnBytes = uint64_t{2} << 20;

}  // namespace

MutableBytes BulkReceiver::Target(MutableBytes scratch) const {
  const MutableBytes all = dropping_ ? scratch : reservation_.memory().subspan(at_);
  return all.first(std::min({uint64_t{all.size()}, left_, kStepBytes}));
}

BulkReceiver::Turn BulkReceiver::Receive(BulkStream& stream, MutableBytes scratch) {
  Turn turn;
  for (uint64_t taken = 0; taken < kTurnBytes;) {
    // With the last of a message comes the header of the next.
    std::array<iovec, 2> parts;
    size_t n_parts = 0;
    const MutableBytes body = left_ > 0 ? Target(scratch) : MutableBytes();
    if (!body.empty()) parts[n_parts++] = {body.data(), body.size()};
    if (body.size() == left_)
      parts[n_parts++] = {header_.data() + header_filled_, kBulkMessageBytes - header_filled_};
    size_t asked = 0;
    for (size_t i = 0; i < n_parts; ++i) asked += parts[i].iov_len;

    const BulkMove move = stream.Read(std::span(parts).first(n_parts));
    turn.moved |= move.n > 0;
    taken += move.n;
    const size_t of_body = std::min(move.n, body.size());
    if (of_body > 0) LandBody(of_body);
    header_filled_ += move.n - of_body;
    if (header_filled_ == kBulkMessageBytes) turn.status = OpenMessage();
    if (turn.status.ok()) turn.status = move.status;
    if (!turn.status.ok() || move.blocked || move.n < asked) return turn;
  }
  turn.again = true;
  return turn;
}

void BulkReceiver::LandBody(uint64_t n) {
  left_ -= n;
  at_ += n;
  if (!dropping_) reservation_.Landed(n);
  if (left_ == 0) reservation_ = {};
}

Status BulkReceiver::OpenMessage() {
  header_filled_ = 0;
  TERRACE_ASSIGN_OR_RETURN(const BulkMessage message, DecodeBulkMessage(header_));
  if (message.kind == BulkKind::kAbort) {
    const std::string code = std::to_string(static_cast<uint32_t>(message.code));
    landings_->Fail(message.transfer, UnavailableError("the peer gave the transfer up, code " + code));
    return OkStatus();
  }
  Result<LandingTable::Reservation> reserved =
      landings_->Reserve(message.transfer, message.offset, message.length);
  dropping_ = !reserved.ok();
  if (dropping_ && reserved.status().code() != StatusCode::kNotFound) return reserved.status();
  if (!dropping_) reservation_ = std::move(reserved).value();
  left_ = message.length;
  at_ = 0;
  return OkStatus();
}

void BulkReceiver::Stop() {
  reservation_ = {};
  header_filled_ = 0;
  left_ = 0;
}

}  // namespace terrace
