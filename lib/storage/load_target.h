// LoadTarget: where a load's payloads go, checked against what the load brings: LeasedChunks, the caller's
// memory, paged views, or nowhere (a prefetch promotes only). Views name memory of the host or of a device:
// the one is written when Copy returns, the other when its event is done.
//
// Immutable once made. Copy is called by one thread at a time; the caller's memory must be there.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/device/device_set.h"
#include "lib/storage/load_plan.h"
#include "terrace/device.h"
#include "terrace/load.h"

namespace terrace {

class LoadTarget {
 public:
  enum class Kind { kChunks, kMemory, kViews, kNowhere };

  LoadTarget() = default;
  static LoadTarget Nowhere();
  // kInvalidArgument: not one destination per object of the right size; a view that is wrong, twice there or
  // missing, or of a device that is not of `devices` (null: no view names one); both kinds at once. Only
  // tokens of `range` are copied into views. Records, on each view's stream, up to where the engine uses the
  // blocks: called by the thread that may use these.
  static Result<LoadTarget> Make(const LoadSink& sink, const KvSpec& spec, std::span<const LeaseItem> items,
                                 TokenRange range, const DeviceSet* devices);

  // Of an object whose payload's size became known later.
  Status CheckFit(size_t index, const LeaseItem& item) const;
  Kind kind() const { return kind_; }
  // Units are taken by Next; else on the executor.
  bool is_taken_by_caller() const { return kind_ == Kind::kChunks; }
  bool has_device() const { return has_device_; }
  // Whose stream the unit's copy is on; null: it is made by Copy itself.
  DeviceCopier* CopierOf(const LeaseItem& item) const;

  struct Copied {
    std::shared_ptr<Event> done;  // until then `bytes` are read; null: they are not any more
    Status status;                // not OK: not copied, or a part of it; of a device only
    uint64_t bytes = 0;           // that a device copies
    bool is_marked = true;        // streams can wait for `done`
  };
  // `bytes`: verified payload bytes [unit.payload_begin, unit.payload_end) of the unit's item.
  Copied Copy(const LoadUnit& unit, const LeaseItem& item, Bytes bytes) const;

 private:
  struct PartView {
    PagedKvView view;
    PayloadLayout layout;
    ViewPlaces::Place place;  // of a device's memory: behind the engine's last use of the blocks
  };
  const PartView* ViewOf(const LeaseItem& item) const;
  static Copied Enqueue(const PartView& part, const PagedCopy& copy, TokenRange tokens, LayerSpan layers,
                        std::byte* payload);

  Kind kind_ = Kind::kChunks;
  std::vector<MutableBytes> memory_;  // one per item
  std::vector<PartView> views_;       // by part
  bool has_device_ = false;
  TokenRange range_;
};

}  // namespace terrace
