// How a link comes to a session: OpenSession, then the fastest data path that works, then the roots.
#include <algorithm>
#include <cstring>

#include "backends/remote/make_path.h"
#include "backends/remote/server_call.h"
#include "backends/remote/server_link.h"
#include "backends/remote/wire_values.h"
#include "lib/wire/host_id.h"

namespace terrace::remote {
namespace {

constexpr uint32_t kMinorVersion = 0;
constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 34;
constexpr uint32_t kMaxBatch = 1024;
constexpr size_t kMaxBulkTokens = 8;
constexpr uint64_t kMaxTtlMs = 3'600'000;

bool MayUse(RemotePath asked, RemotePath path) { return asked == RemotePath::kAuto || asked == path; }

v1::OpenSessionRequest MakeRequest(const ServerAddress& address, const RemoteOptions& options) {
  v1::OpenSessionRequest request;
  request.set_minor_version(kMinorVersion);
  request.set_client_name("terrace");
  request.set_client_version("0.1.0");
  if (MayUse(options.path, RemotePath::kStreams)) request.add_paths(v1::DATA_PATH_STREAMS);
  if (MayUse(options.path, RemotePath::kBulk)) request.add_paths(v1::DATA_PATH_BULK);
  if (MayUse(options.path, RemotePath::kSharedMemory) && (address.is_unix() || address.is_loopback())) {
    if (const std::optional<std::string> host_id = ReadHostId()) {
      request.add_paths(v1::DATA_PATH_SHM);
      request.set_host_id(*host_id);
    }
  }
  request.set_bulk_connections(options.bulk_connections);
  return request;
}

// What a server may say it grants, and no more. kDataLoss: no session that can be used.
Status ReadSession(const v1::OpenSessionResponse& response, LinkSession& session) {
  if (response.session_id().size() != sizeof(SessionId))
    return DataLossError("a session id of " + std::to_string(response.session_id().size()) +
                         " bytes, not 16");
  if (response.server_id().size() > 64) return DataLossError("a server id of more than 64 bytes");
  const v1::SessionLimits& limits = response.limits();
  session.id = response.session_id();
  session.server_id = response.server_id();
  session.max_frame_bytes = std::min(limits.max_frame_bytes(), kMaxFrameBytes);
  session.max_batch = std::clamp<uint32_t>(limits.max_batch(), 1, kMaxBatch);
  session.max_inflight_bytes = limits.max_inflight_bytes();
  session.max_lease = std::chrono::milliseconds(std::min(limits.max_lease_ms(), kMaxTtlMs));
  session.ttl = std::chrono::milliseconds(std::clamp<uint64_t>(response.session_ttl_ms(), 1000, kMaxTtlMs));
  return OkStatus();
}

v1::BulkOffer ReadBulkOffer(const v1::OpenSessionResponse& response) {
  v1::BulkOffer offer = response.bulk();
  if (offer.tcp_port() > UINT16_MAX) offer.set_tcp_port(0);
  while (offer.tokens_size() > static_cast<int>(kMaxBulkTokens)) offer.mutable_tokens()->RemoveLast();
  return offer;
}

}  // namespace

struct ServerLink::OpenCall : Cancellable {
  void Cancel() override { context->TryCancel(); }

  std::unique_ptr<grpc::ClientContext> context;
  v1::OpenSessionRequest request;
  v1::OpenSessionResponse response;
  OperationRegistry::Ticket ticket;
};

void ServerLink::StartOpening() {
  auto call = std::make_shared<OpenCall>();
  call->request = MakeRequest(address_, environment_->options);
  call->context = channel_->MakeContext(environment_->options.connect_deadline);
  call->ticket = environment_->operations->Enter(call);
  channel_->stub->async()->OpenSession(
      call->context.get(), &call->request, &call->response,
      [self = shared_from_this(), call](grpc::Status status) { self->OnOpenAnswer(call, FromGrpc(status)); });
}

void ServerLink::OnOpenAnswer(const std::shared_ptr<OpenCall>& call, const Status& status) {
  // A server that only does not answer in time is away like any other.
  if (status.code() == StatusCode::kDeadlineExceeded || status.code() == StatusCode::kCancelled)
    return FinishOpening(UnavailableError(name() + " did not open a session in time"), nullptr);
  if (!status.ok()) return FinishOpening(status.WithContext(name()), nullptr);
  auto session = std::make_shared<LinkSession>();
  if (const Status read = ReadSession(call->response, *session); !read.ok()) {
    metrics_.violations->Add();
    return FinishOpening(read.WithContext(name()), nullptr);
  }
  session->landings = std::make_shared<LandingTable>();
  session->on_end = [channel = channel_, operations = environment_->operations](const std::string& id) {
    struct CloseCall {
      std::unique_ptr<grpc::ClientContext> context;
      v1::CloseSessionRequest request;
      v1::CloseSessionResponse response;
      OperationRegistry::Ticket ticket;  // Close waits for the farewell
    };
    auto close = std::make_shared<CloseCall>();
    close->context = channel->MakeContext(std::chrono::seconds(1));
    close->request.set_session_id(id);
    close->ticket = operations->Enter({});
    channel->stub->async()->CloseSession(close->context.get(), &close->request, &close->response,
                                         [channel, close](const grpc::Status&) {});
  };
  environment_->connector->Post([self = shared_from_this(), session = std::move(session), call] {
    self->ChoosePath(session, call->response);
  });
}

void ServerLink::ChoosePath(std::shared_ptr<LinkSession> session, const v1::OpenSessionResponse& response) {
  const RemotePath asked = environment_->options.path;
  PathRequest request{.address = address_,
                      .environment = environment_,
                      .channel = channel_,
                      .session_id = session->id,
                      .landings = session->landings,
                      .bulk = ReadBulkOffer(response),
                      .shm = response.shm(),
                      .release_places =
                          [weak = weak_from_this()](std::vector<uint64_t> places) {
                            if (const auto link = weak.lock()) link->ReleasePlaces(std::move(places));
                          },
                      .on_path_lost =
                          [weak = weak_from_this()](const Status& why) {
                            if (const auto link = weak.lock()) link->OnPathLost(why);
                          }};
  std::string why_not;
  // The fastest first; each says why it cannot be.
  const std::pair<RemotePath, MakePath> paths[] = {{RemotePath::kSharedMemory, MakeSharedMemoryPath},
                                                   {RemotePath::kBulk, MakeBulkPath},
                                                   {RemotePath::kStreams, MakeStreamsPath}};
  for (const auto& [path, make] : paths) {
    if (!MayUse(asked, path)) continue;
    Result<std::shared_ptr<DataPath>> made = make(request);
    if (made.ok()) {
      session->path = *std::move(made);
      break;
    }
    if (!why_not.empty()) why_not += "; ";
    why_not += std::string(made.status().message());
  }
  if (!session->path) return FinishOpening(UnavailableError(name() + ": " + why_not), nullptr);
  const bool is_slower = session->path->name() == "streams" && request.bulk.tokens_size() > 0;
  if (is_slower && asked == RemotePath::kAuto) metrics_.fallbacks->Add();
  SayPath(std::string(session->path->name()), why_not);
  SendRoots(session, environment_->clock->Now() + environment_->options.connect_deadline,
            [self = shared_from_this(), session](const Status& status) {
              self->FinishOpening(
                  status.ok() ? status : UnavailableError(self->name() + ": " + status.ToString()),
                  status.ok() ? session : nullptr);
            });
}

}  // namespace terrace::remote
