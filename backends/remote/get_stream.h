// GetStreamCall: one GetStream call, its parts read where gRPC left them and copied once, into the landings.
//
// What the server sends is bounded by what was asked for: more bytes, more parts, parts after the results, or
// bytes for a place that is not awaited end the call with kDataLoss.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backends/remote/server_link.h"

namespace terrace::remote {

class GetStreamCall {
 public:
  struct Options {
    std::shared_ptr<LinkChannel> channel;
    std::shared_ptr<LandingTable> landings;
    uint64_t most_bytes = 0;  // that may come
    int num_objects = 0;
    Duration limit{};
    // The results, as many as objects; before `on_end`, at most once.
    std::function<void(const v1::GetPart&)> on_results;
    // Once, when gRPC is done. `is_taken`: the server had begun to answer.
    std::function<void(const Status&, bool is_taken)> on_end;
  };
  virtual ~GetStreamCall() = default;
  static std::shared_ptr<GetStreamCall> Start(const v1::GetRequest& request, Options options);
  virtual void Cancel() = 0;
};

}  // namespace terrace::remote
