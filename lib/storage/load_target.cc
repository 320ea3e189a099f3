#include "lib/storage/load_target.h"

#include <algorithm>
#include <string>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/device/device_set.h"
#include "lib/device/eventual_fence.h"
#include "lib/memory/stream_copy.h"

namespace terrace {
namespace {

std::string PartText(ObjectPart part) {
  return "(group " + std::to_string(part.group) + ", shard " + std::to_string(part.shard) + ")";
}

bool IsSizeKnown(const LeaseItem& item) {
  return item.remote_tier == LeaseItem::kLocal || item.meta.payload_bytes != 0;
}

}  // namespace

LoadTarget LoadTarget::Nowhere() {
  LoadTarget target;
  target.kind_ = Kind::kNowhere;
  return target;
}

Result<LoadTarget> LoadTarget::Make(const LoadSink& sink, const KvSpec& spec,
                                    std::span<const LeaseItem> items, TokenRange range,
                                    const DeviceSet* devices) {
  LoadTarget target;
  target.range_ = range;
  if (!sink.memory.empty() && !sink.views.empty())
    return InvalidArgumentError("LoadSink has memory and views; allowed: one of them, or neither");
  if (!sink.memory.empty()) {
    target.kind_ = Kind::kMemory;
    bool fits = sink.memory.size() == items.size();
    for (size_t i = 0; fits && i < items.size(); ++i)
      fits = !IsSizeKnown(items[i]) || sink.memory[i].size() == items[i].meta.payload_bytes;
    if (!fits) {
      return InvalidArgumentError("LoadSink.memory is not one range per object, each of the payload's size");
    }
    target.memory_.assign(sink.memory.begin(), sink.memory.end());
    return target;
  }
  if (sink.views.empty()) return target;
  target.kind_ = Kind::kViews;
  for (const PagedKvView& view : sink.views) {
    TERRACE_RETURN_IF_ERROR(view.Validate(spec, /*is_destination=*/true));
    target.views_.push_back({.view = view, .layout = PayloadLayout(spec, view.part), .place = {}});
  }
  const auto by_part = [](const PartView& a, const PartView& b) { return a.view.part < b.view.part; };
  std::sort(target.views_.begin(), target.views_.end(), by_part);
  for (size_t i = 1; i < target.views_.size(); ++i) {
    if (target.views_[i - 1].view.part == target.views_[i].view.part)
      return InvalidArgumentError("LoadSink.views has part " + PartText(target.views_[i].view.part) +
                                  " twice; allowed: one view per part");
  }
  for (const LeaseItem& item : items) {
    if (target.ViewOf(item) == nullptr) {
      return InvalidArgumentError("LoadSink.views lacks part " + PartText(item.id.part) +
                                  ", which the lookup asked for");
    }
  }
  ViewPlaces places(devices);
  for (PartView& part : target.views_) {
    TERRACE_ASSIGN_OR_RETURN(part.place, places.PlaceOf(part.view));
    part.view.stream.reset();
    target.has_device_ |= part.place.copier != nullptr;
  }
  return target;
}

const LoadTarget::PartView* LoadTarget::ViewOf(const LeaseItem& item) const {
  const auto part = std::find_if(views_.begin(), views_.end(),
                                 [&](const PartView& p) { return p.view.part == item.id.part; });
  return part == views_.end() ? nullptr : &*part;
}

DeviceCopier* LoadTarget::CopierOf(const LeaseItem& item) const {
  const PartView* part = ViewOf(item);
  return part == nullptr ? nullptr : part->place.copier;
}

Status LoadTarget::CheckFit(size_t index, const LeaseItem& item) const {
  if (kind_ != Kind::kMemory || memory_[index].size() == item.meta.payload_bytes) return OkStatus();
  return InvalidArgumentError("LoadSink.memory[" + std::to_string(index) + "] has " +
                              std::to_string(memory_[index].size()) + " bytes; allowed: the payload's " +
                              std::to_string(item.meta.payload_bytes));
}

LoadTarget::Copied LoadTarget::Copy(const LoadUnit& unit, const LeaseItem& item, Bytes bytes) const {
  if (kind_ == Kind::kMemory) {
    if (!bytes.empty())
      StreamCopy(memory_[unit.item].data() + unit.payload_begin, bytes.data(), bytes.size());
    return {};
  }
  if (kind_ != Kind::kViews) return {};
  const PartView* part = ViewOf(item);
  TERRACE_CHECK(part != nullptr) << "a part without a view";
  const TokenRange held = part->layout.HeldTokens(item.payload_tokens);
  const TokenRange tokens = {std::max(range_.begin, held.begin), item.matched_tokens.end};
  if (tokens.begin >= tokens.end) return {};
  // Offsets of the copy count from the payload's first byte, of which only the unit's layers are here and
  // touched.
  const auto payload_address = reinterpret_cast<uintptr_t>(bytes.data()) - unit.payload_begin;
  const PagedCopy copy{.layout = part->layout, .view = part->view, .payload_tokens = held};
  if (part->place.copier != nullptr) {
    // Read only in this direction.
    return Enqueue(*part, copy, tokens, unit.layers, reinterpret_cast<std::byte*>(payload_address));
  }
  const Bytes payload(reinterpret_cast<const std::byte*>(payload_address), item.meta.payload_bytes);
  ScatterLayers(copy, tokens, unit.layers, payload);
  return {};
}

LoadTarget::Copied LoadTarget::Enqueue(const PartView& part, const PagedCopy& copy, TokenRange tokens,
                                       LayerSpan layers, std::byte* payload) {
  const Result<KernelCopy> kernel = MakeKernelCopy(copy, tokens, layers, CopyDirection::kToDevice, payload);
  if (!kernel.ok()) return {.status = kernel.status()};
  if (kernel->args.num_tokens == 0 || kernel->args.num_planes == 0) return {};
  Result<std::shared_ptr<Event>> done = part.place.copier->Copy(kernel->args, part.place.enqueued.get());
  if (done.ok()) return {.done = *std::move(done), .bytes = PagedCopyBytes(kernel->args)};
  // A part of it may have been enqueued, or all of it and only the event was refused.
  FenceEnd end = FenceOf(*part.place.copier, CopyDirection::kToDevice);
  return {.done = std::move(end.event), .status = done.status(), .is_marked = end.is_marked};
}

}  // namespace terrace
