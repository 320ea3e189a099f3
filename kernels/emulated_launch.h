// EmulateLaunch: a launch on the host, thread by thread, with a form of the caller's: tests count its
// accesses. RunEmulated (kernels/host_launcher.h) is this with SameForm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/host_launcher.h"
#include "kernels/paged_copy_body.h"

namespace terrace {

template <typename Form>
void EmulateLaunch(const PagedCopyLaunch& launch, const EmulatedGrid& grid, const Form& form) {
  std::vector<uint32_t> order(size_t{grid.num_blocks} * grid.threads_per_block);
  std::iota(order.begin(), order.end(), 0);
  if (grid.seed != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(grid.seed));
  for (const uint32_t thread : order) {
    const GridPlace place = {thread / grid.threads_per_block, grid.num_blocks,
                             thread % grid.threads_per_block, grid.threads_per_block};
    if (launch.direction == CopyDirection::kToHost) {
      RunPagedCopy<CopyDirection::kToHost>(launch, place, form);
    } else {
      RunPagedCopy<CopyDirection::kToDevice>(launch, place, form);
    }
  }
}

}  // namespace terrace
