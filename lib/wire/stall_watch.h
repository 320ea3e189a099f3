// StallWatch: since when something that is under way has not moved. One thread at a time.
#pragma once

#include <optional>

#include "terrace/time.h"

namespace terrace {

class StallWatch {
 public:
  void Note(bool under_way, bool moved, TimePoint now) {
    if (!under_way) {
      since_.reset();
    } else if (moved || !since_) {
      since_ = now;
    }
  }
  bool under_way() const { return since_.has_value(); }
  bool Exceeds(Duration limit, TimePoint now) const { return since_ && now - *since_ > limit; }

 private:
  std::optional<TimePoint> since_;
};

}  // namespace terrace
