#include "terrace/token_hasher.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string>

#include "lib/base/check.h"
#include "lib/core/sha256.h"
#include "terrace/kv_spec.h"

namespace terrace {
namespace {

constexpr std::string_view kKeyTag("terrace-key-1\0", 14);

Digest HashChunk(Sha256Stream& sha, const ChunkKey& parent, const ChunkContent& content) {
  sha.Begin();
  sha.Add(kKeyTag);
  sha.Add(Bytes(parent.bytes));
  sha.AddU32(static_cast<uint32_t>(content.tokens.size()));
  sha.Add(std::as_bytes(std::span(content.tokens)));
  sha.AddU32(static_cast<uint32_t>(content.items.size()));
  for (const Item& item : content.items) {
    sha.AddU32(static_cast<uint32_t>(item.position));
    sha.AddU32(static_cast<uint32_t>(item.bytes.size()));
    sha.Add(Bytes(item.bytes));
  }
  return sha.Finish();
}

const EVP_MD* Sha256Method() {
  static EVP_MD* const kMethod = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return kMethod;
}

}  // namespace

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) { TERRACE_CHECK(context_ != nullptr); }
Digest Sha256Of(std::string_view text) {
  Sha256Stream sha;
  sha.Begin();
  sha.Add(text);
  return sha.Finish();
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(context_); }

void Sha256Stream::Begin() {
  const int ok = EVP_DigestInit_ex2(context_, Sha256Method(), nullptr);
  TERRACE_CHECK(ok == 1);
}

void Sha256Stream::Add(Bytes bytes) {
  const int ok = EVP_DigestUpdate(context_, bytes.data(), bytes.size());
  TERRACE_CHECK(ok == 1);
}

Digest Sha256Stream::Finish() {
  Digest digest;
  unsigned int length = 0;
  const int ok = EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(digest.bytes.data()), &length);
  TERRACE_CHECK(ok == 1 && length == digest.bytes.size());
  return digest;
}

struct TokenHasher::State {
  uint32_t tokens_per_chunk = 0;
  ChunkKey parent;
  std::vector<ChunkKey> full_keys;
  ChunkContent tail;
  Sha256Stream sha;

  void CloseFullChunk() {
    if (tail.tokens.size() < tokens_per_chunk) return;
    parent = HashChunk(sha, parent, tail);
    full_keys.push_back(parent);
    tail.tokens.clear();
    tail.items.clear();
  }
};

TokenHasher::TokenHasher(const ChunkKey& root, uint32_t tokens_per_chunk)
    : state_(std::make_unique<State>()) {
  TERRACE_CHECK(tokens_per_chunk >= 1 && tokens_per_chunk <= kMaxTokensPerChunk);
  state_->tokens_per_chunk = tokens_per_chunk;
  state_->parent = root;
}

TokenHasher::~TokenHasher() = default;
TokenHasher::TokenHasher(TokenHasher&&) noexcept = default;
TokenHasher& TokenHasher::operator=(TokenHasher&&) noexcept = default;

Status TokenHasher::Append(const TokenView& more) {
  const uint64_t start = num_tokens();
  uint64_t next = start;
  for (const Item& item : more.items) {
    if (item.position < next || item.position >= start + more.tokens.size() || item.bytes.empty() ||
        item.bytes.size() > kMaxItemBytes) {
      return InvalidArgumentError("item at position " + std::to_string(item.position) +
                                  "; allowed: strictly increasing within the appended tokens, 1..64 bytes");
    }
    next = item.position + 1;
  }
  size_t item_index = 0;
  size_t done = 0;
  while (done < more.tokens.size()) {
    ChunkContent& tail = state_->tail;
    const size_t n = std::min(more.tokens.size() - done, state_->tokens_per_chunk - tail.tokens.size());
    const auto part = more.tokens.subspan(done, n);
    const uint64_t chunk_start = start + done - tail.tokens.size();
    tail.tokens.insert(tail.tokens.end(), part.begin(), part.end());
    done += n;
    for (; item_index < more.items.size() && more.items[item_index].position < start + done; ++item_index) {
      tail.items.push_back({more.items[item_index].position - chunk_start, more.items[item_index].bytes});
    }
    state_->CloseFullChunk();
  }
  return OkStatus();
}

uint64_t TokenHasher::num_tokens() const {
  return uint64_t{state_->full_keys.size()} * state_->tokens_per_chunk + state_->tail.tokens.size();
}

std::span<const ChunkKey> TokenHasher::full_keys() const { return state_->full_keys; }
const ChunkKey& TokenHasher::parent() const { return state_->parent; }
const ChunkContent& TokenHasher::tail() const { return state_->tail; }

ChunkKey TokenHasher::TailKey() const {
  if (state_->tail.tokens.empty()) return state_->parent;
  return HashChunk(state_->sha, state_->parent, state_->tail);
}

ChunkKey TokenHasher::KeyOf(const ChunkKey& parent, const ChunkContent& content) {
  Sha256Stream sha;
  return HashChunk(sha, parent, content);
}

}  // namespace terrace
