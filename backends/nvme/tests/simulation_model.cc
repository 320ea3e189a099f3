#include "backends/nvme/tests/simulation_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/wire/frame.h"
#include "tests/conformance/wire_header.h"

namespace terrace {

std::string WhatIsWrongWithFrame(Bytes frame, const ObjectId& id, bool* wrong_identity) {
  *wrong_identity = false;
  const Result<uint32_t> header_bytes = PeekHeaderBytes(frame.first(kFramePrefixBytes));
  if (!header_bytes.ok()) return header_bytes.status().ToString();
  if (*header_bytes > frame.size()) return "the header is longer than the frame";
  const Result<FrameHeader> header = ParseFrameHeader(frame);
  if (!header.ok()) return header.status().ToString();
  if (header->frame_bytes != frame.size()) return "the frame has another length than its header says";
  for (const Piece& piece : header->pieces) {
    if (HashBytes(frame.subspan(header->header_bytes + piece.stored_offset, piece.stored_bytes)) !=
        piece.hash) {
      return "the piece at " + std::to_string(piece.stored_offset) + " has another hash";
    }
  }
  *wrong_identity = header->key != id.key || header->part != id.part;
  return *wrong_identity ? "it is another object" : "";
}

TestObject MakeSlotObject(uint64_t seed, size_t slot, uint64_t frame_bytes, uint64_t content) {
  return MakeTestObject(seed * 64 + slot, frame_bytes, WriteWireHeader, content);
}

SimulationModel::SimulationModel(uint64_t seed, size_t num_slots, Durability durability)
    : seed_(seed), durability_(durability), slots_(num_slots) {
  for (size_t i = 0; i < num_slots; ++i) {
    slots_[i].id = MakeSlotObject(seed_, i, 2 * kFrameAlignment, 0).id;
  }
}

std::string SimulationModel::NameOf(const Slot& slot) const {
  return "slot " + std::to_string(&slot - slots_.data());
}

const TestObject& SimulationModel::BeginPut(size_t slot, uint64_t frame_bytes, size_t* version,
                                            std::optional<uint64_t> content) {
  Slot& at = slots_[slot];
  *version = at.versions.size();
  at.versions.emplace_back();
  at.versions.back().called = ++now_;
  at.max_frame_bytes = std::max(at.max_frame_bytes, frame_bytes);
  at.versions.back().object = MakeSlotObject(seed_, slot, frame_bytes, content.value_or(*version));
  return at.versions.back().object;
}

std::string SimulationModel::EndPut(size_t slot, size_t version, const Status& status) {
  Slot& at = slots_[slot];
  Version& put = at.versions[version];
  ++now_;
  if (status.ok()) {
    put.survives_crash = durability_ != Durability::kNone;
    put.survives_power_loss = durability_ == Durability::kSync && !put.is_doubtful;
    if (put.dead || put.gone) return NameOf(at) + ": put and removed at once";
    if (at.removal_called < put.called) {
      at.sure = version;
      at.sure_since = now_;
    }
    return "";
  }
  put.gone = true;
  put.given_up = status.code() == StatusCode::kDeadlineExceeded;
  if (status.code() != StatusCode::kAlreadyExists) return "";
  put.never = true;
  for (const Version& other : at.versions) {
    const bool may_be_there = other.given_up || !(other.never || other.dead || other.gone);
    if (&other != &put && may_be_there) return "";
  }
  return NameOf(at) + ": AlreadyExists, and nothing is there";
}

uint64_t SimulationModel::BeginErase(size_t slot) {
  slots_[slot].removal_called = ++now_;
  slots_[slot].sure.reset();
  return now_;
}

uint64_t SimulationModel::BeginClear() {
  ++now_;
  ++open_clears_;
  for (Slot& slot : slots_) {
    slot.removal_called = now_;
    slot.sure.reset();
  }
  return now_;
}

void SimulationModel::Remove(Slot& slot, uint64_t called, bool for_ever) {
  slot.removal_ended = ++now_;
  for (Version& version : slot.versions) {
    if (version.called >= called) continue;
    version.gone = true;
    if (for_ever && !std::exchange(version.dead, true)) version.dead_since = now_;
  }
}

void SimulationModel::EndErase(size_t slot, uint64_t called, EraseMode mode, const Status& status) {
  if (!status.ok() && status.code() != StatusCode::kNotFound) return;
  Remove(slots_[slot], called, mode == EraseMode::kErase);
}

void SimulationModel::Doubt() {
  for (Slot& slot : slots_) {
    for (Version& version : slot.versions) version.is_doubtful |= !version.survives_power_loss;
  }
}

void SimulationModel::EndClear(uint64_t called, const Status& status) {
  if (!status.ok()) return;
  --open_clears_;
  for (Slot& slot : slots_) Remove(slot, called, true);
}

void SimulationModel::EndFlush(uint64_t called, const Status& status) {
  if (!status.ok() || durability_ == Durability::kNone) return;
  for (Slot& slot : slots_) {
    if (slot.sure && slot.versions[*slot.sure].called < called && !slot.versions[*slot.sure].is_doubtful) {
      slot.versions[*slot.sure].survives_power_loss = true;
    }
  }
}

std::optional<size_t> SimulationModel::VersionOf(const Slot& slot, uint64_t called, const BufferRef& dst,
                                                 std::string* why) const {
  for (size_t i = 0; i < slot.versions.size(); ++i) {
    if (!slot.versions[i].object.Holds(dst)) continue;
    if (slot.versions[i].never) *why = NameOf(slot) + ": bytes of a put that was refused";
    if (slot.versions[i].dead && slot.versions[i].dead_since < called)
      *why = NameOf(slot) + ": version " + std::to_string(i) + " was erased and is back";
    return why->empty() ? std::optional<size_t>(i) : std::nullopt;
  }
  *why = NameOf(slot) + ": bytes that were never put";
  return std::nullopt;
}

bool SimulationModel::IsPromised(const Slot& slot, uint64_t called) const {
  return slot.sure && slot.sure_since < called;
}

std::string SimulationModel::EndGet(size_t slot, uint64_t called, const GetResult& result,
                                    const BufferRef& dst) {
  Slot& at = slots_[slot];
  const bool promised = IsPromised(at, called);
  if (!result.status.ok()) {
    // A device that fails says nothing about the object; the tier may give its place up.
    if (result.status.code() == StatusCode::kUnavailable) at.sure.reset();
    if (!promised || result.status.code() == StatusCode::kUnavailable) return "";
    return NameOf(at) + ": version " + std::to_string(*at.sure) + " is there, and Get says " +
           result.status.ToString();
  }
  bool wrong_identity = false;
  const std::string wrong =
      WhatIsWrongWithFrame(dst.frame().first(result.frame_bytes), at.id, &wrong_identity);
  if (!wrong.empty()) {
    return promised || wrong_identity || IsEveryRecordWhole() ? NameOf(at) + ": " + wrong : "";
  }
  std::string why;
  const std::optional<size_t> found = VersionOf(at, called, dst, &why);
  if (!found) return why;
  if (promised && *found != *at.sure) return NameOf(at) + ": an older version";
  if (at.versions[*found].gone && at.removal_ended < called)
    return NameOf(at) + ": it was removed, or never stored";
  return "";
}

std::string SimulationModel::EndRangeGet(size_t slot, uint64_t called, const GetResult& result,
                                         const BufferRef& dst, FrameRange range) {
  Slot& at = slots_[slot];
  if (!IsPromised(at, called)) return "";
  if (!result.status.ok()) {
    if (result.status.code() == StatusCode::kUnavailable) {
      at.sure.reset();
      return "";
    }
    return NameOf(at) + ": is there, and a Get of a range says " + result.status.ToString();
  }
  const Bytes wanted = at.versions[*at.sure].object.frame.frame().subspan(range.frame_offset, range.length);
  const Bytes found = dst.frame().subspan(range.dst_offset, range.length);
  return std::memcmp(wanted.data(), found.data(), wanted.size()) == 0
             ? ""
             : NameOf(at) + ": a range has other bytes";
}

void SimulationModel::EndLife(LifeEnd end, bool nothing_promised) {
  ++now_;
  last_end_ = end;
  // A superblock was written perhaps, and the records are still there: they find nothing that is theirs.
  clear_failed_ |= std::exchange(open_clears_, 0) > 0;
  for (Slot& slot : slots_) {
    if (slot.sure) {
      Version& sure = slot.versions[*slot.sure];
      if (end == LifeEnd::kClosed) sure.survives_crash = true;
      const bool survives = end == LifeEnd::kPowerLost ? sure.survives_power_loss : sure.survives_crash;
      if (nothing_promised || !survives) slot.sure.reset();
    }
    slot.sure_since = now_;
    // What was evicted, or failed, may come back.
    for (Version& version : slot.versions) {
      version.gone = version.never || version.dead;
      version.given_up = false;
    }
  }
}

std::string SimulationModel::CheckAnyMoment(size_t slot, const GetResult& result,
                                            const BufferRef& dst) const {
  const Slot& at = slots_[slot];
  if (!result.status.ok()) return "";
  bool wrong_identity = false;
  const std::string wrong =
      WhatIsWrongWithFrame(dst.frame().first(result.frame_bytes), at.id, &wrong_identity);
  if (!wrong.empty()) return wrong_identity ? NameOf(at) + ": " + wrong : "";
  for (const Version& version : at.versions) {
    if (version.object.Holds(dst)) return "";
  }
  return NameOf(at) + ": bytes that were never put";
}

std::string SimulationModel::CheckRecovered(size_t slot, const GetResult& result, const BufferRef& dst) {
  Slot& at = slots_[slot];
  const std::optional<size_t> promised = std::exchange(at.sure, std::nullopt);
  const auto missing = [&](const std::string& what) {
    return NameOf(at) + ": version " + std::to_string(*promised) + " was promised to survive; " + what;
  };
  if (!result.status.ok()) {
    if (promised) return missing(result.status.ToString());
    for (Version& version : at.versions) version.gone = true;
    if (result.status.code() == StatusCode::kNotFound) return "";
    const bool is_damage = result.status.code() == StatusCode::kDataLoss;
    if (is_damage && !IsEveryRecordWhole()) return "";
    return NameOf(at) + ": found at open, and then " + result.status.ToString();
  }
  bool wrong_identity = false;
  const std::string wrong =
      WhatIsWrongWithFrame(dst.frame().first(result.frame_bytes), at.id, &wrong_identity);
  if (!wrong.empty()) {
    if (promised) return missing(wrong);
    return wrong_identity || IsEveryRecordWhole() ? NameOf(at) + ": at open: " + wrong : "";
  }
  std::string why;
  const std::optional<size_t> found = VersionOf(at, ++now_, dst, &why);
  if (!found) return why;
  if (promised && *found != *promised) return missing("an older one is there");
  Version& version = at.versions[*found];
  version.survives_crash = true;
  version.survives_power_loss |= last_end_ == LifeEnd::kPowerLost;
  at.sure = found;
  at.sure_since = ++now_;
  for (Version& other : at.versions) other.gone |= &other != &version;
  return "";
}

}  // namespace terrace
