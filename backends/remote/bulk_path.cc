// The bulk path: frames over plain sockets of the session, received straight into the destinations of gets.
#include <map>
#include <mutex>
#include <vector>

#include "backends/remote/bulk_dial.h"
#include "backends/remote/make_path.h"
#include "lib/base/status_macros.h"
#include "lib/wire/bulk_connection.h"

namespace terrace::remote {
namespace {

// Shared with the connections' callbacks, which may come after the path's end.
struct BulkState {
  std::mutex mutex;
  Status status;  // once one connection is lost the session's transfers may lack bytes: all of it is lost
  std::vector<std::shared_ptr<BulkConnection>> connections;
  std::map<uint64_t, std::shared_ptr<BulkConnection>> sending;  // by transfer
  std::shared_ptr<LandingTable> landings;
  std::function<void(const Status&)> on_lost;

  void Lose(const Status& why) {
    std::vector<std::shared_ptr<BulkConnection>> lost;
    {
      std::lock_guard lock(mutex);
      if (!status.ok()) return;
      status = why;
      lost.swap(connections);
      sending.clear();
    }
    for (const auto& connection : lost) connection->Close();
    landings->FailAll(why);
    if (on_lost && why.code() != StatusCode::kCancelled) on_lost(why);
  }
};

class BulkPath final : public DataPath {
 public:
  explicit BulkPath(std::shared_ptr<BulkState> state) : state_(std::move(state)) {}
  ~BulkPath() override { Close(); }

  std::string_view name() const override { return "bulk"; }
  Status status() const override {
    std::lock_guard lock(state_->mutex);
    return state_->status;
  }
  bool uses_streams() const override { return false; }
  void OnGetResult(uint64_t, const v1::GetResult&) override {}

  void SendPut(const v1::PutNeed& need, BufferRef frame, uint64_t frame_bytes,
               std::function<void(const Status&)> sent) override {
    const uint64_t transfer = need.transfer();
    std::shared_ptr<BulkConnection> least;
    Status refused;
    {
      std::lock_guard lock(state_->mutex);
      refused = state_->status;
      if (refused.ok()) {
        for (const auto& connection : state_->connections) {
          if (!least || connection->queued_bytes() < least->queued_bytes()) least = connection;
        }
        if (!state_->sending.emplace(transfer, least).second)
          refused = DataLossError("the server gave out one transfer twice");
      }
    }
    if (!refused.ok()) {
      frame.Reset();
      return sent(refused);
    }
    least->Send(transfer, std::move(frame), {{.frame_offset = 0, .length = frame_bytes, .dst_offset = 0}},
                [state = state_, transfer, sent = std::move(sent)](const Status& status) {
                  {
                    std::lock_guard lock(state->mutex);
                    state->sending.erase(transfer);
                  }
                  sent(status);
                });
  }

  void CancelPut(uint64_t transfer) override {
    std::shared_ptr<BulkConnection> connection;
    {
      std::lock_guard lock(state_->mutex);
      const auto found = state_->sending.find(transfer);
      if (found != state_->sending.end()) connection = found->second;
    }
    if (connection) connection->CancelSend(transfer);
  }

  void Close() override { state_->Lose(CancelledError("the session has ended")); }

 private:
  const std::shared_ptr<BulkState> state_;
};

Result<DialedSocket> Dial(const PathRequest& request, const BulkDialer& dialer, TimePoint deadline) {
  if (request.address.is_unix()) return dialer.DialUnix(request.bulk.unix_path(), deadline);
  return dialer.DialTcp(request.address.host, static_cast<uint16_t>(request.bulk.tcp_port()),
                        request.bulk.tls(), deadline);
}

Status AddConnection(const PathRequest& request, const BulkDialer& dialer, uint32_t number,
                     TimePoint deadline, const std::shared_ptr<BulkState>& state) {
  TERRACE_ASSIGN_OR_RETURN(DialedSocket socket, Dial(request, dialer, deadline));
  BulkHello hello{.connection = number};
  std::memcpy(hello.session.data(), request.session_id.data(), hello.session.size());
  const std::string& token = request.bulk.tokens(static_cast<int>(number));
  if (token.size() != hello.token.size()) return DataLossError("a bulk token that has not 32 bytes");
  std::memcpy(hello.token.data(), token.data(), token.size());
  BulkWelcome welcome;
  TERRACE_RETURN_IF_ERROR(BulkClientHandshake(socket.fd(), socket.tls(), hello, welcome,
                                              deadline - std::chrono::steady_clock::now()));
  if (welcome.code != BulkCode::kOk)
    return UnavailableError("the server refuses a bulk socket, code " +
                            std::to_string(static_cast<uint32_t>(welcome.code)));
  BulkReactor::Connection connection{.fd = socket.fd(),
                                     .tls = socket.tls(),
                                     .landings = request.landings,
                                     .max_message_bytes = welcome.max_message_bytes,
                                     .on_close = [state](const Status& why) { state->Lose(why); }};
  socket.Disown();
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<BulkConnection> added,
                           request.environment->reactor->Add(std::move(connection)));
  Status lost;
  {
    std::lock_guard lock(state->mutex);
    lost = state->status;
    if (lost.ok()) state->connections.push_back(added);
  }
  if (!lost.ok()) added->Close();
  return lost;
}

}  // namespace

Result<std::shared_ptr<DataPath>> MakeBulkPath(const PathRequest& request) {
  const bool has_place =
      request.address.is_unix() ? !request.bulk.unix_path().empty() : request.bulk.tcp_port() != 0;
  if (!has_place || request.bulk.tokens_size() == 0) return UnavailableError("bulk sockets were not offered");
  if (!request.environment->reactor) return UnavailableError("bulk sockets have no thread");
  const RemoteOptions& options = request.environment->options;
  // What comes in the clear where TLS was asked for is not trusted with a token.
  if (options.tls.use_tls && !request.address.is_unix() && !request.bulk.tls())
    return UnavailableError("bulk sockets were offered without TLS");
  if (!options.tls.use_tls && request.bulk.tls())
    return UnavailableError("bulk sockets were offered with TLS only");
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<BulkDialer> dialer, BulkDialer::Make(options.tls));
  const TimePoint deadline = std::chrono::steady_clock::now() + options.connect_deadline;
  auto state = std::make_shared<BulkState>();
  state->landings = request.landings;
  const auto path = std::make_shared<BulkPath>(state);
  const uint32_t wanted =
      std::min<uint32_t>(options.bulk_connections, static_cast<uint32_t>(request.bulk.tokens_size()));
  for (uint32_t i = 0; i < wanted; ++i) {
    const Status added = AddConnection(request, *dialer, i, deadline, state);
    if (!added.ok()) return UnavailableError("bulk socket: " + added.ToString());
  }
  {
    std::lock_guard lock(state->mutex);
    state->on_lost = request.on_path_lost;
  }
  return std::shared_ptr<DataPath>(path);
}

}  // namespace terrace::remote
