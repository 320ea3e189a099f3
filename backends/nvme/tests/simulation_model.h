// SimulationModel: what a tier may answer, given what it was asked, what it acknowledged and how its lives
// ended. Objects are slots; each Put of a slot is another version of it, with bytes of its own.
//
// Held against the tier:
//   a version that an acknowledged Erase or Clear covers never comes back, in this life or a later one;
//   within a life the version that was put, acknowledged and not removed since is the answer;
//   what is acknowledged survives what its durability names: kSync every power loss, kFlush a crash and, once
//   flushed, a power loss; what was found after a power loss survives the next;
//   whatever is found has the bytes of one version of that very object.
// An answer whose pieces do not have their hashes is a miss (the tier above sees it so); where the answer was
// promised, or under kSync where no sync has failed, it is a failure.
//
// Not thread safe. Checks return what is wrong, or an empty string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/backend.h"
#include "terrace/nvme_backend.h"
#include "tests/conformance/test_object.h"

namespace terrace {

enum class LifeEnd : uint8_t { kClosed, kCrashed, kPowerLost };

class SimulationModel {
 public:
  SimulationModel(uint64_t seed, size_t num_slots, Durability durability);

  size_t num_slots() const { return slots_.size(); }
  const ObjectId& id(size_t slot) const { return slots_[slot].id; }

  // Room for every version so far, two pages at least.
  uint64_t max_frame_bytes(size_t slot) const { return slots_[slot].max_frame_bytes; }

  // The object to be put, and its version; `content` tells its bytes from those of others, the version's
  // number if it is not given.
  const TestObject& BeginPut(size_t slot, uint64_t frame_bytes, size_t* version,
                             std::optional<uint64_t> content = std::nullopt);
  std::string EndPut(size_t slot, size_t version, const Status& status);
  // Both give the moment of the call.
  uint64_t BeginErase(size_t slot);
  uint64_t BeginClear();
  void EndErase(size_t slot, uint64_t called, EraseMode mode, const Status& status);
  void EndClear(uint64_t called, const Status& status);
  uint64_t BeginFlush() { return ++now_; }
  void EndFlush(uint64_t called, const Status& status);
  uint64_t BeginGet() { return ++now_; }
  std::string EndGet(size_t slot, uint64_t called, const GetResult& result, const BufferRef& dst);
  // [offset, offset + length) of the frame at its place in dst.
  std::string EndRangeGet(size_t slot, uint64_t called, const GetResult& result, const BufferRef& dst,
                          FrameRange range);

  // Requests that have not been answered are not answered any more. `nothing_promised`: something happened
  // that no promise covers (the capacity was lowered).
  void EndLife(LifeEnd end, bool nothing_promised = false);
  // Syncs and writes of records fail: kSync may find a record whose frame is not there.
  void SetSyncsFail() { syncs_fail_ = true; }
  // A sync of segments may have failed: what was written before is not known to be on the device, whatever a
  // later Flush says.
  void Doubt();
  // The first answer of a life for this slot, from a disk without faults.
  std::string CheckRecovered(size_t slot, const GetResult& result, const BufferRef& dst);
  // For a copy of some moment: a miss, or any version that ever was.
  std::string CheckAnyMoment(size_t slot, const GetResult& result, const BufferRef& dst) const;

 private:
  struct Version {
    TestObject object;
    uint64_t called = 0;
    bool never = false;     // refused before anything was written
    bool given_up = false;  // answered early, while the device may still have it
    bool dead = false;      // erased or cleared for ever
    uint64_t dead_since = 0;
    bool gone = false;  // absent in this life
    bool is_doubtful = false;
    bool survives_crash = false;
    bool survives_power_loss = false;
  };
  struct Slot {
    ObjectId id;
    uint64_t max_frame_bytes = 2 * kFrameAlignment;
    std::vector<Version> versions;
    std::optional<size_t> sure;  // stored, and nothing was asked since that might remove it
    uint64_t sure_since = 0;
    uint64_t removal_called = 0;
    uint64_t removal_ended = 0;
  };

  void Remove(Slot& slot, uint64_t called, bool for_ever);
  // Which version the bytes are, for a Get called then; nullopt with `why` set: none that may be.
  std::optional<size_t> VersionOf(const Slot& slot, uint64_t called, const BufferRef& dst,
                                  std::string* why) const;
  bool IsEveryRecordWhole() const {
    return durability_ == Durability::kSync && !syncs_fail_ && !clear_failed_;
  }
  bool IsPromised(const Slot& slot, uint64_t called) const;
  std::string NameOf(const Slot& slot) const;

  const uint64_t seed_;
  const Durability durability_;
  std::vector<Slot> slots_;
  uint64_t now_ = 0;
  LifeEnd last_end_ = LifeEnd::kClosed;
  bool syncs_fail_ = false;
  bool clear_failed_ = false;  // or was not answered
  size_t open_clears_ = 0;
};

// The object of a slot.
TestObject MakeSlotObject(uint64_t seed, size_t slot, uint64_t frame_bytes, uint64_t content);

// Empty where header, identity and every piece are right; else what is not.
std::string WhatIsWrongWithFrame(Bytes frame, const ObjectId& id, bool* wrong_identity);

}  // namespace terrace
