#include "lib/storage/prefix_match.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr size_t kMaxNeighbours = 64;

class Matcher {
 public:
  Matcher(ChunkIndex& index, const MatchRequest& request)
      : index_(index), request_(request), chunk_tokens_(request.root.spec.tokens_per_chunk) {
    for (const ObjectPart part : request.parts) {
      const GroupSpec& group = request.root.spec.groups[part.group];
      rules_.push_back(group.rule);
      any_full_ |= group.rule == Retention::kFull;
      any_state_ |= group.rule == Retention::kState;
      if (group.rule == Retention::kWindow)
        window_chunks_ = std::max(window_chunks_, WindowChunks(group, request.root.spec.tokens_per_chunk));
    }
  }

  MatchPlan Run() {
    ProbeFullChunks();
    uint64_t n = request_.known_chunks + plan_.chunks.size();
    for (;; --n) {
      // Known chunks are whole: there is always a boundary after them.
      if (WindowIsThere(n)) {
        if (AddTail(n)) break;
        if (n == request_.known_chunks || !any_state_ || IsUsableAt(n, Retention::kState)) break;
      }
      DropLast();
    }
    if (!plan_.has_tail) plan_.matched_tokens = n * chunk_tokens_;
    DropUnneeded();
    return std::move(plan_);
  }

 private:
  bool IsUsable(const ObjectPresence& object) const {
    if (object.tiers == 0 || (request_.division && object.division != *request_.division)) return false;
    const bool in_host = request_.has_host && (object.tiers & TierBit(0));
    return in_host || object.frame_bytes() + kFrameAlignment <= request_.pool_bytes;
  }

  bool IsUsableByRule(std::span<const ObjectPresence> objects, Retention rule) const {
    for (size_t p = 0; p < rules_.size(); ++p) {
      if (rules_[p] == rule && !IsUsable(objects[p])) return false;
    }
    return true;
  }

  std::span<const ObjectPresence> FoundAt(uint64_t n) const {
    return std::span(plan_.found).subspan((n - 1 - request_.known_chunks) * rules_.size(), rules_.size());
  }

  bool IsUsableAt(uint64_t n, Retention rule) const { return IsUsableByRule(FoundAt(n), rule); }

  bool WindowIsThere(uint64_t n) const {
    return n == request_.known_chunks || window_chunks_ == 0 ||
           window_runs_[n - 1 - request_.known_chunks] >= std::min(n, window_chunks_);
  }

  // Appends the chunk of `key` to the plan, where `is_wanted(objects)` says so; all under the entry's lock,
  // so what was seen is what was pinned.
  template <typename F>
  bool Take(const ChunkKey& key, F&& is_wanted) {
    const size_t at = plan_.found.size();
    plan_.found.resize(at + rules_.size());
    MatchedChunk chunk;
    const std::span<ObjectPresence> objects = std::span(plan_.found).subspan(at);
    index_.Visit(key, [&](IndexEntry& entry) {
      for (size_t p = 0; p < rules_.size(); ++p) {
        if (const ObjectPresence* object = entry.Find(request_.parts[p])) objects[p] = *object;
      }
      if (!is_wanted(objects)) return;
      chunk.entry = &entry;
      chunk.key = key;
      chunk.first_token = entry.first_token;
      chunk.num_tokens = entry.num_tokens;
      if (!request_.pin) return;
      for (const ObjectPresence& object : objects) {
        if (!IsUsable(object)) continue;
        const bool in_host = request_.has_host && (object.tiers & TierBit(0));
        (in_host ? chunk.host_pin : chunk.lower_pin) = true;
      }
      ++entry.holds;
      entry.host_pins += chunk.host_pin;
      entry.lower_pins += chunk.lower_pin;
    });
    if (chunk.entry == nullptr) {
      plan_.found.resize(at);
      return false;
    }
    plan_.chunks.push_back(chunk);
    return true;
  }

  void ProbeFullChunks() {
    const uint64_t end = std::min<uint64_t>(request_.limit / chunk_tokens_, request_.keys.size());
    plan_.chunks.reserve(end - std::min(end, request_.known_chunks) + 1);
    plan_.found.reserve(plan_.chunks.capacity() * rules_.size());
    for (uint64_t i = request_.known_chunks; i < end; ++i) {
      const bool taken = Take(request_.keys[i], [&](std::span<const ObjectPresence> objects) {
        return !any_full_ || IsUsableByRule(objects, Retention::kFull);
      });
      if (!taken) {
        if (any_full_) break;
        plan_.chunks.emplace_back();
        plan_.found.resize(plan_.found.size() + rules_.size());
      }
      // A key says how long its chunk is; the entry may not know yet.
      if (taken) plan_.chunks.back().num_tokens = static_cast<uint32_t>(chunk_tokens_);
      const bool window_ok = taken && IsUsableAt(i + 1, Retention::kWindow);
      window_runs_.push_back(window_ok ? (window_runs_.empty() ? 0 : window_runs_.back()) + 1 : 0);
    }
  }

  bool AddTail(uint64_t n) {
    const uint64_t begin = n * chunk_tokens_;
    const uint64_t end = std::min(request_.limit, begin + chunk_tokens_);
    if (end <= begin) return false;
    const PromptSlice query(request_.prompt, {begin, end});
    const ChunkKey& first_parent = request_.parent != nullptr ? *request_.parent : request_.root.root;
    const ChunkKey& parent = n == 0 ? first_parent : request_.keys[n - 1];
    const bool whole_only = request_.root.spec.cut == Cut::kNone;
    // Nearly always one of the nearest two can be used.
    for (size_t limit : {size_t{1}, kMaxNeighbours}) {
      const std::vector<ChunkIndex::Neighbour> neighbours =
          whole_only ? index_.WholePrefixes(parent, query, limit) : index_.Neighbours(parent, query, limit);
      for (const ChunkIndex::Neighbour& neighbour : neighbours) {
        const bool taken = Take(neighbour.key, [&](std::span<const ObjectPresence> objects) {
          return std::all_of(objects.begin(), objects.end(),
                             [&](const ObjectPresence& object) { return IsUsable(object); });
        });
        // The other of the two may share less than one that stands beyond this one.
        if (!taken && limit == 1) break;
        if (!taken) continue;
        plan_.has_tail = true;
        plan_.matched_tokens = begin + neighbour.tokens;
        return true;
      }
      if (neighbours.size() < limit) break;
    }
    return false;
  }

  void Unpin(MatchedChunk& chunk) {
    if (chunk.entry == nullptr) return;
    if (request_.pin && index_.Unhold(*chunk.entry, chunk.host_pin, chunk.lower_pin))
      plan_.unused.push_back(chunk.key);
    chunk = {};
  }

  void DropLast() {
    Unpin(plan_.chunks.back());
    plan_.chunks.pop_back();
    plan_.found.resize(plan_.found.size() - rules_.size());
    window_runs_.pop_back();
  }

  // What no rule asks for: early chunks of window and state groups.
  void DropUnneeded() {
    const uint64_t last = request_.known_chunks + plan_.chunks.size();
    for (uint64_t i = request_.known_chunks; i < last; ++i) {
      const size_t at = i - request_.known_chunks;
      bool needed = false;
      for (size_t p = 0; p < rules_.size(); ++p) {
        uint64_t wanted = last;
        if (rules_[p] == Retention::kState) wanted = 1;
        if (rules_[p] == Retention::kWindow) {
          const GroupSpec& group = request_.root.spec.groups[request_.parts[p].group];
          wanted = WindowChunks(group, request_.root.spec.tokens_per_chunk);
        }
        if (i + wanted >= last) {
          needed = true;
        } else {
          plan_.found[at * rules_.size() + p] = {};
        }
      }
      if (!needed) Unpin(plan_.chunks[at]);
    }
  }

  ChunkIndex& index_;
  const MatchRequest& request_;
  const uint64_t chunk_tokens_;
  std::vector<Retention> rules_;  // by part
  bool any_full_ = false;
  bool any_state_ = false;
  uint64_t window_chunks_ = 0;
  std::vector<uint64_t> window_runs_;  // consecutive chunks usable for window groups that end at each chunk
  MatchPlan plan_;
};

}  // namespace

uint64_t WindowChunks(const GroupSpec& group, uint32_t tokens_per_chunk) {
  return (group.window_tokens + uint64_t{tokens_per_chunk} - 1) / tokens_per_chunk + 1;
}

MatchPlan MatchPrefix(ChunkIndex& index, const MatchRequest& request) {
  return Matcher(index, request).Run();
}

}  // namespace terrace
