#include "proto/grpc_lifetime.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <memory>

namespace terrace {
namespace {

struct FirstCall {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

// The first callback call of a channel takes the reference, which the channel keeps; it goes nowhere.
std::shared_ptr<grpc::Channel>* MakeHeldChannel() {
  auto* channel = new std::shared_ptr<grpc::Channel>(
      grpc::CreateChannel("unix:/nowhere", grpc::InsecureChannelCredentials()));
  auto* call = new FirstCall;
  const grpc::Slice nothing;
  call->request = grpc::ByteBuffer(&nothing, 1);
  call->context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  grpc::GenericStub(*channel).UnaryCall(&call->context, "/terrace.v1.Cache/None", {}, &call->request,
                                        &call->response, [call](const grpc::Status&) { delete call; });
  return channel;
}

}  // namespace

void HoldGrpc() {
  // Never destroyed: at exit its threads are past caring. Volatile, so that the pointer is really kept where a
  // leak checker sees it.
  static std::shared_ptr<grpc::Channel>* volatile held = MakeHeldChannel();
  (void)held;
}

}  // namespace terrace
