// Proof: runs an engine with and without the cache and compares what comes out, bit by bit. Every comparison
// that fails is printed and counted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "kv_cache.h"

namespace paged_engine {

// A prompt's answer: the logits behind the prompt and behind each token that was decoded after it.
struct Answer {
  std::vector<Logits> logits;
  std::vector<terrace::Token> tokens;
  uint64_t loaded_tokens = 0;
  uint64_t computed_tokens = 0;  // of the prompt
  double first_token_ms = 0;
};

class Proof {
 public:
  // What is stored is found under the same `salt` only.
  Proof(CacheOptions options, PageLayout layout, std::string salt, Compute& compute);

  // Everything; the number of comparisons that failed.
  int Run();

 private:
  using Prompt = std::vector<terrace::Token>;

  // Computes everything; its KV is then stored. The blocks are the lowest free ones.
  Answer Cold(const char* what, const Prompt& prompt);
  // Begins with what is kept, in the highest blocks, descending. `expected_loaded` tokens are to come out of
  // the tier named.
  Answer Warm(const char* what, const Prompt& prompt, uint64_t expected_loaded, const char* expected_tier);
  void Decode(Sequence& sequence, Answer& answer);

  void Expect(bool condition, const std::string& what);
  void ExpectEqual(const char* what, const Answer& a, const Answer& b);
  void ExpectDifferent(const char* what, const Answer& a, const Answer& b);
  void Open(const std::string& directory);
  void Close();
  std::vector<uint64_t> TierHits() const;

  const CacheOptions options_;
  const std::string salt_;
  Compute& compute_;
  Engine engine_;
  std::unique_ptr<terrace::StorageManager> cache_;
  terrace::ChunkKey root_;
  int failures_ = 0;
};

}  // namespace paged_engine
