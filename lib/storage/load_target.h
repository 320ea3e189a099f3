// LoadTarget: where a load's payloads go, checked against what the load brings: LeasedChunks, the caller's
// memory, paged views, or nowhere (a prefetch promotes only).
//
// Immutable once made. Copy is called by one thread at a time; the caller's memory must be there.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/storage/load_plan.h"
#include "terrace/load.h"

namespace terrace {

class LoadTarget {
 public:
  enum class Kind { kChunks, kMemory, kViews, kNowhere };

  LoadTarget() = default;
  static LoadTarget Nowhere();
  // kInvalidArgument: not one destination per object of the right size; a view that is wrong, twice there or
  // missing; both kinds at once. Only tokens of `range` are copied into views.
  static Result<LoadTarget> Make(const LoadSink& sink, const KvSpec& spec, std::span<const LeaseItem> items,
                                 TokenRange range);

  // Of an object whose payload's size became known later.
  Status CheckFit(size_t index, const LeaseItem& item) const;
  Kind kind() const { return kind_; }
  // Units are taken by Next; else on the executor.
  bool is_taken_by_caller() const { return kind_ == Kind::kChunks; }
  // `bytes`: verified payload bytes [unit.payload_begin, unit.payload_end) of the unit's item.
  void Copy(const LoadUnit& unit, const LeaseItem& item, Bytes bytes) const;

 private:
  struct PartView {
    PagedKvView view;
    PayloadLayout layout;
  };

  Kind kind_ = Kind::kChunks;
  std::vector<MutableBytes> memory_;  // one per item
  std::vector<PartView> views_;       // by part
  TokenRange range_;
};

}  // namespace terrace
