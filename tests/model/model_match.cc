// The longest loadable prefix, by trying every way to match: each boundary, and each child of it.
#include <algorithm>
#include <map>

#include "tests/model/manager_model.h"

namespace terrace {
namespace {

// Chunks that the group needs of the last ones of a match of `num_chunks`.
uint64_t Wanted(const GroupSpec& group, uint64_t tokens_per_chunk, uint64_t num_chunks) {
  if (group.rule == Retention::kFull) return num_chunks;
  if (group.rule == Retention::kState) return std::min<uint64_t>(num_chunks, 1);
  uint64_t window = 1;
  for (uint64_t tokens = 0; tokens < group.window_tokens; tokens += tokens_per_chunk) ++window;
  return std::min(num_chunks, window);
}

bool ItemAt(const std::vector<Item>& items, uint64_t position, const Item** out) {
  for (const Item& item : items) {
    if (item.position == position) {
      *out = &item;
      return true;
    }
  }
  return false;
}

// Token by token, item by item.
uint64_t CommonTokens(const ChunkContent& a, const ChunkContent& b) {
  uint64_t m = 0;
  for (; m < a.tokens.size() && m < b.tokens.size(); ++m) {
    if (a.tokens[m] != b.tokens[m]) break;
    const Item* in_a = nullptr;
    const Item* in_b = nullptr;
    if (ItemAt(a.items, m, &in_a) != ItemAt(b.items, m, &in_b)) break;
    if (in_a != nullptr && in_a->bytes != in_b->bytes) break;
  }
  return m;
}

}  // namespace

std::vector<ModelMatch> ManagerModel::Matches(size_t root_index, const TokenView& prompt, uint64_t limit,
                                              const std::vector<ObjectPart>& parts) {
  const ModelRoot& root = roots_[root_index];
  const uint64_t size = root.spec.tokens_per_chunk;
  const auto usable = [&](const ModelNode& node, ObjectPart part) {
    const ModelObject& object = ObjectOf(node, part);
    return object.present[0] ||
           (object.present[1] && object.frame_bytes + kTierPageBytes <= limits_.pool_bytes);
  };
  // Chunks of the prompt that are known, in order.
  std::vector<const ModelNode*> path;
  const ModelNode* at = root_nodes_[root_index];
  for (uint64_t begin = 0; at != nullptr && begin + size <= limit; begin += size) {
    const ChunkContent content = SliceContent(prompt, {begin, begin + size});
    const auto child = std::find_if(at->children.begin(), at->children.end(),
                                    [&](const ModelNode* c) { return c->content == content; });
    at = child == at->children.end() ? nullptr : *child;
    if (at != nullptr) path.push_back(at);
  }
  // Do the chunks give what each part needs for a match that ends after them?
  const auto whole = [&](std::vector<const ModelNode*> chunks, bool with_last, size_t before) {
    for (const ObjectPart part : parts) {
      const GroupSpec& group = root.GroupOf(part);
      // Up to the boundary before a last chunk, states are not needed; windows are, for that boundary.
      if (before > 0 && group.rule != Retention::kState) {
        const uint64_t wanted = Wanted(group, size, before);
        for (size_t i = before - wanted; i < before; ++i) {
          if (!usable(*chunks[i], part)) return false;
        }
      }
      if (with_last && !usable(*chunks.back(), part)) return false;
    }
    return true;
  };
  std::vector<ModelMatch> best(1);
  const auto consider = [&](const std::vector<const ModelNode*>& chunks, uint64_t tokens) {
    if (tokens == 0 || tokens < best[0].matched_tokens) return;
    if (tokens > best[0].matched_tokens) best.clear();
    ModelMatch match;
    match.matched_tokens = tokens;
    bool all_in_host = true;
    for (size_t i = 0; i < chunks.size(); ++i) {
      for (const ObjectPart part : parts) {
        if (i + Wanted(root.GroupOf(part), size, chunks.size()) < chunks.size()) continue;
        const ModelObject& object = ObjectOf(*chunks[i], part);
        match.items.push_back({const_cast<ModelNode*>(chunks[i]),
                               part,
                               object.present[0],
                               object.frame_bytes,
                               {chunks[i]->first_token, std::min(chunks[i]->end_token(), tokens)}});
        match.frame_bytes += object.frame_bytes;
        all_in_host &= object.present[0];
      }
      const bool has_items = !match.items.empty() && match.items.back().node == chunks[i];
      if (all_in_host && has_items) match.host_tokens = std::min(chunks[i]->end_token(), tokens);
    }
    const bool is_known = std::any_of(best.begin(), best.end(), [&](const ModelMatch& other) {
      return other.matched_tokens == tokens && other.items.back().node == match.items.back().node;
    });
    if (!is_known) best.push_back(std::move(match));
  };
  for (size_t n = 0; n <= path.size(); ++n) {
    std::vector<const ModelNode*> chunks(path.begin(), path.begin() + static_cast<ptrdiff_t>(n));
    if (!whole(chunks, false, n)) continue;
    const bool has_states =
        n == 0 || std::all_of(parts.begin(), parts.end(), [&](ObjectPart part) {
          return root.GroupOf(part).rule != Retention::kState || usable(*chunks[n - 1], part);
        });
    if (has_states) consider(chunks, n * size);
    const uint64_t end = std::min(limit, (n + 1) * size);
    if (end <= n * size) continue;
    const ChunkContent query = SliceContent(prompt, {n * size, end});
    const ModelNode* boundary = n == 0 ? root_nodes_[root_index] : chunks.back();
    chunks.push_back(nullptr);
    for (const ModelNode* child : boundary->children) {
      const uint64_t common = CommonTokens(child->content, query);
      if (root.spec.cut == Cut::kNone && common < child->content.tokens.size()) continue;
      chunks.back() = child;
      if (common > 0 && whole(chunks, true, n)) consider(chunks, n * size + common);
    }
  }
  return best;
}

uint64_t ManagerModel::RecomputeFrom(size_t root_index, const std::vector<ModelItem>& items, size_t taken,
                                     uint64_t begin) const {
  const ModelRoot& root = roots_[root_index];
  const uint64_t size = root.spec.tokens_per_chunk;
  std::map<ObjectPart, const ModelItem*> first;
  for (const ModelItem& item : items) first.try_emplace(item.part, &item);
  uint64_t from = begin;
  for (size_t i = 0; i < taken; ++i) {
    const bool is_whole = i + 1 == items.size() || items[i + 1].node != items[i].node;
    if (!is_whole) continue;
    const uint64_t boundary = items[i].matched.end;
    const bool can_go_on = std::all_of(first.begin(), first.end(), [&](const auto& entry) {
      const GroupSpec& group = root.GroupOf(entry.first);
      const ModelItem& earliest = *entry.second;
      if (group.rule == Retention::kState) return earliest.matched.end <= boundary;
      if (group.rule != Retention::kWindow || earliest.node->first_token == 0) return true;
      // The window before the boundary lies in what is loaded.
      const uint64_t full = boundary / size * size;
      return full >= group.window_tokens && full - group.window_tokens >= earliest.node->first_token;
    });
    if (can_go_on) from = boundary;
  }
  return from;
}

}  // namespace terrace
