// RemoteClient: an engine's remote tier without the engine: a remote backend with a pool of its own, and the
// frames that it puts and gets. A chunk is named by a number and a seed, so that every client knows the keys
// of all.
//
// One caller's thread; completions reach it through a queue.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "benchmarks/value_ring.h"
#include "lib/codec/piece_codec.h"
#include "lib/memory/buffer_pool.h"
#include "lib/wire/frame.h"
#include "terrace/backend.h"
#include "terrace/remote_backend.h"

namespace terrace::bench {

// One that nobody had before.
uint64_t FreshRunId();

struct RemoteClientOptions {
  RemoteOptions remote;
  uint64_t payload_bytes = 0;
  uint64_t run_id = 0;             // clients with the same one speak of the same chunks
  uint32_t batch = 1;              // chunks in one call
  uint32_t batches_in_flight = 1;  // calls
};

struct RemoteFigures {
  double seconds = 0;
  uint64_t payload_bytes = 0;
  std::vector<double> us;  // of each call, from it to its completion, others being in flight
};

// The chunks [begin, begin + count) of a seed; past `period` they begin again.
struct ChunkRun {
  uint32_t seed = 0;
  uint64_t begin = 0;
  uint64_t count = 0;
  uint64_t period = UINT64_MAX;
};

class RemoteClient {
 public:
  // Returns when the server has answered.
  static Result<std::unique_ptr<RemoteClient>> Open(const RemoteClientOptions& options);
  ~RemoteClient();

  // Each chunk of the run once. The first operation that failed, a miss, and bytes that are not the chunk's
  // end it: every piece of what arrives is hashed while the rest arrives, as the tier does it.
  Result<RemoteFigures> Run(Direction direction, const ChunkRun& chunks);
  // Gives up the chunks of a run of puts.
  Status Evict(const ChunkRun& chunks);
  // `num_chunks` small chunks, each the child of the one before, that Match is asked for afterwards.
  Status PutPrefix(uint64_t num_chunks);
  // One Match of that prefix; kDataLoss where it is not found whole. The seconds that it took.
  Result<double> MatchPrefix();
  // One Get of one small chunk. The seconds that it took.
  Result<double> GetSmall();

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Batch {
    std::vector<BufferRef> buffers;  // those of puts keep their payload
    std::vector<FrameHeader> headers;
    std::vector<std::optional<PieceVerifier>> verifiers;
    std::vector<ObjectId> ids;
    SteadyClock::time_point begin;
  };
  struct Completion {
    Batch* batch = nullptr;
    Status status;
    SteadyClock::time_point end;
  };

  explicit RemoteClient(const RemoteClientOptions& options) : options_(options) {}
  Status MakeRoot();
  Status MakeBatches();
  Status Connect();
  Status MakeBatch(Direction direction, uint64_t index, const FrameHeader& header);
  void StartPut(Batch& batch, const ChunkRun& chunks, uint64_t first, uint32_t count);
  void StartGet(Batch& batch, const ChunkRun& chunks, uint64_t first, uint32_t count);
  Status CheckGet(Batch& batch) const;
  ChunkContent ContentOf(const ChunkRun& chunks, uint64_t index) const;
  ObjectId IdOf(const ChunkRun& chunks, uint64_t index) const;
  // A frame of its own for one small chunk, put and waited for.
  Status PutSmall(const ChunkKey& parent, uint64_t first_token, const ChunkContent& content);
  void Push(Completion completion);
  std::vector<Completion> TakeCompletions();

  const RemoteClientOptions options_;
  MetricRegistry metrics_;
  const std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  RootRecord root_;
  std::unique_ptr<BufferPool> pool_;
  uint64_t frame_bytes_ = 0;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::vector<Batch*> idle_puts_;
  std::vector<Batch*> idle_gets_;
  PrefixQuery prefix_;
  ObjectId small_;
  uint64_t small_frame_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Completion> completions_;

  std::unique_ptr<Backend> backend_;  // the last member: its callbacks use the others
};

}  // namespace terrace::bench
