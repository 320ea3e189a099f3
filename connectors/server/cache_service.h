// CacheService: the calls of proto/terrace/v1/cache.proto over a server's context. Here is which right each
// needs and where it runs; what each does is in *_calls.cc and *_stream.cc.
#pragma once

#include <memory>

#include "connectors/server/service_context.h"

namespace grpc {
class Service;
}

namespace terrace::server {

// `context` outlives the gRPC server that the service is registered with.
std::unique_ptr<grpc::Service> MakeCacheService(ServiceContext& context);

}  // namespace terrace::server
