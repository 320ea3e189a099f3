// ReadWindow: reads of segments that are handed out in the order in which they were added, several in flight
// behind the one that is looked at. Its memory is one ring of `window_bytes`; a read takes the next free part
// of it, in one piece.
//
// One thread. The destructor waits for what is in flight.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backends/nvme/disk.h"
#include "backends/nvme/transfer_queue.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

class ReadWindow {
 public:
  // Of one file; offset and length are multiples of 4,096.
  struct Span {
    int fd = -1;
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  struct Done {
    Status status;  // kDataLoss: the file ended early
    Bytes bytes;    // until Release
  };

  static Result<std::unique_ptr<ReadWindow>> Open(Disk& disk, uint64_t window_bytes, uint64_t request_bytes);
  ~ReadWindow();
  ReadWindow(const ReadWindow&) = delete;
  ReadWindow& operator=(const ReadWindow&) = delete;

  bool empty() const { return reads_.empty(); }
  // Starts a read of all the spans, one after another. False (and nothing done) where there is no room now;
  // an empty window has room for window_bytes.
  bool Add(std::span<const Span> spans);
  // Waits for the oldest read. There must be one.
  Done Front();
  // Ends the oldest read's use of its memory. Only after Front.
  void Release();

 private:
  struct Read {
    TransferRef transfer;
    uint64_t offset = 0;  // in the ring
    uint64_t length = 0;
    bool ended = false;
    Status status;
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  ReadWindow(std::unique_ptr<IoEngine> engine, uint64_t window_bytes, uint64_t request_bytes);
  // Where `bytes` in one piece are free; nullopt for nowhere.
  std::optional<uint64_t> Room(uint64_t bytes) const;
  void WaitFor(const Read& read);
  // Starts what the limits allow and takes in completions, waiting for one up to `timeout`.
  void Reap(std::optional<Duration> timeout);

  std::unique_ptr<IoEngine> engine_;
  TransferQueue queue_;
  const uint64_t window_bytes_;
  std::unique_ptr<std::byte, FreeMemory> memory_;
  // In the order in which they were added, which is that of their parts of the ring, seen from the oldest.
  std::deque<std::unique_ptr<Read>> reads_;
  std::vector<IoCompletion> completions_;
};

}  // namespace terrace
