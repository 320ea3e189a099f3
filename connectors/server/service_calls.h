// What the unary calls do, each after its caller, right, limits and session were checked. Each ends its call
// once, now or later.
#pragma once

#include "connectors/server/pending_call.h"
#include "proto/terrace/v1/cache.pb.h"

namespace terrace::server {

template <typename Request, typename Response>
using Handler = void (*)(const Exchange<Request, Response>& exchange);

// session_calls.cc
void OpenSession(const Exchange<v1::OpenSessionRequest, v1::OpenSessionResponse>& exchange);
void CloseSession(const Exchange<v1::CloseSessionRequest, v1::CloseSessionResponse>& exchange);
void Stats(const Exchange<v1::StatsRequest, v1::StatsResponse>& exchange);

// prefix_calls.cc
void Lookup(const Exchange<v1::LookupRequest, v1::LookupResponse>& exchange);
void Release(const Exchange<v1::ReleaseRequest, v1::ReleaseResponse>& exchange);
void Pin(const Exchange<v1::PinRequest, v1::PinResponse>& exchange);
void Unpin(const Exchange<v1::UnpinRequest, v1::UnpinResponse>& exchange);

// object_calls.cc; all but Have may block
void Have(const Exchange<v1::HaveRequest, v1::HaveResponse>& exchange);
void Erase(const Exchange<v1::EraseRequest, v1::EraseResponse>& exchange);
void Clear(const Exchange<v1::ClearRequest, v1::ClearResponse>& exchange);
void Flush(const Exchange<v1::FlushRequest, v1::FlushResponse>& exchange);
void Scan(const Exchange<v1::ScanRequest, v1::ScanResponse>& exchange);
void PutRoots(const Exchange<v1::PutRootsRequest, v1::PutRootsResponse>& exchange);
void ListRoots(const Exchange<v1::ListRootsRequest, v1::ListRootsResponse>& exchange);

// get_call.cc, put_calls.cc
void Get(const Exchange<v1::GetRequest, v1::GetResponse>& exchange);
void BeginPut(const Exchange<v1::BeginPutRequest, v1::BeginPutResponse>& exchange);
void CommitPut(const Exchange<v1::CommitPutRequest, v1::CommitPutResponse>& exchange);

// get_stream.cc, put_stream.cc, watch_stream.cc
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGetStream(ServiceContext& service,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);
grpc::ServerReadReactor<grpc::ByteBuffer>* StartPutStream(ServiceContext& service,
                                                          grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response);
grpc::ServerWriteReactor<v1::WatchEvent>* StartWatch(ServiceContext& service,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest& request);

}  // namespace terrace::server
