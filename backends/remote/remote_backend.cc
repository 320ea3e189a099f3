// RemoteBackend: Backend's calls on the router, and the life of everything behind it.
#include "terrace/remote_backend.h"

#include <charconv>
#include <future>
#include <map>
#include <utility>

#include "backends/remote/router.h"
#include "lib/base/status_macros.h"
#include "proto/grpc_lifetime.h"

namespace terrace {
namespace remote {
namespace {

// What a call that answers by returning waits for at most beyond the operation's own deadline.
constexpr Duration kSlack = std::chrono::seconds(2);
constexpr Duration kDestructorLimit = std::chrono::seconds(2);

// Waits for an answer that comes by itself at the operation's deadline.
template <typename Answer>
class Awaited {
 public:
  std::function<void(Answer)> Callback() {
    return [promise = promise_](Answer answer) { promise->set_value(std::move(answer)); };
  }
  Answer Wait(Duration limit) {
    if (future_.wait_for(limit) == std::future_status::ready) return future_.get();
    return DeadlineExceededError("no server answered in time");
  }

 private:
  const std::shared_ptr<std::promise<Answer>> promise_ = std::make_shared<std::promise<Answer>>();
  std::future<Answer> future_ = promise_->get_future();
};

class RemoteBackend final : public Backend {
 public:
  explicit RemoteBackend(const RemoteOptions& options)
      : Backend("remote"), environment_(std::make_shared<LinkEnvironment>()) {
    environment_->options = options;
  }
  ~RemoteBackend() override {
    if (router_ && !is_closed_) DoClose(std::chrono::steady_clock::now() + kDestructorLimit).IgnoreError();
  }

 protected:
  Capabilities DoCapabilities() const override { return {.supports_match = true, .is_durable = true}; }

  // A manager asks at its start; what no server has said by the connect deadline is zero.
  uint64_t DoCapacityBytes() const override {
    AwaitFirstNews();
    return Sum(&ServerLink::capacity_bytes);
  }
  uint64_t DoUsedBytes() const override { return Sum(&ServerLink::used_bytes); }

  Status DoAttach(const BackendContext& context) override;
  void DoGet(std::vector<GetOp> ops, GetDone done) override { router_->Get(std::move(ops), std::move(done)); }
  void DoPut(std::vector<PutOp> ops, PutDone done) override { router_->Put(std::move(ops), std::move(done)); }
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override {
    router_->Erase(std::move(ids), mode, std::move(done));
  }
  void DoClear(StatusDone done) override { router_->Clear(std::move(done)); }
  void DoFlush(StatusDone done) override { router_->Flush(std::move(done)); }
  void DoMatch(PrefixQuery query, MatchDone done) override {
    router_->Match(std::move(query), std::move(done));
  }
  void DoRelease(std::string_view lease_token) override { router_->Release(lease_token); }
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override;
  Status DoPutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> DoScanRoots() override;
  Status DoClose(TimePoint deadline) override;

 private:
  uint64_t Sum(uint64_t (ServerLink::*what)() const) const {
    uint64_t sum = 0;
    if (!membership_) return sum;
    for (const auto& link : membership_->servers()->current) sum += ((*link).*what)();
    return sum;
  }
  Duration AnswerLimit() const { return environment_->options.operation_deadline + kSlack; }
  void AwaitFirstNews() const;
  Status SendRoots(const LinkRef& link);

  const std::shared_ptr<LinkEnvironment> environment_;
  std::shared_ptr<Membership> membership_;
  std::shared_ptr<Router> router_;
  TimePoint first_news_limit_;
  bool is_closed_ = false;
};

Status RemoteBackend::DoAttach(const BackendContext& context) {
  HoldGrpc();
  LinkEnvironment& environment = *environment_;
  environment.clock = context.clock;
  environment.metrics = context.metrics;
  environment.log = context.log;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> connector,
                           MakeThreadPool({.num_threads = 2, .name = "terrace-rconn", .cpu_set = {}}));
  environment.connector = std::move(connector);
  if (environment.options.path == RemotePath::kAuto || environment.options.path == RemotePath::kBulk) {
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<BulkReactor> reactor, BulkReactor::Start({}));
    environment.reactor = std::move(reactor);
  }
  environment.timers = std::make_shared<TimerQueue>(context.clock, "terrace-remote");
  environment.ledger = std::make_shared<BufferLedger>(environment.options.inflight_bytes);
  environment.roots = std::make_shared<KnownRoots>();
  environment.operations = std::make_shared<OperationRegistry>();
  environment.news = std::make_shared<FirstNews>();
  first_news_limit_ = std::chrono::steady_clock::now() + environment.options.connect_deadline;
  membership_ = std::make_shared<Membership>(environment_);
  router_ = std::make_shared<Router>(environment_, membership_);
  membership_->Start();
  for (const LinkRef& link : membership_->servers()->current) link->Connect();
  return OkStatus();
}

void RemoteBackend::AwaitFirstNews() const {
  if (!membership_ || membership_->servers()->current.empty()) return;
  FirstNews& news = *environment_->news;
  std::unique_lock lock(news.mutex);
  news.came.wait_until(lock, first_news_limit_, [&] { return news.count > 0; });
}

// Cursors are "serial of the server:its own cursor"; servers one after another.
Result<ScanPage> RemoteBackend::DoScan(std::string_view cursor, size_t limit, ScanDetail detail) {
  const std::vector<LinkRef> links = membership_->servers()->All();
  if (links.empty()) return UnavailableError("no server is known");
  size_t at = 0;
  std::string own;
  if (!cursor.empty()) {
    const size_t colon = cursor.find(':');
    uint64_t serial = 0;
    if (colon == std::string_view::npos ||
        std::from_chars(cursor.data(), cursor.data() + colon, serial).ptr != cursor.data() + colon)
      return InvalidArgumentError("a cursor that no scan gave");
    while (at < links.size() && links[at]->serial() != serial) ++at;
    if (at == links.size()) return InvalidArgumentError("a cursor of a server that is not known any more");
    own = std::string(cursor.substr(colon + 1));
  }
  // A server may have nothing left to say; the last one ends the scan.
  while (true) {
    Awaited<Result<ScanPage>> awaited;
    StartScan(links[at], own, limit, detail, awaited.Callback());
    TERRACE_ASSIGN_OR_RETURN(ScanPage page, awaited.Wait(AnswerLimit()));
    const bool has_more_here = !page.next_cursor.empty();
    const bool is_last = at + 1 == links.size();
    const std::string next = page.next_cursor;
    if (has_more_here || !is_last) {
      const LinkRef& following = has_more_here ? links[at] : links[at + 1];
      page.next_cursor = std::to_string(following->serial()) + ":" + next;
    }
    if (!page.objects.empty() || has_more_here || is_last) return page;
    own.clear();
    ++at;
  }
}

// Kept here and sent before anything that needs it: who puts a root does not wait for servers.
Status RemoteBackend::DoPutRoot(const RootRecord& record) {
  TERRACE_RETURN_IF_ERROR(environment_->roots->Add(record));
  for (const LinkRef& link : membership_->servers()->All()) link->SendRootsSoon();
  return OkStatus();
}

Status RemoteBackend::SendRoots(const LinkRef& link) {
  const TimePoint deadline = environment_->DeadlineOf(kNoDeadline);
  Awaited<Status> awaited;
  link->WithSession(
      deadline, [link, deadline, done = awaited.Callback()](const Status& status, const SessionRef& session) {
        if (!status.ok()) return done(status);
        link->SendRoots(session, deadline, done);
      });
  return awaited.Wait(AnswerLimit());
}

Result<std::vector<RootRecord>> RemoteBackend::DoScanRoots() {
  std::map<ChunkKey, RootRecord> records;
  Status status = UnavailableError("no server is known");
  for (const LinkRef& link : membership_->servers()->All()) {
    status = SendRoots(link);
    if (!status.ok()) return status;
    Awaited<Result<std::vector<RootRecord>>> awaited;
    StartListRoots(link, awaited.Callback());
    TERRACE_ASSIGN_OR_RETURN(std::vector<RootRecord> found, awaited.Wait(AnswerLimit()));
    for (RootRecord& record : found) records.emplace(record.root, std::move(record));
  }
  if (!status.ok()) return status;
  std::vector<RootRecord> out;
  for (auto& [root, record] : records) out.push_back(std::move(record));
  return out;
}

Status RemoteBackend::DoClose(TimePoint deadline) {
  if (is_closed_ || !router_) return OkStatus();
  is_closed_ = true;
  membership_->Stop();
  std::vector<LinkRef> links = membership_->servers()->All();
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (const LinkRef& link : links) link->SendRootsSoon();
  // Everything under way has a deadline of its own.
  environment_->operations->AwaitNone(std::min(deadline, now() + environment_->options.operation_deadline));
  for (const LinkRef& link : links) link->Close();
  environment_->operations->CancelAll();
  const bool is_quiet = environment_->operations->AwaitNone(std::max(deadline, now() + kSlack));
  const bool is_free = environment_->ledger->AwaitAll(std::max(deadline, now() + kSlack));
  environment_->timers->Stop();
  if (is_quiet) environment_->reactor.reset();
  links.clear();
  membership_->Clear();  // and with the links their channels
  if (is_free) return OkStatus();
  return DeadlineExceededError("remote: still held by gRPC or sockets: " + environment_->ledger->Describe());
}

}  // namespace
}  // namespace remote

Result<std::unique_ptr<Backend>> MakeRemoteBackend(const RemoteOptions& options) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<Backend>(std::make_unique<remote::RemoteBackend>(options));
}

}  // namespace terrace
