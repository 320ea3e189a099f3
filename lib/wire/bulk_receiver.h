// BulkReceiver: what comes in on one bulk connection, into the memory that the landing table names. Used by
// one thread at a time; the table's callbacks run inside Receive.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "lib/wire/bulk_message.h"
#include "lib/wire/bulk_stream.h"
#include "lib/wire/landing_table.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

class BulkReceiver {
 public:
  explicit BulkReceiver(std::shared_ptr<LandingTable> landings) : landings_(std::move(landings)) {}

  // One turn: until the socket has no more, or the turn's share is used up (`again`). Bytes that nobody waits
  // for go to `scratch`. Not OK: the connection is over.
  struct Turn {
    Status status;
    bool again = false;
    bool moved = false;
  };
  Turn Receive(BulkStream& stream, MutableBytes scratch);

  // Whether a message, or its header, is there in part.
  bool in_message() const { return left_ > 0 || header_filled_ > 0; }
  // Gives up the message under way.
  void Stop();

 private:
  MutableBytes Target(MutableBytes scratch) const;
  void LandBody(uint64_t n);
  Status OpenMessage();

  std::shared_ptr<LandingTable> landings_;
  std::array<std::byte, kBulkMessageBytes> header_;
  size_t header_filled_ = 0;
  uint64_t left_ = 0;      // of the message's bytes
  uint64_t at_ = 0;        // of the reservation's memory
  bool dropping_ = false;  // nobody waits for the message's bytes
  LandingTable::Reservation reservation_;
};

}  // namespace terrace
