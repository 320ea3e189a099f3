#include "tests/support/match_backend.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace terrace {
namespace {

class MatchBackend final : public Backend {
 public:
  explicit MatchBackend(std::shared_ptr<MatchShelf> shelf) : Backend("remote"), shelf_(std::move(shelf)) {}

 protected:
  Capabilities DoCapabilities() const override { return {.supports_match = true, .completes_inline = true}; }
  uint64_t DoCapacityBytes() const override { return uint64_t{1} << 40; }
  uint64_t DoUsedBytes() const override { return 0; }
  Status DoAttach(const BackendContext&) override { return OkStatus(); }

  void DoGet(std::vector<GetOp> ops, GetDone done) override {
    auto shared = std::make_shared<std::vector<GetOp>>(std::move(ops));
    Dispatch(&MatchShelf::holding_gets, [this, shared, done](bool cancelled) {
      std::vector<GetResult> results;
      for (GetOp& op : *shared) {
        results.push_back(cancelled ? GetResult{CancelledError("closed"), 0} : ReadOne(op));
      }
      shared->clear();
      done(results);
    });
  }

  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    auto shared = std::make_shared<std::vector<PutOp>>(std::move(ops));
    Dispatch(&MatchShelf::holding_puts, [this, shared, done](bool cancelled) {
      std::vector<Status> results;
      for (PutOp& op : *shared) results.push_back(cancelled ? CancelledError("closed") : WriteOne(op));
      shared->clear();
      done(results);
    });
  }

  void DoErase(std::vector<ObjectId> ids, EraseMode, EraseDone done) override {
    std::vector<Status> results;
    {
      std::lock_guard lock(shelf_->mutex);
      for (const ObjectId& id : ids)
        results.push_back(shelf_->objects.erase(id) > 0 ? OkStatus() : NotFoundError("absent"));
    }
    done(results);
  }

  void DoClear(StatusDone done) override {
    shelf_->Set([](MatchShelf& s) { s.objects.clear(); });
    done(OkStatus());
  }
  void DoFlush(StatusDone done) override { done(OkStatus()); }
  Result<ScanPage> DoScan(std::string_view, size_t, ScanDetail) override { return ScanPage{}; }
  Status DoPutRoot(const RootRecord&) override { return OkStatus(); }
  Result<std::vector<RootRecord>> DoScanRoots() override { return std::vector<RootRecord>{}; }

  void DoMatch(PrefixQuery query, MatchDone done) override {
    {
      std::lock_guard lock(shelf_->mutex);
      ++shelf_->matches;
      shelf_->queries.push_back(query);
      if (shelf_->throws) throw std::runtime_error("thrown by the test");
      if (shelf_->never_answers) return;
    }
    Dispatch(&MatchShelf::holding_matches, [this, query = std::move(query), done](bool cancelled) {
      done(cancelled ? PrefixMatch{CancelledError("closed"), {}, 0, ""} : Answer(query));
    });
  }
  void DoRelease(std::string_view lease_token) override {
    shelf_->Set([&](MatchShelf& s) { s.released.emplace_back(lease_token); });
  }
  Status DoClose(TimePoint) override {
    shelf_->ReleaseHeld(true);
    return OkStatus();
  }

 private:
  void Dispatch(bool MatchShelf::*holding, std::function<void(bool)> run) {
    {
      std::lock_guard lock(shelf_->mutex);
      if ((*shelf_).*holding) {
        shelf_->held.push_back(std::move(run));
        return;
      }
    }
    run(false);
  }

  GetResult ReadOne(GetOp& op) {
    uint64_t frame_bytes = 0;
    {
      std::lock_guard lock(shelf_->mutex);
      ++shelf_->gets;
      const auto found = shelf_->objects.find(op.id);
      if (found == shelf_->objects.end()) return {NotFoundError("absent"), 0};
      const std::vector<std::byte>& frame = found->second.frame;
      if (frame.size() > op.dst.frame().size()) return {DataLossError("too long"), 0};
      std::memcpy(op.dst.mutable_frame().data(), frame.data(), frame.size());
      frame_bytes = frame.size();
    }
    if (op.on_bytes) op.on_bytes(0, frame_bytes);
    return {OkStatus(), frame_bytes};
  }

  Status WriteOne(PutOp& op) {
    std::lock_guard lock(shelf_->mutex);
    ++shelf_->puts;
    if (!shelf_->put_status.ok()) return shelf_->put_status;
    const auto [object, is_new] = shelf_->objects.try_emplace(op.id);
    if (!is_new) return AlreadyExistsError("there");
    object->second.meta = op.meta;
    const Bytes frame = op.frame.frame().first(op.meta.frame_bytes);
    object->second.frame.assign(frame.begin(), frame.end());
    return OkStatus();
  }

  // With the shelf's mutex held: the parts of a chunk in the order asked for, if all are there.
  bool AddChunk(const ChunkKey& key, const PrefixQuery& query, PrefixMatch& match) const {
    const size_t before = match.chunks.size();
    for (const ObjectPart part : query.parts) {
      const auto found = shelf_->objects.find({key, part});
      if (found == shelf_->objects.end()) {
        match.chunks.resize(before);
        return false;
      }
      match.chunks.push_back({key, true, found->second.meta.frame_bytes});
    }
    return true;
  }

  PrefixMatch Answer(const PrefixQuery& query) {
    std::lock_guard lock(shelf_->mutex);
    PrefixMatch match;
    match.status = shelf_->match_status;
    match.lease_token = "lease " + std::to_string(shelf_->matches);
    size_t full = 0;
    while (full < query.keys.size() && AddChunk(query.keys[full], query, match)) ++full;
    match.matched_tokens = uint64_t{full} * query.tokens_per_chunk;
    const ChunkKey parent = full == 0 ? query.parent : query.keys[full - 1];
    const uint64_t end =
        std::min<uint64_t>(match.matched_tokens + query.tokens_per_chunk, query.content.tokens.size());
    const ChunkContent rest =
        SliceContent({query.content.tokens, query.content.items}, {match.matched_tokens, end});
    uint32_t longest = 0;
    ChunkKey nearest;
    for (const auto& [id, object] : shelf_->objects) {
      if (object.meta.parent != parent || !object.meta.content) continue;
      const uint32_t common = CommonPrefixTokens(*object.meta.content, rest);
      if (common <= longest) continue;
      longest = common;
      nearest = id.key;
    }
    if (longest > 0 && AddChunk(nearest, query, match)) match.matched_tokens += longest;
    if (shelf_->lie) shelf_->lie(match);
    return match;
  }

  const std::shared_ptr<MatchShelf> shelf_;
};

}  // namespace

size_t MatchShelf::ReleaseHeld(bool cancelled) {
  std::vector<std::function<void(bool)>> work;
  {
    std::lock_guard lock(mutex);
    work.swap(held);
  }
  for (const auto& run : work) run(cancelled);
  return work.size();
}

size_t MatchShelf::num_held() {
  std::lock_guard lock(mutex);
  return held.size();
}

size_t MatchShelf::num_objects() {
  std::lock_guard lock(mutex);
  return objects.size();
}

uint64_t MatchShelf::num_matches() {
  std::lock_guard lock(mutex);
  return matches;
}

std::vector<std::string> MatchShelf::Released() {
  std::lock_guard lock(mutex);
  return released;
}

std::unique_ptr<Backend> MakeMatchBackend(std::shared_ptr<MatchShelf> shelf) {
  return std::make_unique<MatchBackend>(std::move(shelf));
}

}  // namespace terrace
