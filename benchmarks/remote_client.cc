#include "benchmarks/remote_client.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "terrace/kv_spec.h"
#include "terrace/token_hasher.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kTokensPerChunk = 256;
constexpr uint32_t kPrefixSeed = 0x70726566;
constexpr uint64_t kSmallPayloadBytes = 4096;
constexpr size_t kEvictBatch = 64;
constexpr std::chrono::seconds kConnectLimit(20);
constexpr std::chrono::milliseconds kConnectPause(20);

// splitmix64
uint64_t Mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void FillWith(MutableBytes bytes, uint64_t seed) {
  for (uint64_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = Mix(seed);
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

ObjectMeta MetaOf(const FrameHeader& header) {
  return {.root = header.root,
          .parent = header.parent,
          .first_token = header.first_token,
          .content = std::make_shared<ChunkContent>(header.content),
          .frame_bytes = header.frame_bytes,
          .payload_bytes = header.payload_bytes,
          .division = header.division,
          .run_key = header.first_token == 0 ? header.key : ChunkKey{}};
}

// An answer that the calling thread waits for.
template <typename T>
class Answer {
 public:
  void Set(T value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    changed_.notify_one();
  }
  T Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return value_.has_value(); });
    return std::move(*value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

Status FirstError(std::span<const Status> results) {
  for (const Status& status : results) {
    if (!status.ok()) return status;
  }
  return OkStatus();
}

}  // namespace

uint64_t FreshRunId() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

Result<std::unique_ptr<RemoteClient>> RemoteClient::Open(const RemoteClientOptions& options) {
  std::unique_ptr<RemoteClient> client(new RemoteClient(options));
  TERRACE_RETURN_IF_ERROR(client->MakeRoot());
  TERRACE_RETURN_IF_ERROR(client->MakeBatches());
  TERRACE_RETURN_IF_ERROR(client->Connect());
  return client;
}

RemoteClient::~RemoteClient() {
  if (backend_) (void)backend_->Close(Clock::Real()->Now() + std::chrono::seconds(10));
}

Status RemoteClient::MakeRoot() {
  KvSpec spec;
  spec.model_id = "terrace-bench-remote";
  spec.tokens_per_chunk = kTokensPerChunk;
  TERRACE_ASSIGN_OR_RETURN(root_, ComputeRoot(spec, {}, ""));
  return OkStatus();
}

Status RemoteClient::MakeBatches() {
  FrameHeader header;
  header.root = header.parent = root_.root;
  header.content = ContentOf({}, 0);
  header.payload_bytes = header.stored_bytes = options_.payload_bytes;
  header.pieces = PlanPieces(options_.payload_bytes, {});
  TERRACE_ASSIGN_OR_RETURN(header.header_bytes, HeaderBytes(header));
  frame_bytes_ = header.header_bytes + RoundUp(options_.payload_bytes, kFrameAlignment);
  const uint64_t run_bytes = RoundUp(kTierPageBytes + frame_bytes_, kPoolUnitBytes);
  const uint64_t wanted = uint64_t{2} * options_.batch * options_.batches_in_flight * run_bytes;
  BufferPoolOptions pool;
  // A run may not cross a piece of the pool: one run more for each. Some room for small frames.
  pool.size_bytes = wanted + (wanted / kPoolPieceBytes + 1) * run_bytes + 16 * kPoolUnitBytes;
  TERRACE_ASSIGN_OR_RETURN(pool_, BufferPool::Create(pool));
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    for (uint32_t i = 0; i < options_.batches_in_flight; ++i) {
      TERRACE_RETURN_IF_ERROR(MakeBatch(direction, i, header));
    }
  }
  return OkStatus();
}

Status RemoteClient::MakeBatch(Direction direction, uint64_t index, const FrameHeader& header) {
  auto batch = std::make_unique<Batch>();
  batch->headers.assign(options_.batch, header);
  batch->verifiers.resize(options_.batch);
  batch->ids.resize(options_.batch);
  for (uint32_t i = 0; i < options_.batch; ++i) {
    TERRACE_ASSIGN_OR_RETURN(BufferRef buffer, pool_->Allocate(kTierPageBytes + frame_bytes_));
    const MutableBytes payload = buffer.mutable_frame().subspan(header.header_bytes, header.payload_bytes);
    FillWith(buffer.mutable_frame(), index * options_.batch + i);
    SealRawPieces(payload, batch->headers[i].pieces);
    batch->buffers.push_back(std::move(buffer));
  }
  (direction == Direction::kPut ? idle_puts_ : idle_gets_).push_back(batch.get());
  batches_.push_back(std::move(batch));
  return OkStatus();
}

Status RemoteClient::Connect() {
  TERRACE_ASSIGN_OR_RETURN(backend_, MakeRemoteBackend(options_.remote));
  BackendContext context{
      .clock = Clock::Real(), .metrics = &metrics_, .log = log_.get(), .regions = pool_->regions()};
  TERRACE_RETURN_IF_ERROR(backend_->Attach(context));
  const SteadyClock::time_point limit = SteadyClock::now() + kConnectLimit;
  for (;;) {
    Status status = backend_->PutRoot(root_);
    if (status.ok() || SteadyClock::now() > limit) return status;
    std::this_thread::sleep_for(kConnectPause);
  }
}

ChunkContent RemoteClient::ContentOf(const ChunkRun& chunks, uint64_t index) const {
  ChunkContent content;
  content.tokens.resize(kTokensPerChunk, Token{7});
  const uint64_t number = (chunks.begin + index) % chunks.period;
  content.tokens[0] = chunks.seed;
  content.tokens[1] = static_cast<Token>(number);
  content.tokens[2] = static_cast<Token>(number >> 32);
  content.tokens[3] = static_cast<Token>(options_.run_id);
  content.tokens[4] = static_cast<Token>(options_.run_id >> 32);
  return content;
}

ObjectId RemoteClient::IdOf(const ChunkRun& chunks, uint64_t index) const {
  return {.key = TokenHasher::KeyOf(root_.root, ContentOf(chunks, index)), .part = {}};
}

Result<RemoteFigures> RemoteClient::Run(Direction direction, const ChunkRun& chunks) {
  std::vector<Batch*>& idle = direction == Direction::kPut ? idle_puts_ : idle_gets_;
  RemoteFigures figures;
  Status status;
  uint64_t started = 0;
  const SteadyClock::time_point begin = SteadyClock::now();
  SteadyClock::time_point end = begin;
  while ((status.ok() && started < chunks.count) || idle.size() < options_.batches_in_flight) {
    while (status.ok() && started < chunks.count && !idle.empty()) {
      Batch* batch = idle.back();
      idle.pop_back();
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(options_.batch, chunks.count - started));
      if (direction == Direction::kPut) {
        StartPut(*batch, chunks, started, count);
      } else {
        StartGet(*batch, chunks, started, count);
      }
      started += count;
    }
    for (Completion& completion : TakeCompletions()) {
      if (completion.status.ok() && direction == Direction::kGet) {
        completion.status = CheckGet(*completion.batch);
      }
      if (!completion.status.ok()) status = completion.status;
      figures.us.push_back(
          std::chrono::duration<double, std::micro>(completion.end - completion.batch->begin).count());
      idle.push_back(completion.batch);
      end = SteadyClock::now();
    }
  }
  TERRACE_RETURN_IF_ERROR(status);
  figures.seconds = std::chrono::duration<double>(end - begin).count();
  figures.payload_bytes = chunks.count * options_.payload_bytes;
  return figures;
}

void RemoteClient::StartPut(Batch& batch, const ChunkRun& chunks, uint64_t first, uint32_t count) {
  std::vector<PutOp> ops;
  for (uint32_t i = 0; i < count; ++i) {
    FrameHeader& header = batch.headers[i];
    header.content = ContentOf(chunks, first + i);
    header.key = TokenHasher::KeyOf(header.parent, header.content);
    TERRACE_CHECK(WriteFrameHeader(header, batch.buffers[i].mutable_frame()).ok());
    batch.ids[i] = {.key = header.key, .part = header.part};
    ops.push_back({.id = batch.ids[i], .frame = batch.buffers[i], .meta = MetaOf(header)});
  }
  batch.begin = SteadyClock::now();
  backend_->Put(std::move(ops), [this, &batch](std::span<const Status> results) {
    Push({.batch = &batch, .status = FirstError(results), .end = SteadyClock::now()});
  });
}

void RemoteClient::StartGet(Batch& batch, const ChunkRun& chunks, uint64_t first, uint32_t count) {
  std::vector<GetOp> ops;
  for (uint32_t i = 0; i < options_.batch; ++i) {
    batch.verifiers[i].reset();
    if (i >= count) continue;
    batch.ids[i] = IdOf(chunks, first + i);
    PieceVerifier& verifier = batch.verifiers[i].emplace(batch.buffers[i].frame());
    GetOp& op = ops.emplace_back();
    op.id = batch.ids[i];
    op.dst = batch.buffers[i];
    op.on_bytes = [&verifier](uint64_t offset, uint64_t n) { verifier.MarkPresent(offset, n); };
  }
  batch.begin = SteadyClock::now();
  backend_->Get(std::move(ops), [this, &batch](std::span<const GetResult> results) {
    Completion completion{.batch = &batch, .end = SteadyClock::now()};
    for (const GetResult& result : results) {
      if (!result.status.ok()) completion.status = result.status;
    }
    Push(std::move(completion));
  });
}

Status RemoteClient::CheckGet(Batch& batch) const {
  for (uint32_t i = 0; i < options_.batch; ++i) {
    if (!batch.verifiers[i]) continue;
    TERRACE_ASSIGN_OR_RETURN(const FrameHeader header, batch.verifiers[i]->Finish(frame_bytes_));
    if (header.key != batch.ids[i].key) return DataLossError("the frame of another key was got");
  }
  return OkStatus();
}

Status RemoteClient::Evict(const ChunkRun& chunks) {
  for (uint64_t first = 0; first < chunks.count; first += kEvictBatch) {
    std::vector<ObjectId> ids;
    for (uint64_t i = first; i < std::min<uint64_t>(chunks.count, first + kEvictBatch); ++i) {
      ids.push_back(IdOf(chunks, i));
    }
    Answer<Status> answer;
    backend_->Erase(std::move(ids), EraseMode::kEvict, [&answer](std::span<const Status> results) {
      Status status = FirstError(results);
      // What the server has evicted by itself meanwhile is gone as well.
      answer.Set(status.code() == StatusCode::kNotFound ? OkStatus() : std::move(status));
    });
    TERRACE_RETURN_IF_ERROR(answer.Take());
  }
  return OkStatus();
}

Status RemoteClient::PutPrefix(uint64_t num_chunks) {
  prefix_ = {};
  prefix_.root = prefix_.parent = root_.root;
  prefix_.tokens_per_chunk = kTokensPerChunk;
  prefix_.parts = {ObjectPart{}};
  ChunkKey parent = root_.root;
  for (uint64_t i = 0; i < num_chunks; ++i) {
    const ChunkContent content = ContentOf({.seed = kPrefixSeed}, i);
    TERRACE_RETURN_IF_ERROR(PutSmall(parent, i * kTokensPerChunk, content));
    parent = TokenHasher::KeyOf(parent, content);
    prefix_.keys.push_back(parent);
    prefix_.content.tokens.insert(prefix_.content.tokens.end(), content.tokens.begin(), content.tokens.end());
  }
  small_ = {.key = prefix_.keys.front(), .part = {}};
  return OkStatus();
}

Status RemoteClient::PutSmall(const ChunkKey& parent, uint64_t first_token, const ChunkContent& content) {
  FrameHeader header;
  header.root = root_.root;
  header.parent = parent;
  header.first_token = first_token;
  header.content = content;
  header.key = TokenHasher::KeyOf(parent, content);
  header.payload_bytes = header.stored_bytes = kSmallPayloadBytes;
  header.pieces = PlanPieces(kSmallPayloadBytes, {});
  TERRACE_ASSIGN_OR_RETURN(const uint32_t header_bytes, HeaderBytes(header));
  TERRACE_ASSIGN_OR_RETURN(BufferRef buffer,
                           pool_->Allocate(kTierPageBytes + header_bytes + kSmallPayloadBytes));
  const MutableBytes frame = buffer.mutable_frame();
  FillWith(frame.subspan(header_bytes, kSmallPayloadBytes), first_token);
  SealRawPieces(frame.subspan(header_bytes, kSmallPayloadBytes), header.pieces);
  TERRACE_RETURN_IF_ERROR(WriteFrameHeader(header, frame));
  small_frame_bytes_ = header.frame_bytes;
  std::vector<PutOp> ops;
  ops.push_back({.id = {.key = header.key, .part = {}}, .frame = std::move(buffer), .meta = MetaOf(header)});
  Answer<Status> answer;
  backend_->Put(std::move(ops), [&answer](std::span<const Status> results) { answer.Set(results[0]); });
  Status status = answer.Take();
  return status.code() == StatusCode::kAlreadyExists ? OkStatus() : status;
}

Result<double> RemoteClient::MatchPrefix() {
  PrefixQuery query = prefix_;
  query.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
  Answer<PrefixMatch> answer;
  const SteadyClock::time_point begin = SteadyClock::now();
  backend_->Match(std::move(query), [&answer](const PrefixMatch& match) { answer.Set(match); });
  const PrefixMatch match = answer.Take();
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  TERRACE_RETURN_IF_ERROR(match.status);
  if (match.matched_tokens != prefix_.content.tokens.size()) {
    return DataLossError("a lookup matched " + std::to_string(match.matched_tokens) + " tokens of " +
                         std::to_string(prefix_.content.tokens.size()));
  }
  return seconds;
}

Result<double> RemoteClient::GetSmall() {
  Batch& batch = *idle_gets_.back();
  PieceVerifier verifier(batch.buffers[0].frame());
  std::vector<GetOp> ops(1);
  ops[0].id = small_;
  ops[0].dst = batch.buffers[0];
  Answer<Status> answer;
  const SteadyClock::time_point begin = SteadyClock::now();
  backend_->Get(std::move(ops),
                [&answer](std::span<const GetResult> results) { answer.Set(results[0].status); });
  TERRACE_RETURN_IF_ERROR(answer.Take());
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  TERRACE_ASSIGN_OR_RETURN(const FrameHeader header, verifier.Finish(small_frame_bytes_));
  if (header.key != small_.key) return DataLossError("the frame of another key was got");
  return seconds;
}

void RemoteClient::Push(Completion completion) {
  const std::lock_guard lock(mutex_);
  completions_.push_back(std::move(completion));
  changed_.notify_one();
}

std::vector<RemoteClient::Completion> RemoteClient::TakeCompletions() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !completions_.empty(); });
  return std::exchange(completions_, {});
}

}  // namespace terrace::bench
