#include "backends/nvme/striped_backend.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <xxhash.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// The parts of a split batch come together here.
template <typename Answer>
struct JoinedBatch {
  std::vector<Answer> answers;
  std::atomic<size_t> open_parts{0};
  std::function<void(std::span<const Answer>)> done;

  // Answers of one part stand at `places` of the whole.
  void Set(std::span<const size_t> places, std::span<const Answer> part) {
    TERRACE_CHECK(places.size() == part.size());
    for (size_t i = 0; i < places.size(); ++i) answers[places[i]] = part[i];
    EndPart();
  }
  void EndPart() {
    if (open_parts.fetch_sub(1, std::memory_order_acq_rel) == 1) done(answers);
  }
};

struct JoinedStatus {
  std::mutex mutex;
  Status status;
  size_t open_parts = 0;
  StatusDone done;

  void Set(const std::string& member, const Status& part) {
    bool is_last;
    {
      const std::lock_guard lock(mutex);
      if (status.ok() && !part.ok()) status = part.WithContext(member);
      is_last = --open_parts == 0;
    }
    if (is_last) done(status);
  }
};

class StripedBackend final : public Backend {
 public:
  StripedBackend(std::string name, std::vector<StripeMember> members)
      : Backend(std::move(name)), members_(std::move(members)) {
    TERRACE_CHECK(!members_.empty());
    for (const StripeMember& member : members_) seeds_.push_back(member.seed);
    FindStrays();
  }

 protected:
  Capabilities DoCapabilities() const override { return members_[0].backend->capabilities(); }
  uint64_t DoCapacityBytes() const override { return Sum(&Backend::capacity_bytes); }
  uint64_t DoUsedBytes() const override { return Sum(&Backend::used_bytes); }

  Status DoAttach(const BackendContext& context) override {
    for (StripeMember& member : members_) {
      TERRACE_RETURN_IF_ERROR(member.backend->Attach(context).WithContext(member.name));
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!doubles_[i].empty()) {
        members_[i].backend->Erase(std::exchange(doubles_[i], {}), EraseMode::kEvict,
                                   [](std::span<const Status>) {});
      }
    }
    return OkStatus();
  }

  void DoGet(std::vector<GetOp> ops, GetDone done) override {
    Split<GetResult>(
        std::move(ops), std::move(done), [this](const GetOp& op) { return MemberOf(op.id); },
        [](Backend& member, std::vector<GetOp> part, GetDone part_done) {
          member.Get(std::move(part), std::move(part_done));
        });
  }

  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    Split<Status>(
        std::move(ops), std::move(done), [this](const PutOp& op) { return MemberOf(op.id); },
        [](Backend& member, std::vector<PutOp> part, PutDone part_done) {
          member.Put(std::move(part), std::move(part_done));
        });
  }

  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override {
    if (mode == EraseMode::kErase) return EraseEverywhere(std::move(ids), std::move(done));
    const auto evicted = std::make_shared<std::vector<std::pair<ObjectId, size_t>>>();
    for (const ObjectId& id : ids) evicted->emplace_back(id, MemberOf(id));
    // What is put again from here on goes to its owner.
    for (const ObjectId& id : ids) ForgetStray(id);
    EraseDone restore = [this, evicted, done = std::move(done)](std::span<const Status> statuses) {
      for (size_t i = 0; i < statuses.size(); ++i) {
        const auto& [id, member] = (*evicted)[i];
        const bool is_gone = statuses[i].ok() || statuses[i].code() == StatusCode::kNotFound;
        if (is_gone || StripeOwner(seeds_, id.key) == member) continue;
        const std::lock_guard lock(mutex_);
        strays_.emplace(id, member);
      }
      done(statuses);
    };
    size_t next = 0;
    Split<Status>(
        std::move(ids), std::move(restore), [&](const ObjectId&) { return (*evicted)[next++].second; },
        [mode](Backend& member, std::vector<ObjectId> part, EraseDone part_done) {
          member.Erase(std::move(part), mode, std::move(part_done));
        });
  }

  void DoClear(StatusDone done) override {
    ForEach(&Backend::Clear, [this, done = std::move(done)](const Status& status) {
      if (status.ok()) {
        const std::lock_guard lock(mutex_);
        strays_.clear();
      }
      done(status);
    });
  }
  void DoFlush(StatusDone done) override { ForEach(&Backend::Flush, std::move(done)); }

  // Cursor: the member's number in one byte, then its own.
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override {
    size_t at = cursor.empty() ? 0 : static_cast<unsigned char>(cursor[0]);
    std::string_view inner = cursor.empty() ? cursor : cursor.substr(1);
    if (at >= members_.size()) return InvalidArgumentError("cursor: not one of this backend");
    for (;; ++at, inner = {}) {
      TERRACE_ASSIGN_OR_RETURN(ScanPage page, members_[at].backend->Scan(inner, limit, detail));
      const bool is_end = page.next_cursor.empty();
      if (!is_end) page.next_cursor.insert(page.next_cursor.begin(), static_cast<char>(at));
      if (is_end && at + 1 < members_.size()) {
        if (page.objects.empty()) continue;
        page.next_cursor = static_cast<char>(at + 1);
      }
      return page;
    }
  }

  Status DoPutRoot(const RootRecord& record) override {
    Status status;
    for (StripeMember& member : members_) {
      const Status put = member.backend->PutRoot(record);
      if (status.ok() && !put.ok()) status = put.WithContext(member.name);
    }
    return status;
  }

  Result<std::vector<RootRecord>> DoScanRoots() override {
    std::vector<RootRecord> records;
    absl::flat_hash_set<ChunkKey, DigestHash> seen;
    for (StripeMember& member : members_) {
      TERRACE_ASSIGN_OR_RETURN(std::vector<RootRecord> of_member, member.backend->ScanRoots());
      for (RootRecord& record : of_member) {
        if (seen.insert(record.root).second) records.push_back(std::move(record));
      }
    }
    return records;
  }

  Status DoClose(TimePoint deadline) override {
    Status status;
    for (StripeMember& member : members_) {
      const Status closed = member.backend->Close(deadline);
      if (status.ok() && !closed.ok()) status = closed.WithContext(member.name);
    }
    return status;
  }

 private:
  void FindStrays() {
    doubles_.resize(members_.size());
    for (size_t i = 0; i < members_.size(); ++i) {
      for (const ObjectId& id : members_[i].ids) {
        if (StripeOwner(seeds_, id.key) != i && !strays_.emplace(id, i).second) doubles_[i].push_back(id);
      }
    }
    if (!strays_.empty()) {
      for (size_t i = 0; i < members_.size(); ++i) {
        for (const ObjectId& id : members_[i].ids) {
          if (StripeOwner(seeds_, id.key) != i) continue;
          const auto stray = strays_.find(id);
          if (stray == strays_.end()) continue;
          doubles_[stray->second].push_back(id);
          strays_.erase(stray);
        }
      }
    }
    for (StripeMember& member : members_) member.ids = {};
  }

  // By every member: one that an eviction left in another may come back after a crash, an erased one never.
  void EraseEverywhere(std::vector<ObjectId> ids, EraseDone done) {
    struct Erasure {
      std::mutex mutex;
      std::vector<Status> statuses;
      size_t open_parts = 0;
      EraseDone done;
    };
    const auto erasure = std::make_shared<Erasure>();
    erasure->statuses.assign(ids.size(), NotFoundError("no such object"));
    erasure->open_parts = members_.size();
    erasure->done = std::move(done);
    for (StripeMember& member : members_) {
      member.backend->Erase(ids, EraseMode::kErase, [erasure](std::span<const Status> part) {
        bool is_last;
        {
          const std::lock_guard lock(erasure->mutex);
          for (size_t i = 0; i < part.size(); ++i) {
            Status& status = erasure->statuses[i];
            const bool says_more = status.ok() ? part[i].code() != StatusCode::kNotFound && !part[i].ok()
                                               : status.code() == StatusCode::kNotFound;
            if (says_more) status = part[i];
          }
          is_last = --erasure->open_parts == 0;
        }
        if (!is_last) return;
        erasure->done(erasure->statuses);
      });
    }
    for (const ObjectId& id : ids) ForgetStray(id);
  }

  void ForgetStray(const ObjectId& id) {
    const std::lock_guard lock(mutex_);
    strays_.erase(id);
  }

  size_t MemberOf(const ObjectId& id) const {
    {
      const std::lock_guard lock(mutex_);
      if (!strays_.empty()) {
        const auto stray = strays_.find(id);
        if (stray != strays_.end()) return stray->second;
      }
    }
    return StripeOwner(seeds_, id.key);
  }

  template <typename Answer, typename Op, typename Done, typename MemberOfOp, typename Call>
  void Split(std::vector<Op> ops, Done done, MemberOfOp member_of, Call call) {
    const auto joined = std::make_shared<JoinedBatch<Answer>>();
    joined->answers.resize(ops.size());
    joined->done = std::move(done);
    std::vector<std::vector<Op>> parts(members_.size());
    std::vector<std::vector<size_t>> places(members_.size());
    for (size_t i = 0; i < ops.size(); ++i) {
      const size_t member = member_of(ops[i]);
      parts[member].push_back(std::move(ops[i]));
      places[member].push_back(i);
    }
    // One more than there are, until all have been given out.
    joined->open_parts = 1;
    for (size_t member = 0; member < parts.size(); ++member) {
      if (parts[member].empty()) continue;
      joined->open_parts.fetch_add(1, std::memory_order_relaxed);
      call(*members_[member].backend, std::move(parts[member]),
           [joined, at = std::move(places[member])](std::span<const Answer> answers) {
             joined->Set(at, answers);
           });
    }
    joined->EndPart();
  }

  void ForEach(void (Backend::*call)(StatusDone), StatusDone done) {
    const auto joined = std::make_shared<JoinedStatus>();
    joined->open_parts = members_.size();
    joined->done = std::move(done);
    for (StripeMember& member : members_) {
      ((*member.backend).*
       call)([joined, name = member.name](const Status& status) { joined->Set(name, status); });
    }
  }

  uint64_t Sum(uint64_t (Backend::*figure)() const) const {
    uint64_t sum = 0;
    for (const StripeMember& member : members_) sum += ((*member.backend).*figure)();
    return sum;
  }

  std::vector<StripeMember> members_;
  std::vector<uint64_t> seeds_;
  std::vector<std::vector<ObjectId>> doubles_;  // per member, until Attach

  mutable std::mutex mutex_;
  absl::flat_hash_map<ObjectId, size_t, ObjectIdHash> strays_;
};

}  // namespace

size_t StripeOwner(std::span<const uint64_t> seeds, const ChunkKey& key) {
  size_t best = 0;
  uint64_t best_weight = 0;
  for (size_t i = 0; i < seeds.size(); ++i) {
    const uint64_t weight = XXH3_64bits_withSeed(key.bytes.data(), key.bytes.size(), seeds[i]);
    if (i > 0 && weight <= best_weight) continue;
    best = i;
    best_weight = weight;
  }
  return best;
}

std::unique_ptr<Backend> MakeStripedBackend(std::string name, std::vector<StripeMember> members) {
  return std::make_unique<StripedBackend>(std::move(name), std::move(members));
}

}  // namespace terrace
