#include "benchmarks/lookup_probe.h"

#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "lib/base/status_macros.h"
#include "terrace/host_backend.h"
#include "terrace/storage_manager.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kChunkTokens = 256;
constexpr uint64_t kPayloadBytes = 4096;
constexpr std::string_view kKeyTag("terrace-key-1\0", 14);

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <typename F>
double MicrosecondsOf(F&& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// The chain of keys with nothing but the digest, and a map that knows them.
class BareProbe {
 public:
  BareProbe() : method_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {}
  ~BareProbe() {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(method_);
  }
  BareProbe(const BareProbe&) = delete;
  BareProbe& operator=(const BareProbe&) = delete;

  ChunkKey Hash(const ChunkKey& parent, std::span<const Token> tokens) {
    const uint32_t n = kChunkTokens;
    const uint32_t no_items = 0;
    ChunkKey key;
    EVP_DigestInit_ex2(context_, method_, nullptr);
    EVP_DigestUpdate(context_, kKeyTag.data(), kKeyTag.size());
    EVP_DigestUpdate(context_, parent.bytes.data(), parent.bytes.size());
    EVP_DigestUpdate(context_, &n, sizeof(n));
    EVP_DigestUpdate(context_, tokens.data(), tokens.size_bytes());
    EVP_DigestUpdate(context_, &no_items, sizeof(no_items));
    EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(key.bytes.data()), nullptr);
    return key;
  }

  void Learn(const ChunkKey& root, std::span<const Token> prompt) {
    Walk(root, prompt, [&](const ChunkKey& key) { known_[key] = known_.size(); });
  }

  // Chunks found, from the first of `prompt` on.
  uint64_t Find(const ChunkKey& parent, std::span<const Token> prompt) {
    uint64_t found = 0;
    last_ = Walk(parent, prompt, [&](const ChunkKey& key) { found += known_.contains(key); });
    return found;
  }
  const ChunkKey& last() const { return last_; }

 private:
  template <typename F>
  ChunkKey Walk(const ChunkKey& parent, std::span<const Token> prompt, F&& visit) {
    ChunkKey key = parent;
    for (size_t at = 0; at + kChunkTokens <= prompt.size(); at += kChunkTokens) {
      key = Hash(key, prompt.subspan(at, kChunkTokens));
      visit(key);
    }
    return key;
  }

  EVP_MD* method_;
  EVP_MD_CTX* context_;
  absl::flat_hash_map<ChunkKey, uint64_t, DigestHash> known_;
  ChunkKey last_;
};

struct Bench {
  std::unique_ptr<StorageManager> manager;
  ChunkKey root;
  std::vector<Token> prompt;
  BareProbe probe;
};

Status Prepare(const LookupBenchOptions& options, Bench& bench) {
  if (options.tokens == 0 || options.tokens % kChunkTokens != 0)
    return InvalidArgumentError("tokens is " + std::to_string(options.tokens) +
                                "; allowed: multiples of 256 above 0");
  const uint64_t pool_bytes = (options.tokens / kChunkTokens + 16) * 2 * (64 << 10);
  StorageOptions storage;
  storage.pool_bytes = pool_bytes;
  storage.log = MakeNullLogSink();
  std::vector<Tier> tiers;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> host, MakeHostBackend({.capacity_bytes = pool_bytes}));
  tiers.push_back({std::move(host), nullptr});
  TERRACE_ASSIGN_OR_RETURN(bench.manager, StorageManager::Open(std::move(storage), std::move(tiers)));
  KvSpec spec;
  spec.model_id = "bench";
  spec.tokens_per_chunk = kChunkTokens;
  TERRACE_ASSIGN_OR_RETURN(bench.root, bench.manager->Root(spec));
  bench.prompt.resize(options.tokens);
  for (size_t i = 0; i < bench.prompt.size(); ++i)
    bench.prompt[i] = static_cast<Token>(i * 2654435761u >> 12);
  TERRACE_ASSIGN_OR_RETURN(
      PrepareResult prepared,
      bench.manager->Prepare(bench.root, bench.prompt, {0, options.tokens},
                             [](TokenRange, ObjectPart) -> Result<uint64_t> { return kPayloadBytes; }));
  TERRACE_RETURN_IF_ERROR(prepared.status);
  std::vector<WritableChunk> chunks;
  for (PreparedChunk& chunk : prepared.chunks) {
    if (!chunk.writable) return InternalError("a chunk was there already");
    std::memset(chunk.writable->payload().data(), 7, kPayloadBytes);
    chunks.push_back(*std::move(chunk.writable));
  }
  bench.manager->Commit(std::move(chunks));
  TERRACE_RETURN_IF_ERROR(bench.manager->Flush());
  bench.probe.Learn(bench.root, bench.prompt);
  return OkStatus();
}

Status Check(uint64_t matched, uint64_t expected) {
  if (matched == expected) return OkStatus();
  return InternalError("matched " + std::to_string(matched) + " tokens of " + std::to_string(expected));
}

}  // namespace

std::string LookupResult::ToJson() const {
  return nlohmann::ordered_json{{"op", op},
                                {"tokens", tokens},
                                {"chunks", chunks},
                                {"library_us", library_us},
                                {"probe_us", probe_us},
                                {"ratio", ratio()}}
      .dump();
}

Result<std::vector<LookupResult>> MeasureLookups(const LookupBenchOptions& options) {
  Bench bench;
  TERRACE_RETURN_IF_ERROR(Prepare(options, bench));
  StorageManager& manager = *bench.manager;
  const std::span<const Token> prompt = bench.prompt;
  const std::span<const Token> shorter = prompt.first(prompt.size() - kChunkTokens);
  const uint64_t chunks = prompt.size() / kChunkTokens;
  std::vector<double> lookup, grown, peek, probe, grown_probe;
  for (int i = 0; i < options.repetitions; ++i) {
    uint64_t matched = 0;
    uint64_t found = 0;
    lookup.push_back(MicrosecondsOf([&] {
      Result<Lease> lease = manager.Lookup(bench.root, prompt);
      matched = lease.ok() ? lease->matched_tokens() : 0;
    }));
    TERRACE_RETURN_IF_ERROR(Check(matched, prompt.size()));
    probe.push_back(MicrosecondsOf([&] { found = bench.probe.Find(bench.root, prompt); }));
    TERRACE_RETURN_IF_ERROR(Check(found * kChunkTokens, prompt.size()));
    peek.push_back(MicrosecondsOf([&] {
      Result<PrefixPresence> presence = manager.Peek(bench.root, prompt);
      matched = presence.ok() ? presence->matched_tokens : 0;
    }));
    TERRACE_RETURN_IF_ERROR(Check(matched, prompt.size()));
    const LookupOptions request{.request_id = static_cast<uint64_t>(i) + 1};
    TERRACE_ASSIGN_OR_RETURN(Lease lease, manager.Lookup(bench.root, shorter, request));
    bench.probe.Find(bench.root, shorter);
    grown.push_back(MicrosecondsOf([&] {
      Result<Lease> next = manager.Lookup(bench.root, prompt, request);
      if (next.ok()) lease = *std::move(next);
    }));
    TERRACE_RETURN_IF_ERROR(Check(lease.matched_tokens(), prompt.size()));
    const ChunkKey parent = bench.probe.last();
    grown_probe.push_back(
        MicrosecondsOf([&] { found = bench.probe.Find(parent, prompt.last(kChunkTokens)); }));
    TERRACE_RETURN_IF_ERROR(Check(found, 1));
  }
  return std::vector<LookupResult>{
      {"lookup", prompt.size(), chunks, Median(lookup), Median(probe)},
      {"lookup_grown", prompt.size(), 1, Median(grown), Median(grown_probe)},
      {"peek", prompt.size(), chunks, Median(peek), Median(probe)},
  };
}

}  // namespace terrace::bench
