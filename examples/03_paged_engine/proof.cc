#include "proof.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

namespace paged_engine {
namespace {

using terrace::Status;
using terrace::Token;

constexpr uint64_t kPromptTokens = 600;  // two chunks of 256, and a tail
constexpr uint64_t kCutTokens = 300;     // in the second chunk
constexpr int kDecodedTokens = 4;
constexpr uint32_t kNumBlocks = 128;  // of 16 tokens

std::vector<Token> MakePrompt(uint64_t number, uint64_t tokens) {
  std::vector<Token> prompt(tokens);
  for (uint64_t i = 0; i < tokens; ++i) {
    const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15 + number * 0xbf58476d1ce4e5b9;
    prompt[i] = static_cast<Token>((mixed ^ (mixed >> 31)) * 0x94d049bb133111eb >> 55);  // below 512
  }
  return prompt;
}

Token Likeliest(const Logits& logits) {
  return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
}

bool SameBits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

terrace::TimePoint InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

double MillisecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void Print(const char* what, const Answer& answer, const char* tier) {
  std::printf("  %-26s loaded %3" PRIu64 " from %-6s computed %3" PRIu64 "  first token %8.2f ms\n", what,
              answer.loaded_tokens, tier, answer.computed_tokens, answer.first_token_ms);
}

}  // namespace

Proof::Proof(CacheOptions options, PageLayout layout, std::string salt, Compute& compute)
    : options_(std::move(options)),
      salt_(std::move(salt)),
      compute_(compute),
      engine_(ModelShape(), layout, kNumBlocks, compute) {}

int Proof::Run() {
  const Prompt prompt = MakePrompt(1, kPromptTokens);
  const Prompt other = MakePrompt(2, kPromptTokens);
  Prompt branch = MakePrompt(3, kCutTokens + 50);  // begins as `prompt` does
  std::copy_n(prompt.begin(), kCutTokens, branch.begin());
  Prompt planted = other;  // what `prompt` would be answered with if its prefix were mistaken for another one
  planted.back() = prompt.back();

  Open(options_.directory);
  const Answer cold = Cold("cold", prompt);
  ExpectEqual("warm", cold, Warm("warm", prompt, kPromptTokens - 1, "host"));
  const Answer cut = Warm("cut inside a chunk", branch, kCutTokens, "host");
  ExpectEqual("cut inside a chunk", Cold("the same, cold", branch), cut);
  ExpectDifferent("another prefix", cold, Cold("another prefix, cold", other));
  const Answer twin = Warm("its KV, the first's token", planted, kPromptTokens - 1, "host");
  ExpectDifferent("another prefix's KV", cold, twin);
  Close();

  Open(options_.directory);  // nothing in memory
  ExpectEqual("after a restart", cold, Warm("after a restart", prompt, kPromptTokens - 1, "nvme"));
  Close();
  if (!options_.remote.empty()) {
    Open(options_.directory + "-other");  // empty
    ExpectEqual("on another host", cold, Warm("on another host", prompt, kPromptTokens - 1, "remote"));
    Close();
  }
  return failures_;
}

Answer Proof::Cold(const char* what, const Prompt& prompt) {
  Answer answer{.computed_tokens = prompt.size()};
  Sequence sequence{.tokens = prompt};
  Expect(engine_.pages().Reserve(sequence, kDecodedTokens, /*descending=*/false), "enough blocks");
  const auto begin = std::chrono::steady_clock::now();
  answer.logits.push_back(engine_.Forward(sequence, 0).value());
  answer.first_token_ms = MillisecondsSince(begin);
  terrace::StoreHandle kept = Keep(*cache_, root_, sequence, engine_).value();
  Decode(sequence, answer);  // beside the copy
  // What is enqueued from here on may write the blocks.
  const Status released = kept.ReleaseTo(*compute_.stream(), InAMinute());
  Expect(released.ok(), "blocks are free: " + released.ToString());
  engine_.pages().Free(sequence);
  const terrace::StoreReport report = kept.Wait(InAMinute());
  Expect(report.status.ok() && report.stored_tokens == prompt.size(), "stored: " + report.status.ToString());
  // For this proof alone: an engine does not wait.
  const Status flushed = cache_->Flush(InAMinute());
  Expect(flushed.ok(), "on disk: " + flushed.ToString());
  Print(what, answer, "-");
  return answer;
}

Answer Proof::Warm(const char* what, const Prompt& prompt, uint64_t expected_loaded,
                   const char* expected_tier) {
  Answer answer;
  Sequence sequence{.tokens = prompt};
  Expect(engine_.pages().Reserve(sequence, kDecodedTokens, /*descending=*/true), "enough blocks");
  const std::vector<uint64_t> before = TierHits();
  const auto begin = std::chrono::steady_clock::now();
  Begun begun = Begin(*cache_, root_, sequence, engine_).value();
  answer.first_token_ms = MillisecondsSince(begin);
  answer.loaded_tokens = begun.loaded_tokens;
  answer.computed_tokens = prompt.size() - begun.loaded_tokens;
  answer.logits.push_back(std::move(begun.logits));
  Decode(sequence, answer);
  engine_.pages().Free(sequence);

  const std::vector<uint64_t> after = TierHits();
  const std::vector<terrace::TierStats> tiers = cache_->Stats().tiers;
  std::string from;
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (after[i] > before[i]) from += (from.empty() ? "" : ", ") + tiers[i].name;
  }
  Print(what, answer, from.c_str());
  Expect(answer.loaded_tokens == expected_loaded, std::to_string(expected_loaded) + " tokens loaded");
  Expect(from == expected_tier, std::string("all of it from ") + expected_tier);
  return answer;
}

void Proof::Decode(Sequence& sequence, Answer& answer) {
  for (int i = 0; i < kDecodedTokens; ++i) {
    answer.tokens.push_back(Likeliest(answer.logits.back()));
    sequence.tokens.push_back(answer.tokens.back());
    answer.logits.push_back(engine_.Forward(sequence, sequence.tokens.size() - 1).value());
  }
}

void Proof::Expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("  FAILED: %s\n", what.c_str());
  ++failures_;
}

void Proof::ExpectEqual(const char* what, const Answer& a, const Answer& b) {
  Expect(a.tokens == b.tokens && std::ranges::equal(a.logits, b.logits, SameBits),
         std::string(what) + ": the same logits and tokens as without a cache, bit by bit");
}

void Proof::ExpectDifferent(const char* what, const Answer& a, const Answer& b) {
  Expect(!SameBits(a.logits[0], b.logits[0]), std::string(what) + ": other logits");
}

void Proof::Open(const std::string& directory) {
  cache_ = OpenCache({directory, options_.remote}, compute_).value();
  root_ = cache_->Root(SpecOf(engine_.shape()), {}, salt_).value();
}

void Proof::Close() {
  const Status closed = cache_->Close(InAMinute());
  Expect(closed.ok(), "closed: " + closed.ToString());
}

std::vector<uint64_t> Proof::TierHits() const {
  std::vector<uint64_t> hits;
  for (const terrace::TierStats& tier : cache_->Stats().tiers) hits.push_back(tier.hits);
  return hits;
}

}  // namespace paged_engine
