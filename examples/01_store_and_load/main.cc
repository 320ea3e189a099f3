// Stores the KV of a 1,024-token prompt in host memory and on NVMe, closes everything, opens it again with
// nothing in memory and loads the KV back. No engine: the tensors are synthetic.
//
//   store_and_load DIRECTORY
//
// Exits 0 where every byte came back, 1 where one did not, 2 for a wrong call.
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terrace/host_backend.h"
#include "terrace/nvme_backend.h"
#include "terrace/storage_manager.h"

using namespace terrace;

// Stands for the engine's KV: every byte follows from its token range and its place.
std::byte Expected(TokenRange tokens, size_t i) {
  return static_cast<std::byte>(tokens.end / 256 * 31 + i * 7);
}

void Compute(TokenRange tokens, MutableBytes payload) {
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = Expected(tokens, i);
}

bool IsRight(TokenRange tokens, Bytes payload) {
  for (size_t i = 0; i < payload.size(); ++i) {
    if (payload[i] != Expected(tokens, i)) return false;
  }
  return true;
}

// [readme:begin]
// Host memory over a directory of an NVMe disk. value() ends the program with the reason of a failure.
std::unique_ptr<StorageManager> Open(const std::string& directory) {
  std::vector<Tier> tiers(2);
  tiers[0].backend = MakeHostBackend({.capacity_bytes = 64 << 20}).value();
  tiers[1].backend =
      MakeNvmeBackend({.directory = directory, .capacity_bytes = 1 << 30, .segment_bytes = 64 << 20}).value();
  return StorageManager::Open({.pool_bytes = 64 << 20}, std::move(tiers)).value();
}

Status Store(StorageManager& manager, const KvSpec& spec, const std::vector<Token>& prompt) {
  const auto sizes = [&](TokenRange tokens, ObjectPart part) -> Result<uint64_t> {
    return spec.PayloadBytes(part, static_cast<uint32_t>(tokens.end - tokens.begin));
  };
  const ChunkKey root = manager.Root(spec).value();
  PrepareResult prepared = manager.Prepare(root, prompt, {0, prompt.size()}, sizes).value();
  std::vector<WritableChunk> filled;
  for (PreparedChunk& chunk : prepared.chunks) {
    if (!chunk.writable) continue;  // stored by an earlier run
    Compute(chunk.tokens, chunk.writable->payload());
    filled.push_back(std::move(*chunk.writable));
  }
  std::printf("stored: %zu of %zu chunks were new\n", filled.size(), prepared.chunks.size());
  manager.Commit(std::move(filled));                                // returns at once
  return prepared.status.ok() ? manager.Flush() : prepared.status;  // until all of it is on disk
}

// The number of tokens whose bytes came back as they were stored.
uint64_t Load(StorageManager& manager, const KvSpec& spec, const std::vector<Token>& prompt) {
  const Lease lease = manager.Lookup(manager.Root(spec).value(), prompt).value();
  std::printf("found: %lu tokens, %lu of them in host memory\n", lease.matched_tokens(), lease.host_tokens());
  LoadHandle load = manager.Load(lease, {0, lease.matched_tokens()});
  uint64_t right_tokens = 0;
  while (std::optional<LeasedChunk> chunk = load.Next().value()) {
    if (!IsRight(chunk->payload_tokens(), chunk->payload())) break;
    right_tokens = chunk->payload_tokens().end;
  }
  return right_tokens;
}
// [readme:end]

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: store_and_load DIRECTORY\n");
    return 2;
  }
  // Two layers of K and V, 4 heads x 64 values of f16 each: 512 bytes per token and plane.
  const PlaneSpec k{.kind = PlaneKind::kK, .heads = 4, .head_dim = 64, .bytes_per_token = 512};
  const PlaneSpec v{.kind = PlaneKind::kV, .heads = 4, .head_dim = 64, .bytes_per_token = 512};
  KvSpec spec;
  spec.model_id = "synthetic";
  spec.payload_form = PayloadForm::kCanonical;
  spec.cut = Cut::kRanged;
  spec.layers = {LayerSpec{.planes = {k, v}}, LayerSpec{.planes = {k, v}}};
  std::vector<Token> prompt(1024);
  std::iota(prompt.begin(), prompt.end(), 1);

  std::unique_ptr<StorageManager> manager = Open(argv[1]);
  Status status = Store(*manager, spec, prompt);
  if (status.ok()) status = manager->Close();
  if (!status.ok()) {
    std::fprintf(stderr, "store: %s\n", status.ToString().c_str());
    return 1;
  }

  manager = Open(argv[1]);
  const uint64_t right_tokens = Load(*manager, spec, prompt);
  status = manager->Close();
  std::printf("loaded: %lu of %zu tokens, every byte compared\n", right_tokens, prompt.size());
  return right_tokens == prompt.size() && status.ok() ? 0 : 1;
}
