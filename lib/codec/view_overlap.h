// CheckNoByteTwice: whether the bytes that a destination names are different ones, told from strides without
// looking at single bytes. See view_overlap.cc for how.
#pragma once

#include <cstdint>
#include <span>

#include "lib/codec/payload_layout.h"
#include "terrace/paged_kv_view.h"
#include "terrace/status.h"

namespace terrace {

// `view` is validated but for this: its addresses are within 63 bits. `blocks`: those of its table that are
// used, ascending, each once, none negative. kInvalidArgument names the plane, and what it runs into.
Status CheckNoByteTwice(const PagedKvView& view, const PayloadLayout& layout,
                        std::span<const int64_t> blocks);

}  // namespace terrace
