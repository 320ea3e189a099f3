#include "benchmarks/index_probe.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "lib/base/check.h"
#include "lib/core/chunk_index.h"
#include "terrace/eviction_policy.h"

namespace terrace::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kChain = 8;
constexpr uint64_t kNumRoots = 1000;

uint64_t Mix(uint64_t word) {
  word += 0x9e3779b97f4a7c15ull;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ word >> 27) * 0x94d049bb133111ebull;
  return word ^ word >> 31;
}

ChunkKey KeyOf(uint64_t n) {
  const uint64_t words[4] = {Mix(n), Mix(n ^ uint64_t{1} << 60), Mix(n ^ uint64_t{2} << 60),
                             Mix(n ^ uint64_t{3} << 60)};
  ChunkKey key;
  std::memcpy(key.bytes.data(), words, sizeof(words));
  return key;
}

ChunkKey ParentOf(uint64_t n) {
  return n % kChain == 0 ? KeyOf((uint64_t{1} << 50) + n / kChain % kNumRoots) : KeyOf(n - 1);
}

PackedContentRef ContentOf(uint64_t n) {
  const Token tokens[4] = {static_cast<Token>(n / kChain), 1, 2, 3};
  return PackedContent::Make(PromptSlice(TokenView(std::span<const Token>(tokens)), {0, 4}));
}

// By memcmp: the == of a digest compares byte by byte, which would make the probe slower than need be.
struct KeyEqual {
  bool operator()(const ChunkKey& a, const ChunkKey& b) const { return std::memcmp(&a, &b, sizeof(a)) == 0; }
};

// The probe.
class BareMap {
 public:
  struct Value {
    uint64_t words[2];
  };
  bool Find(const ChunkKey& key) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    const auto it = shard.map.find(key);
    return it != shard.map.end() && it->second.words[0] != 0;
  }
  void Insert(const ChunkKey& key) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    shard.map.try_emplace(key, Value{{1, 2}});
  }
  void Erase(const ChunkKey& key) {
    Shard& shard = ShardOf(key);
    std::lock_guard lock(shard.mutex);
    shard.map.erase(key);
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    absl::flat_hash_map<ChunkKey, Value, DigestHash, KeyEqual> map;
  };
  Shard& ShardOf(const ChunkKey& key) { return shards_[std::to_integer<size_t>(key.bytes[31]) % 64]; }
  std::array<Shard, 64> shards_;
};

struct Operation {
  enum Kind : uint8_t { kVisit, kAdd, kRemove } kind = kVisit;
  ChunkKey key;
  ChunkKey parent;           // kAdd
  PackedContentRef content;  // kAdd
};

// Which entries there are: numbers [first, end), in whole chains. Operations of the threads are drawn so that
// no two threads change a chain.
class Population {
 public:
  explicit Population(uint64_t entries) : end_(entries / kChain * kChain) {}

  // `changes_in_ten`: how many of ten operations add and remove, half each.
  std::vector<Operation> Draw(uint64_t operations, int changes_in_ten, std::mt19937_64& random) {
    std::vector<uint64_t> added;
    std::vector<uint64_t> removed;
    const uint64_t changes = operations * static_cast<uint64_t>(changes_in_ten) / 20 / kChain * kChain;
    for (uint64_t i = 0; i < changes; ++i) {
      added.push_back(end_ + i);
      removed.push_back(first_ + i / kChain * kChain + (kChain - 1 - i % kChain));  // leaves first
    }
    first_ += changes;
    std::vector<Operation> drawn(operations);
    uint64_t at = 0;
    for (uint64_t i = 0; i < operations; ++i) {
      Operation& operation = drawn[i];
      const bool is_change = at < 2 * changes && random() % (operations - i) < 2 * changes - at;
      if (!is_change) {
        operation.key = KeyOf(first_ + random() % (end_ - first_));
        continue;
      }
      operation.kind = at % 2 == 0 ? Operation::kAdd : Operation::kRemove;
      const uint64_t n = at % 2 == 0 ? added[at / 2] : removed[at / 2];
      ++at;
      operation.key = KeyOf(n);
      if (operation.kind == Operation::kRemove) continue;
      operation.parent = ParentOf(n);
      operation.content = ContentOf(n);
    }
    end_ += changes;
    return drawn;
  }

 private:
  uint64_t first_ = 0;
  uint64_t end_;
};

// Nanoseconds per operation of each thread; `run(operations)` on the threads at once.
double Time(const std::vector<std::vector<Operation>>& drawn,
            const std::function<void(const std::vector<Operation>&)>& run) {
  std::barrier barrier(static_cast<ptrdiff_t>(drawn.size()) + 1);
  std::vector<std::thread> threads;
  for (const std::vector<Operation>& operations : drawn) {
    threads.emplace_back([&] {
      barrier.arrive_and_wait();
      run(operations);
      barrier.arrive_and_wait();
    });
  }
  barrier.arrive_and_wait();
  const auto start = Clock::now();
  barrier.arrive_and_wait();
  const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
  for (std::thread& thread : threads) thread.join();
  return spent.count() / static_cast<double>(drawn[0].size());
}

void RunVisits(ChunkIndex& index, const std::vector<Operation>& operations) {
  uint64_t tokens = 0;
  for (const Operation& operation : operations) {
    const bool is_known = index.Visit(operation.key, [&](IndexEntry& entry) { tokens += entry.num_tokens; });
    TERRACE_CHECK(is_known);
  }
  TERRACE_CHECK(tokens > 0);
}

void RunMixed(ChunkIndex& index, const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    if (operation.kind == Operation::kVisit) {
      IndexEntry* held = nullptr;
      index.Visit(operation.key, [&](IndexEntry& entry) {
        ++entry.holds;
        ++entry.host_pins;
        held = &entry;
      });
      if (held != nullptr) index.Unhold(*held, 1, 0);
    } else if (operation.kind == Operation::kAdd) {
      IndexEntry& entry = index.Add({.key = operation.key, .parent = operation.parent}, operation.content);
      index.Change(entry, [](IndexEntry& e) { e.FindOrAdd({}).tiers = TierBit(0); });
    } else {
      IndexEntry& entry = *index.Find(operation.key);
      index.Change(entry, [](IndexEntry& e) { e.Find({})->tiers = 0; });
      index.RemoveIfUnused(entry);  // stays where another thread holds it just now
    }
  }
}

void RunBare(BareMap& map, const std::vector<Operation>& operations) {
  uint64_t found = 0;
  for (const Operation& operation : operations) {
    if (operation.kind == Operation::kVisit) {
      found += map.Find(operation.key);
    } else if (operation.kind == Operation::kAdd) {
      map.Insert(operation.key);
    } else {
      map.Erase(operation.key);
    }
  }
  TERRACE_CHECK(found > 0 || operations[0].kind == Operation::kAdd);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Adds [0, entries) in blocks, so that the operations of one block alone are in memory beside the index.
IndexResult MeasureAdd(ChunkIndex& index, BareMap& map, uint64_t entries) {
  IndexResult result{.op = "add", .threads = 1};
  constexpr uint64_t kBlock = 1 << 16;
  for (uint64_t begin = 0; begin < entries; begin += kBlock) {
    std::vector<std::vector<Operation>> drawn(1);
    for (uint64_t n = begin; n < std::min(entries, begin + kBlock); ++n) {
      drawn[0].push_back({Operation::kAdd, KeyOf(n), ParentOf(n), ContentOf(n)});
    }
    const auto size = static_cast<double>(drawn[0].size());
    result.library_ns += size * Time(drawn, [&](const auto& operations) { RunMixed(index, operations); });
    result.probe_ns += size * Time(drawn, [&](const auto& operations) { RunBare(map, operations); });
  }
  result.library_ns /= static_cast<double>(entries);
  result.probe_ns /= static_cast<double>(entries);
  return result;
}

IndexResult MeasureKeys(ChunkIndex& index, BareMap& map, Population& population,
                        const IndexBenchOptions& options, int threads, bool is_mixed) {
  std::vector<double> library;
  std::vector<double> probe;
  std::mt19937_64 random(static_cast<uint64_t>(threads));
  for (int i = 0; i < options.repetitions; ++i) {
    std::vector<std::vector<Operation>> drawn;
    for (int t = 0; t < threads; ++t) {
      // No more than half of what there is is ever drawn anew.
      const uint64_t operations = std::min(options.operations, options.entries / 2);
      drawn.push_back(population.Draw(operations, is_mixed ? 1 : 0, random));
    }
    probe.push_back(Time(drawn, [&](const auto& operations) { RunBare(map, operations); }));
    library.push_back(Time(drawn, [&](const auto& operations) {
      is_mixed ? RunMixed(index, operations) : RunVisits(index, operations);
    }));
  }
  return {is_mixed ? "mixed" : "visit", threads, Median(library), Median(probe)};
}

IndexResult MeasureNeighbours(const IndexBenchOptions& options, size_t shared_tokens) {
  ChunkIndex index;
  const ChunkKey root = KeyOf(uint64_t{1} << 51);
  std::mt19937_64 random(3);
  const auto draw = [&] {
    std::vector<Token> tokens(256, 7);
    for (size_t i = shared_tokens; i < tokens.size(); ++i) tokens[i] = random() % 100000;
    return tokens;
  };
  for (uint64_t n = 0; n < options.children; ++n) {
    index.Add({.key = KeyOf(n), .parent = root}, PackedContent::Make(PromptSlice(draw(), {0, 40})));
  }
  std::vector<double> spent;
  constexpr int kQueries = 20000;
  for (int i = 0; i < options.repetitions; ++i) {
    std::vector<std::vector<Token>> queries;
    for (int q = 0; q < kQueries; ++q) queries.push_back(draw());
    size_t found = 0;
    const auto start = Clock::now();
    for (const std::vector<Token>& query : queries) {
      found += index.Neighbours(root, PromptSlice(query, {0, 256}), 4).size();
    }
    spent.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kQueries);
    TERRACE_CHECK(found > 0);
  }
  return {.op = shared_tokens > 0 ? "neighbours_shared" : "neighbours",
          .threads = 1,
          .library_ns = Median(spent)};
}

double ResidentBytes() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "r"), &std::fclose);
  unsigned long size = 0;
  unsigned long resident = 0;
  const bool is_read = file && std::fscanf(file.get(), "%lu %lu", &size, &resident) == 2;
  TERRACE_CHECK(is_read) << "/proc/self/statm";
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::string IndexResult::ToJson() const {
  char line[200];
  std::snprintf(line, sizeof(line),
                R"({"op": "%s", "threads": %d, "library_ns": %.1f, "probe_ns": %.1f, "ratio": %.2f})",
                op.c_str(), threads, library_ns, probe_ns, ratio());
  return line;
}

std::string IndexMemory::ToJson() const {
  char line[200];
  std::snprintf(line, sizeof(line),
                R"({"entries": %llu, "entry_bytes": %.1f, "policy_bytes": %.1f, "content_bytes": %.1f})",
                static_cast<unsigned long long>(entries), entry_bytes, policy_bytes, content_bytes);
  return line;
}

std::vector<IndexResult> MeasureIndex(const IndexBenchOptions& options) {
  std::vector<IndexResult> results;
  {
    const uint64_t entries = options.entries / kChain * kChain;
    ChunkIndex index;
    auto map = std::make_unique<BareMap>();
    Population population(entries);
    results.push_back(MeasureAdd(index, *map, entries));
    for (const bool is_mixed : {false, true}) {
      for (const int threads : options.threads) {
        results.push_back(MeasureKeys(index, *map, population, options, threads, is_mixed));
      }
    }
  }
  results.push_back(MeasureNeighbours(options, 0));
  results.push_back(MeasureNeighbours(options, 32));
  return results;
}

IndexMemory MeasureIndexMemory(uint64_t entries) {
  IndexMemory memory{.entries = entries};
  const auto count = static_cast<double>(entries);
  std::vector<PackedContentRef> contents(entries);  // zeroed, so that it is resident
  double before = ResidentBytes();
  for (uint64_t n = 0; n < entries; ++n) contents[n] = ContentOf(n);
  memory.content_bytes = (ResidentBytes() - before) / count;

  before = ResidentBytes();
  ChunkIndex index;
  for (uint64_t n = 0; n < entries; ++n) {
    IndexEntry& entry = index.Add({.key = KeyOf(n), .parent = ParentOf(n)}, contents[n]);
    index.Change(entry, [](IndexEntry& e) { e.FindOrAdd({}).tiers = TierBit(0); });
  }
  memory.entry_bytes = (ResidentBytes() - before) / count;

  before = ResidentBytes();
  const std::unique_ptr<EvictionPolicy> policy = MakeLruPolicy();
  for (uint64_t n = 0; n < entries; ++n) policy->Insert({KeyOf(n), {}}, 1);
  memory.policy_bytes = (ResidentBytes() - before) / count;
  return memory;
}

}  // namespace terrace::bench
