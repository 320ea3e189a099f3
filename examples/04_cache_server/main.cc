// An engine whose prompts are warm from the work of another process: host memory of its own over a cache
// server
// (`terrace serve`). The engine is a toy, so that this builds from an installed Terrace alone: the KV of a
// token is a hash of everything before it, so it has to be computed in order, or loaded.
//
//   cache_server_engine ADDRESS PROMPT_NUMBER        ADDRESS: host:port, or unix:/path
//
// Prints what was loaded and computed, and the answer, which depends on every byte of the KV. Exits 0 where
// the prompt was answered, with the server's help or without; 2 for a wrong call. run.sh starts a server and
// two of these.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terrace/host_backend.h"
#include "terrace/remote_backend.h"
#include "terrace/storage_manager.h"

using namespace terrace;

constexpr uint64_t kChunk = 256;                    // tokens
constexpr uint64_t kPromptTokens = 4 * kChunk + 5;  // the last five belong to no full chunk
constexpr uint64_t kWords = 512;                    // of KV per token, 8 bytes each
constexpr uint64_t kTokenBytes = kWords * sizeof(uint64_t);

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The KV of a prompt's first tokens. Its last word stands for all that came before.
using Kv = std::vector<uint64_t>;

void ComputeRest(const std::vector<Token>& prompt, Kv& kv) {
  while (kv.size() < prompt.size() * kWords) {
    const uint64_t before = kv.empty() ? 0 : kv.back();
    uint64_t state = Mix(before + prompt[kv.size() / kWords] + 1);
    for (uint64_t i = 0; i < kWords; ++i) kv.push_back(state = Mix(state + i));
  }
}

uint64_t AnswerOf(const Kv& kv) {
  uint64_t answer = 0;
  for (const uint64_t word : kv) answer = Mix(answer ^ word);
  return answer;
}

// [readme:begin]
// Host memory of this process over a cache server that all of them share. MakeRemoteBackend starts no
// connection: a server that is not there is a miss, found again when it is back.
std::unique_ptr<StorageManager> Open(const std::string& address) {
  RemoteOptions remote;
  remote.addresses = {address};
  std::vector<Tier> tiers(2);
  tiers[0].backend = MakeHostBackend({.capacity_bytes = 64 << 20}).value();
  tiers[1].backend = MakeRemoteBackend(remote).value();
  return StorageManager::Open({.pool_bytes = 64 << 20}, std::move(tiers)).value();
}

// The local answer is there at once; for the server's there is a deadline, after which the engine computes.
Kv LoadWhatIsKnown(StorageManager& manager, const ChunkKey& root, const std::vector<Token>& prompt) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const Lease lease = manager.Lookup(root, prompt, {.max_tokens = prompt.size() - 1}).value();
  if (!lease.WaitRemote(deadline).ok()) std::fprintf(stderr, "the server did not answer in time\n");
  LoadHandle load = manager.Load(lease, {0, lease.matched_tokens()});
  Kv kv;
  while (true) {
    Result<std::optional<LeasedChunk>> chunk = load.Next(deadline);
    if (!chunk.ok() || !chunk->has_value()) break;  // what came before stays
    const Bytes payload = (*chunk)->payload();      // verified
    kv.resize(kv.size() + payload.size() / sizeof(uint64_t));
    std::memcpy(kv.data() + kv.size() - payload.size() / sizeof(uint64_t), payload.data(), payload.size());
  }
  return kv;
}
// [readme:end]

// Into host memory, and from there to the server in the background.
Status Store(StorageManager& manager, const ChunkKey& root, const std::vector<Token>& prompt, const Kv& kv) {
  const auto sizes = [](TokenRange tokens, ObjectPart) -> Result<uint64_t> {
    return (tokens.end - tokens.begin) * kTokenBytes;
  };
  const uint64_t end = prompt.size() / kChunk * kChunk;
  PrepareResult prepared = manager.Prepare(root, prompt, {0, end}, sizes).value();
  std::vector<WritableChunk> filled;
  for (PreparedChunk& chunk : prepared.chunks) {
    if (!chunk.writable) continue;  // present
    const MutableBytes payload = chunk.writable->payload();
    std::memcpy(payload.data(), kv.data() + chunk.tokens.begin * kWords, payload.size());
    filled.push_back(std::move(*chunk.writable));
  }
  manager.Commit(std::move(filled));
  const Status flushed = manager.Flush(std::chrono::steady_clock::now() + std::chrono::seconds(5));
  return prepared.status.ok() ? flushed : prepared.status;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: cache_server_engine ADDRESS PROMPT_NUMBER\n");
    return 2;
  }
  std::vector<Token> prompt(kPromptTokens);
  for (size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<Token>(Mix(std::strtoull(argv[2], nullptr, 10) * 65536 + i) % 32000);
  KvSpec spec;  // opaque: the bytes are this engine's own; what changes them is in the name
  spec.model_id = "toy-engine-1";

  const std::unique_ptr<StorageManager> manager = Open(argv[1]);
  const ChunkKey root = manager->Root(spec).value();
  Kv kv = LoadWhatIsKnown(*manager, root, prompt);
  const uint64_t loaded = kv.size() / kWords;
  ComputeRest(prompt, kv);
  const Status stored = Store(*manager, root, prompt, kv);
  if (!stored.ok()) std::fprintf(stderr, "not kept: %s\n", stored.ToString().c_str());
  uint64_t from_server = 0;
  for (const TierStats& tier : manager->Stats().tiers) {
    if (tier.name == "remote") from_server = tier.hits;
  }
  std::printf("loaded %" PRIu64 " tokens (%" PRIu64 " chunks from the server), computed %" PRIu64
              ", answer %016" PRIx64 "\n",
              loaded, from_server, prompt.size() - loaded, AnswerOf(kv));
  manager->Close(std::chrono::steady_clock::now() + std::chrono::seconds(5)).IgnoreError();
  return 0;
}
