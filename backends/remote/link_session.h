// LinkSession: what a server granted when a session was opened, and the path that its bytes take. Held by
// whatever is under way on it; the last holder ends path and session.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "backends/remote/data_path.h"
#include "lib/wire/bulk_message.h"
#include "lib/wire/landing_table.h"
#include "terrace/time.h"

namespace terrace::remote {

struct LinkSession {
  LinkSession() = default;
  LinkSession(const LinkSession&) = delete;
  LinkSession& operator=(const LinkSession&) = delete;
  ~LinkSession() {
    if (path) path->Close();
    if (on_end && !is_forgotten) on_end(id);
  }

  std::string id;  // 16 bytes
  std::string server_id;
  uint64_t max_frame_bytes = 0;
  uint32_t max_batch = 0;
  uint64_t max_inflight_bytes = 0;
  Duration max_lease{};
  Duration ttl{};
  std::shared_ptr<LandingTable> landings;
  std::shared_ptr<DataPath> path;
  std::function<void(const std::string& id)> on_end;  // tells the server
  mutable std::atomic<bool> is_forgotten{false};      // by the server: nothing is to be told
};
using SessionRef = std::shared_ptr<const LinkSession>;

}  // namespace terrace::remote
