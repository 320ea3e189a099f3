#include "connectors/server/session_table.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <map>

namespace terrace::server {
namespace {

template <size_t kBytes>
bool FillRandom(std::array<std::byte, kBytes>& out) {
  return RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(kBytes)) == 1;
}

// Ids are random, so that their first bytes serve as the hash.
struct SessionIdHash {
  size_t operator()(const SessionId& id) const {
    size_t hash;
    std::memcpy(&hash, id.data(), sizeof(hash));
    return hash;
  }
};

// Its namespace was closed, or opened anew with another quota.
bool HasLostStore(const Session& session) {
  return session.name_space != nullptr && session.name_space->is_closed;
}

}  // namespace

struct SessionTable::State {
  struct Token {
    OneTimeToken token{};
    Purpose purpose = Purpose::kBulk;
    TimePoint lapses;
  };
  struct Entry {
    SessionRef session;
    std::vector<Token> tokens;  // as many as OpenSession made
  };

  explicit State(const Options& given) : options(given) {}
  std::shared_ptr<TenantUse> UseOf(const std::string& name) {
    std::shared_ptr<TenantUse>& use = uses[name];
    if (!use) use = std::make_shared<TenantUse>();
    return use;
  }
  size_t CountOf(const std::string& name) const {
    const auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
  }
  SessionRef Remove(const SessionId& id) {
    const auto found = sessions.find(id);
    if (found == sessions.end()) return nullptr;
    SessionRef session = std::move(found->second.session);
    sessions.erase(found);
    --counts[session->tenant->name];
    return session;
  }

  const Options options;
  const std::shared_ptr<DeadlineQueue> deadlines = std::make_shared<DeadlineQueue>();
  mutable std::mutex mutex;
  absl::flat_hash_map<SessionId, Entry, SessionIdHash> sessions;
  // By tenant: as many as the tenant table has named since the start.
  std::map<std::string, std::shared_ptr<TenantUse>, std::less<>> uses;
  std::map<std::string, size_t, std::less<>> counts;
};

SessionTable::SessionTable(const Options& options) : state_(std::make_unique<State>(options)) {}
SessionTable::~SessionTable() { Clear(); }

Result<SessionRef> SessionTable::Open(TenantRef tenant, NamespaceRef name_space) {
  SessionId id{};
  if (!FillRandom(id)) return InternalError("the system gives no random bytes");
  const std::lock_guard lock(state_->mutex);
  if (state_->sessions.size() >= state_->options.max_sessions) {
    return ResourceExhaustedError("the server holds as many sessions as it may");
  }
  size_t& count = state_->counts[tenant->name];
  if (count >= tenant->limits.max_sessions) {
    return ResourceExhaustedError("max_sessions: the tenant holds " + std::to_string(count));
  }
  SessionSupport support;
  support.use = state_->UseOf(tenant->name);
  support.deadlines = state_->deadlines;
  support.clock = state_->options.clock;
  support.transfer_ttl = state_->options.transfer_ttl;
  auto session = std::make_shared<Session>(id, tenant, std::move(name_space), std::move(support));
  State::Entry entry;
  entry.session = session;
  if (!state_->sessions.emplace(id, std::move(entry)).second) return InternalError("a session id came twice");
  ++count;
  return session;
}

SessionRef SessionTable::Find(const SessionId& id, const TenantRef& tenant) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->sessions.find(id);
  if (found == state_->sessions.end() || !tenant) return nullptr;
  const Session& session = *found->second.session;
  // By name: a table that was read anew has other objects for the same tenants. One that was given another
  // namespace, or whose namespace was closed, opens a new session.
  const bool is_its =
      session.tenant->name == tenant->name && session.tenant->name_space == tenant->name_space;
  return is_its && !HasLostStore(session) ? found->second.session : nullptr;
}

void SessionTable::Close(const SessionId& id) {
  SessionRef session;
  {
    const std::lock_guard lock(state_->mutex);
    session = state_->Remove(id);
  }
  if (session) session->End();
}

OneTimeToken SessionTable::MakeToken(const SessionId& id, Purpose purpose) {
  State::Token token;
  token.purpose = purpose;
  token.lapses = state_->options.clock->Now() + state_->options.token_ttl;
  const bool good = FillRandom(token.token);
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->sessions.find(id);
  // What is not registered is refused by Redeem.
  if (good && found != state_->sessions.end()) found->second.tokens.push_back(token);
  return token.token;
}

SessionRef SessionTable::Redeem(const SessionId& id, const OneTimeToken& token, Purpose purpose) {
  const TimePoint now = state_->options.clock->Now();
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->sessions.find(id);
  if (found == state_->sessions.end()) return nullptr;
  auto& tokens = found->second.tokens;
  for (auto held = tokens.begin(); held != tokens.end(); ++held) {
    if (CRYPTO_memcmp(held->token.data(), token.data(), token.size()) != 0) continue;
    const bool good = held->purpose == purpose && now < held->lapses;
    tokens.erase(held);
    return good ? found->second.session : nullptr;
  }
  return nullptr;
}

void SessionTable::Reap(const std::function<bool(const Tenant&)>& may_go_on) {
  const TimePoint now = state_->options.clock->Now();
  std::vector<SessionRef> silent;
  std::vector<SessionRef> living;
  {
    const std::lock_guard lock(state_->mutex);
    for (auto& [id, entry] : state_->sessions) {
      std::erase_if(entry.tokens, [now](const State::Token& token) { return token.lapses <= now; });
      const bool is_silent = entry.session->last_use() + state_->options.session_ttl <= now;
      const bool is_refused = may_go_on && !may_go_on(*entry.session->tenant);
      // The memory of a closed namespace is given back with the last who holds it.
      const bool ends = is_silent || is_refused || HasLostStore(*entry.session);
      (ends ? silent : living).push_back(entry.session);
    }
    for (const SessionRef& session : silent) state_->Remove(session->id);
  }
  for (const SessionRef& session : silent) session->End();
  for (const SessionRef& session : living) session->DropLate(now);
}

void SessionTable::Tick() { state_->deadlines->RunDue(state_->options.clock->Now()); }

void SessionTable::Clear() {
  std::vector<SessionRef> all;
  {
    const std::lock_guard lock(state_->mutex);
    for (auto& [id, entry] : state_->sessions) all.push_back(entry.session);
    state_->sessions.clear();
    state_->counts.clear();
  }
  for (const SessionRef& session : all) session->End();
}

std::shared_ptr<TenantUse> SessionTable::UseOf(const Tenant& tenant) {
  const std::lock_guard lock(state_->mutex);
  return state_->UseOf(tenant.name);
}

const std::shared_ptr<DeadlineQueue>& SessionTable::deadlines() const { return state_->deadlines; }

size_t SessionTable::size() const {
  const std::lock_guard lock(state_->mutex);
  return state_->sessions.size();
}

size_t SessionTable::CountOf(const Tenant& tenant) const {
  const std::lock_guard lock(state_->mutex);
  return state_->CountOf(tenant.name);
}

}  // namespace terrace::server
