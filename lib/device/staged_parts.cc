#include "lib/device/staged_parts.h"

#include <algorithm>
#include <string>

#include "kernels/plane_runs.h"
#include "lib/base/rounding.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

class PartBuilder {
 public:
  PartBuilder(const PagedCopyArgs& args, uint64_t slot_bytes) : whole_(args), slot_bytes_(slot_bytes) {}

  // Whether `tokens` of the plane were taken in; a part that has none yet takes all that fits the slot.
  bool Add(const PlaneArgs& plane, uint64_t first_token, uint64_t tokens) {
    const uint64_t payload_offset = plane.payload_offset + first_token * PayloadTokenBytes(plane);
    const uint64_t bytes = tokens * PayloadTokenBytes(plane);
    const bool is_next =
        !part_.runs.empty() && part_.runs.back().payload_offset + part_.runs.back().bytes == payload_offset;
    const uint64_t at = is_next ? used_ : RoundUp(used_, kSlotAlignment);
    if (at > slot_bytes_ || bytes > slot_bytes_ - at) return false;
    if (is_next) {
      part_.runs.back().bytes += bytes;
    } else {
      part_.runs.push_back({payload_offset, at, bytes});
    }
    part_.planes.push_back(plane);
    part_.planes.back().payload_offset = at;
    used_ = at + bytes;
    return true;
  }

  // Hands the part over and begins the next one.
  Status Submit(uint64_t first_token, uint64_t tokens, const std::function<Status(const StagedPart&)>& part) {
    if (part_.planes.empty()) return OkStatus();
    part_.args = whole_;
    part_.args.payload = nullptr;
    part_.args.planes = part_.planes.data();
    part_.args.num_planes = static_cast<uint32_t>(part_.planes.size());
    part_.args.first_slot = whole_.first_slot + first_token;
    part_.args.num_tokens = tokens;
    Status status = part(part_);
    part_.planes.clear();
    part_.runs.clear();
    used_ = 0;
    return status;
  }

 private:
  const PagedCopyArgs& whole_;
  const uint64_t slot_bytes_;
  StagedPart part_;
  uint64_t used_ = 0;  // bytes of the slot
};

}  // namespace

Status ForEachStagedPart(const PagedCopyArgs& args, uint64_t slot_bytes,
                         const std::function<Status(const StagedPart&)>& part) {
  PartBuilder builder(args, slot_bytes);
  for (uint32_t p = 0; p < args.num_planes; ++p) {
    const PlaneArgs& plane = args.planes[p];
    const uint64_t row = PayloadTokenBytes(plane);
    if (row == 0) continue;
    if (builder.Add(plane, 0, args.num_tokens)) continue;
    TERRACE_RETURN_IF_ERROR(builder.Submit(0, args.num_tokens, part));
    if (builder.Add(plane, 0, args.num_tokens)) continue;
    const uint64_t per_part = slot_bytes / row;
    if (per_part == 0) {
      return InvalidArgumentError("a token of " + std::to_string(row) + " bytes in a staging slot of " +
                                  std::to_string(slot_bytes));
    }
    for (uint64_t token = 0; token < args.num_tokens; token += per_part) {
      const uint64_t tokens = std::min(per_part, args.num_tokens - token);
      builder.Add(plane, token, tokens);
      TERRACE_RETURN_IF_ERROR(builder.Submit(token, tokens, part));
    }
  }
  return builder.Submit(0, args.num_tokens, part);
}

}  // namespace terrace
