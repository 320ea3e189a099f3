#include "backends/remote/placement.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace terrace::remote {
namespace {

ChunkContent Slice(const ChunkContent& content, size_t begin, size_t end) {
  ChunkContent out;
  out.tokens.assign(content.tokens.begin() + static_cast<ptrdiff_t>(begin),
                    content.tokens.begin() + static_cast<ptrdiff_t>(end));
  for (const Item& item : content.items) {
    if (item.position < begin || item.position >= end) continue;
    out.items.push_back(item);
    out.items.back().position -= begin;
  }
  return out;
}

}  // namespace

uint64_t Mix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

uint64_t ServerWord(std::string_view address) {
  unsigned char digest[EVP_MAX_MD_SIZE] = {};
  unsigned int bytes = 0;
  // Fails only where memory does; the word is then zero for every server, and ties go by place.
  (void)EVP_Digest(address.data(), address.size(), digest, &bytes, EVP_sha256(), nullptr);
  uint64_t word;
  std::memcpy(&word, digest, sizeof(word));
  return word;
}

std::vector<size_t> OwnersOf(const ChunkKey& run_key, std::span<const uint64_t> server_words, size_t count) {
  std::vector<size_t> places(server_words.size());
  std::iota(places.begin(), places.end(), size_t{0});
  count = std::min(count, places.size());
  const uint64_t key = Mix64(run_key.Prefix64());
  const auto is_better = [&](size_t a, size_t b) {
    const uint64_t score_a = Mix64(server_words[a] ^ key);
    const uint64_t score_b = Mix64(server_words[b] ^ key);
    return score_a != score_b ? score_a > score_b : server_words[a] > server_words[b];
  };
  std::partial_sort(places.begin(), places.begin() + static_cast<ptrdiff_t>(count), places.end(), is_better);
  places.resize(count);
  return places;
}

std::vector<SubQuery> SplitQuery(const PrefixQuery& query) {
  std::vector<SubQuery> out;
  const uint64_t tokens_per_chunk = std::max<uint64_t>(1, query.tokens_per_chunk);
  const uint64_t first_chunk = query.first_token / tokens_per_chunk;
  const size_t num_tokens = query.content.tokens.size();
  size_t at = 0;  // in chunks, from the query's first
  while (true) {
    const uint64_t chunk = first_chunk + at;
    const uint64_t in_run = chunk - RunBegin(chunk);
    const size_t chunks = std::min<size_t>(query.keys.size() - at, RunEnd(chunk) - chunk);
    const size_t begin = std::min<size_t>(num_tokens, at * tokens_per_chunk);
    const bool ends_run = chunk + chunks == RunEnd(chunk);
    // A tail goes with the run that it lies in.
    const size_t end = ends_run ? std::min<size_t>(num_tokens, (at + chunks) * tokens_per_chunk) : num_tokens;
    if (begin >= end) break;
    SubQuery sub;
    sub.query.root = query.root;
    sub.query.parent = at == 0 ? query.parent : query.keys[at - 1];
    sub.query.first_token = query.first_token + begin;
    sub.query.tokens_per_chunk = query.tokens_per_chunk;
    sub.query.division = query.division;
    sub.query.keys.assign(query.keys.begin() + static_cast<ptrdiff_t>(at),
                          query.keys.begin() + static_cast<ptrdiff_t>(at + chunks));
    sub.query.content = Slice(query.content, begin, end);
    sub.query.parts = query.parts;
    sub.query.deadline = query.deadline;
    sub.query.lease = query.lease;
    if (in_run != 0) {
      sub.run_key = query.run_key;
      sub.ask_all = query.run_key == ChunkKey{};
    } else if (chunks > 0) {
      sub.run_key = sub.query.keys.front();
    } else {
      sub.ask_all = true;
    }
    sub.query.run_key = in_run != 0 ? query.run_key : ChunkKey{};
    out.push_back(std::move(sub));
    at += chunks;
    if (!ends_run || end == num_tokens) break;
  }
  return out;
}

bool JoinMatch(const SubQuery& asked, const PrefixMatch& next, PrefixMatch& joined) {
  if (!next.status.ok()) return false;
  const size_t parts = std::max<size_t>(1, asked.query.parts.size());
  const uint64_t tokens_per_chunk = std::max<uint32_t>(1, asked.query.tokens_per_chunk);
  const size_t num_tokens = asked.query.content.tokens.size();
  const bool has_tail = num_tokens > asked.query.keys.size() * tokens_per_chunk;
  const bool is_whole = next.matched_tokens == num_tokens;
  // Between runs stand full chunks only: one more, that the match ended with, would shift what follows.
  const size_t full = next.matched_tokens / tokens_per_chunk * parts;
  const size_t most = is_whole && !has_tail ? full : next.chunks.size();
  const size_t taken = std::min(next.chunks.size(), most);
  joined.matched_tokens += next.matched_tokens;
  joined.chunks.insert(joined.chunks.end(), next.chunks.begin(),
                       next.chunks.begin() + static_cast<ptrdiff_t>(taken));
  return is_whole && !has_tail && taken == full;
}

}  // namespace terrace::remote
