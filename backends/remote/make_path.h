// What a data path is made of, and the paths that there are. Making one may block (connecting, TLS): it is
// done on the environment's connector, within options.connect_deadline.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/remote/data_path.h"
#include "backends/remote/server_link.h"

namespace terrace::remote {

struct PathRequest {
  ServerAddress address;
  std::shared_ptr<LinkEnvironment> environment;
  std::shared_ptr<LinkChannel> channel;
  std::string session_id;
  std::shared_ptr<LandingTable> landings;  // of the session
  v1::BulkOffer bulk;  // what the server offered; has no port and no path where it did not
  v1::ShmOffer shm;
  std::function<void(std::vector<uint64_t> places)> release_places;  // tells the server; never blocks
  std::function<void(const Status&)> on_path_lost;                   // once at most, after it was made
};

// Each is kUnavailable where the path is not offered, not reachable, or refused, and says why.
using MakePath = Result<std::shared_ptr<DataPath>> (*)(const PathRequest& request);
Result<std::shared_ptr<DataPath>> MakeStreamsPath(const PathRequest& request);
Result<std::shared_ptr<DataPath>> MakeBulkPath(const PathRequest& request);
Result<std::shared_ptr<DataPath>> MakeSharedMemoryPath(const PathRequest& request);

}  // namespace terrace::remote
