// Least recently used first: a list from coldest to hottest in an array, by 32-bit numbers, and a table of
// those numbers. 48 bytes a node and 6 to 12 in the table: the manager keeps one of these for each tier.
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "lib/base/check.h"
#include "terrace/eviction_policy.h"

namespace terrace {
namespace {

using NodeNumber = uint32_t;
constexpr NodeNumber kNone = 0;  // and the list's two ends

struct Node {
  ObjectId id;
  NodeNumber colder = kNone;
  NodeNumber hotter = kNone;  // in a free node: the next free one
  uint32_t last_use = 0;      // grows along the list
};
static_assert(sizeof(Node) == 48);

// Nodes in blocks: they stay where they are, and growing copies nothing.
class NodeArray {
 public:
  NodeArray() { New(); }  // number 0: the ends
  Node& operator[](NodeNumber number) const { return blocks_[number / kBlock][number % kBlock]; }
  NodeNumber New() {
    if (free_ != kNone) {
      const NodeNumber number = free_;
      free_ = (*this)[number].hotter;
      return number;
    }
    TERRACE_CHECK(num_nodes_ < std::numeric_limits<NodeNumber>::max()) << "too many objects in a tier";
    if (num_nodes_ % kBlock == 0) blocks_.push_back(std::make_unique<Node[]>(kBlock));
    return num_nodes_++;
  }
  void Free(NodeNumber number) {
    (*this)[number].hotter = free_;
    free_ = number;
  }

 private:
  static constexpr NodeNumber kBlock = 1024;
  std::vector<std::unique_ptr<Node[]>> blocks_;
  NodeNumber num_nodes_ = 0;
  NodeNumber free_ = kNone;
};

class LruPolicy : public EvictionPolicy {
 public:
  LruPolicy() : places_(0, Hash{&nodes_}, Equal{&nodes_}) {}

  void Insert(const ObjectId& id, uint64_t /*bytes*/) override {
    NodeNumber number = kNone;
    places_.lazy_emplace(id, [&](const Places::constructor& construct) {
      number = nodes_.New();
      nodes_[number].id = id;
      construct(number);
    });
    if (number == kNone) return Touch(id);
    LinkHottest(number);
  }

  void Touch(const ObjectId& id) override {
    if (const auto it = places_.find(id); it != places_.end()) MoveToHotEnd(*it);
  }

  void Remove(const ObjectId& id) override {
    const auto it = places_.find(id);
    if (it == places_.end()) return;
    const NodeNumber number = *it;
    places_.erase(it);
    Unlink(number);
    nodes_.Free(number);
  }

  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) override {
    for (size_t left = places_.size(); left > 0; --left) {
      const NodeNumber coldest = nodes_[kNone].hotter;
      if (allowed(nodes_[coldest].id)) return nodes_[coldest].id;
      MoveToHotEnd(coldest);
    }
    return std::nullopt;
  }

  uint64_t Heat(const ObjectId& id) const override {
    const auto it = places_.find(id);
    return it == places_.end() ? 0 : nodes_[*it].last_use;
  }

 private:
  struct Hash {
    using is_transparent = void;
    const NodeArray* nodes;
    size_t operator()(const ObjectId& id) const { return ObjectIdHash()(id); }
    size_t operator()(NodeNumber number) const { return ObjectIdHash()((*nodes)[number].id); }
  };
  struct Equal {
    using is_transparent = void;
    const NodeArray* nodes;
    bool operator()(NodeNumber a, NodeNumber b) const { return a == b; }
    // Not by ==, which compares byte by byte.
    bool operator()(NodeNumber number, const ObjectId& id) const {
      const ObjectId& own = (*nodes)[number].id;
      return std::memcmp(&own.key, &id.key, sizeof(id.key)) == 0 && own.part == id.part;
    }
    bool operator()(const ObjectId& id, NodeNumber number) const { return (*this)(number, id); }
  };
  using Places = absl::flat_hash_set<NodeNumber, Hash, Equal>;

  void Unlink(NodeNumber number) {
    const Node& node = nodes_[number];
    nodes_[node.colder].hotter = node.hotter;
    nodes_[node.hotter].colder = node.colder;
  }

  void LinkHottest(NodeNumber number) {
    if (last_use_ == std::numeric_limits<uint32_t>::max()) Renumber();
    Node& node = nodes_[number];
    node.colder = nodes_[kNone].colder;
    node.hotter = kNone;
    node.last_use = ++last_use_;
    nodes_[node.colder].hotter = number;
    nodes_[kNone].colder = number;
  }

  void MoveToHotEnd(NodeNumber number) {
    Unlink(number);
    LinkHottest(number);
  }

  // The uses counted anew from 1, once in four thousand million of them.
  void Renumber() {
    last_use_ = 0;
    for (NodeNumber at = nodes_[kNone].hotter; at != kNone; at = nodes_[at].hotter) {
      nodes_[at].last_use = ++last_use_;
    }
  }

  NodeArray nodes_;
  uint32_t last_use_ = 0;
  Places places_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace terrace
