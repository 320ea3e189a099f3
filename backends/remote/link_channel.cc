#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "backends/remote/server_link.h"

namespace terrace::remote {
namespace {

// Data parts are 2 MiB; more than this is no answer that a server of this contract gives.
constexpr int kMaxMessageBytes = 16 << 20;
constexpr int kReadChunkBytes = 1 << 20;
constexpr int kMaxReadChunkBytes = 4 << 20;

grpc::ChannelArguments Arguments(const ServerAddress& address, const RemoteOptions& options) {
  grpc::ChannelArguments arguments;
  // Links of several backends in one process do not share sockets.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt("grpc.experimental.tcp_read_chunk_size", kReadChunkBytes);
  arguments.SetInt("grpc.experimental.tcp_min_read_chunk_size", kReadChunkBytes);
  arguments.SetInt("grpc.experimental.tcp_max_read_chunk_size", kMaxReadChunkBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // The breaker paces attempts; gRPC's own pauses must not hide a server that is back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // In spite of its name the least time that one attempt gets, handshake included.
  const auto connect_ms = std::chrono::ceil<std::chrono::milliseconds>(options.connect_deadline).count();
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(connect_ms));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // retries are at one level, and not this one
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!address.is_unix() && !options.tls.server_name.empty())
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  return arguments;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials(const ServerAddress& address, const RemoteTls& tls) {
  if (!tls.use_tls || address.is_unix()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = tls.roots;
  options.pem_private_key = tls.private_key;
  options.pem_cert_chain = tls.certificate;
  return grpc::SslCredentials(options);
}

std::string Target(const ServerAddress& address) {
  if (address.is_unix()) return address.text;
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return "dns:///" + (is_v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace

std::unique_ptr<grpc::ClientContext> LinkChannel::MakeContext(Duration limit) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(limit));
  if (!authorization.empty()) context->AddMetadata("authorization", authorization);
  return context;
}

std::shared_ptr<LinkChannel> MakeLinkChannel(const ServerAddress& address,
                                             const LinkEnvironment& environment) {
  const RemoteOptions& options = environment.options;
  auto link = std::make_shared<LinkChannel>();
  link->channel = grpc::CreateCustomChannel(Target(address), Credentials(address, options.tls),
                                            Arguments(address, options));
  link->stub = v1::Cache::NewStub(link->channel);
  link->generic = std::make_unique<grpc::GenericStub>(link->channel);
  if (!options.token.empty()) link->authorization = "Bearer " + options.token;
  return link;
}

}  // namespace terrace::remote
