// Where the link asks for shared memory.
#include <algorithm>
#include <cstring>

#include "backends/remote/make_path.h"
#include "backends/remote/shm_path.h"
#include "lib/base/status_macros.h"

namespace terrace::remote {

Result<std::shared_ptr<DataPath>> MakeSharedMemoryPath(const PathRequest& request) {
  if (request.shm.unix_path().empty()) return UnavailableError("shared memory was not offered");
  ShmHello hello;
  if (request.session_id.size() != hello.session.size() || request.shm.token().size() != hello.token.size()) {
    return UnavailableError("shared memory was offered with a token of another length");
  }
  std::memcpy(hello.session.data(), request.session_id.data(), hello.session.size());
  std::memcpy(hello.token.data(), request.shm.token().data(), hello.token.size());
  Result<std::shared_ptr<ShmMapping>> mapping =
      ShmMapping::Connect(request.shm.unix_path(), hello, request.environment->options.connect_deadline);
  if (!mapping.ok()) return UnavailableError("shared memory: " + mapping.status().ToString());
  ShmPathOptions options;
  options.mapping = *std::move(mapping);
  options.landings = request.landings;
  options.release_places = request.release_places;
  TERRACE_ASSIGN_OR_RETURN(options.unstaged, MakeStreamsPath(request));
  return std::shared_ptr<DataPath>(ShmPath::Start(std::move(options)));
}

}  // namespace terrace::remote
