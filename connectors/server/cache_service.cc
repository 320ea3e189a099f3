#include "connectors/server/cache_service.h"

#include "connectors/server/service_calls.h"
#include "proto/terrace/v1/cache.grpc.pb.h"

namespace terrace::server {
namespace {

using Callbacks = v1::Cache::CallbackService;
using Generated =
    v1::Cache::WithRawCallbackMethod_GetStream<v1::Cache::WithRawCallbackMethod_PutStream<Callbacks>>;
using Context = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;

class CacheService final : public Generated {
 public:
  explicit CacheService(ServiceContext& service) : service_(service) {}

  Unary* OpenSession(Context* context, const v1::OpenSessionRequest* request,
                     v1::OpenSessionResponse* response) override {
    return Inline("OpenSession", Right::kNone, context, *request, *response, server::OpenSession);
  }
  Unary* CloseSession(Context* context, const v1::CloseSessionRequest* request,
                      v1::CloseSessionResponse* response) override {
    return Inline("CloseSession", Right::kNone, context, *request, *response, server::CloseSession);
  }
  Unary* Lookup(Context* context, const v1::LookupRequest* request, v1::LookupResponse* response) override {
    return Inline("Lookup", Right::kRead, context, *request, *response, server::Lookup);
  }
  Unary* Release(Context* context, const v1::ReleaseRequest* request,
                 v1::ReleaseResponse* response) override {
    return Inline("Release", Right::kRead, context, *request, *response, server::Release);
  }
  Unary* Get(Context* context, const v1::GetRequest* request, v1::GetResponse* response) override {
    return Inline("Get", Right::kRead, context, *request, *response, server::Get);
  }
  Unary* BeginPut(Context* context, const v1::BeginPutRequest* request,
                  v1::BeginPutResponse* response) override {
    return Inline("BeginPut", Right::kWrite, context, *request, *response, server::BeginPut);
  }
  Unary* CommitPut(Context* context, const v1::CommitPutRequest* request,
                   v1::CommitPutResponse* response) override {
    return Inline("CommitPut", Right::kWrite, context, *request, *response, server::CommitPut);
  }
  Unary* Have(Context* context, const v1::HaveRequest* request, v1::HaveResponse* response) override {
    return Inline("Have", Right::kRead, context, *request, *response, server::Have);
  }
  Unary* Erase(Context* context, const v1::EraseRequest* request, v1::EraseResponse* response) override {
    return Slow("Erase", Right::kWrite, context, *request, *response, server::Erase);
  }
  Unary* Clear(Context* context, const v1::ClearRequest* request, v1::ClearResponse* response) override {
    return Slow("Clear", Right::kAdmin, context, *request, *response, server::Clear);
  }
  Unary* Flush(Context* context, const v1::FlushRequest* request, v1::FlushResponse* response) override {
    return Slow("Flush", Right::kAdmin, context, *request, *response, server::Flush);
  }
  Unary* Scan(Context* context, const v1::ScanRequest* request, v1::ScanResponse* response) override {
    return Slow("Scan", Right::kRead, context, *request, *response, server::Scan);
  }
  Unary* PutRoots(Context* context, const v1::PutRootsRequest* request,
                  v1::PutRootsResponse* response) override {
    return Slow("PutRoots", Right::kWrite, context, *request, *response, server::PutRoots);
  }
  Unary* ListRoots(Context* context, const v1::ListRootsRequest* request,
                   v1::ListRootsResponse* response) override {
    return Slow("ListRoots", Right::kRead, context, *request, *response, server::ListRoots);
  }
  Unary* Pin(Context* context, const v1::PinRequest* request, v1::PinResponse* response) override {
    return Slow("Pin", Right::kWrite, context, *request, *response, server::Pin);
  }
  Unary* Unpin(Context* context, const v1::UnpinRequest* request, v1::UnpinResponse* response) override {
    return Slow("Unpin", Right::kWrite, context, *request, *response, server::Unpin);
  }
  Unary* Stats(Context* context, const v1::StatsRequest* request, v1::StatsResponse* response) override {
    return Inline("Stats", Right::kRead, context, *request, *response, server::Stats);
  }

  using Generated::GetStream;
  using Generated::PutStream;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetStream(Context* context,
                                                        const grpc::ByteBuffer* request) override {
    return StartGetStream(service_, context, *request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutStream(Context* context,
                                                       grpc::ByteBuffer* response) override {
    return StartPutStream(service_, context, response);
  }
  using Generated::Watch;
  grpc::ServerWriteReactor<v1::WatchEvent>* Watch(Context* context,
                                                  const v1::WatchRequest* request) override {
    return StartWatch(service_, context, *request);
  }

 private:
  // On the thread of gRPC that brought the request: what does not block.
  template <typename Request, typename Response>
  Unary* Inline(const char* method, Right right, Context* context, const Request& request, Response& response,
                Handler<Request, Response> handler) {
    const CallRef call = std::make_shared<PendingCall>(service_, context, method);
    Unary* reactor = call->reactor();
    const std::string* session = nullptr;  // OpenSession alone has none yet
    if constexpr (requires { request.session_id(); }) session = &request.session_id();
    if (call->Admit(right, session)) {
      call->Guarded([&] { handler({service_, request, response, call}); });
    }
    return reactor;
  }
  // On a thread that may wait for disks and locks.
  template <typename Request, typename Response>
  Unary* Slow(const char* method, Right right, Context* context, const Request& request, Response& response,
              Handler<Request, Response> handler) {
    const CallRef call = std::make_shared<PendingCall>(service_, context, method);
    Unary* reactor = call->reactor();
    if (!call->Admit(right, &request.session_id())) return reactor;
    const Exchange<Request, Response> exchange{service_, request, response, call};
    // A copy: the call lets go of its tenant when it ends, which may be before Post returns.
    const std::string lane = call->tenant()->name;
    const bool posted = service_.slow.Post(
        [exchange, handler] {
          exchange.call->Guarded([&] {
            if (exchange.call->cancel()->load())
              return exchange.call->End(CancelledError("the caller has gone"));
            handler(exchange);
          });
        },
        lane);
    if (!posted) call->End(ResourceExhaustedError("too many slow calls wait already"));
    return reactor;
  }

  ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCacheService(ServiceContext& context) {
  return std::make_unique<CacheService>(context);
}

}  // namespace terrace::server
