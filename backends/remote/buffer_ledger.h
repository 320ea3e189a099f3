// BufferLedger: buffers that transports (gRPC, sockets) may still read or write, also after their operation
// has ended. What is in the ledger is charged to it until the last of them has let go; Close waits for that.
//
// Threads: every call from every thread. It may go before what it lent: the books are shared.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "terrace/bytes.h"
#include "terrace/time.h"

namespace terrace::remote {

class BufferLedger {
 public:
  enum class Use : uint8_t { kGet, kPut };

  explicit BufferLedger(uint64_t max_put_bytes);

  // A reference of its own to the same memory; the loan ends with its last copy. Empty: puts are at their
  // limit.
  BufferRef Lend(BufferRef buffer, Use use, uint64_t bytes);
  uint64_t put_bytes() const;
  size_t num_lent() const;
  // False: some are still out when the deadline passes.
  bool AwaitAll(TimePoint deadline) const;
  std::string Describe() const;  // what is out, for people

 private:
  struct Books {
    mutable std::mutex mutex;
    mutable std::condition_variable returned;
    uint64_t gets = 0;
    uint64_t puts = 0;
    uint64_t get_bytes = 0;
    uint64_t put_bytes = 0;
  };
  struct Loan;
  const uint64_t max_put_bytes_;
  const std::shared_ptr<Books> books_ = std::make_shared<Books>();
};

}  // namespace terrace::remote
