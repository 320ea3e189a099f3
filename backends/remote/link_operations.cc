#include "backends/remote/link_operations.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "backends/remote/server_call.h"
#include "backends/remote/wire_values.h"
#include "lib/wire/byte_codec.h"

namespace terrace::remote {
namespace {

constexpr size_t kMaxLeaseBytes = 1024;
constexpr size_t kMaxCursorBytes = 4096;
constexpr size_t kMaxScanPage = 1024;  // with contents a page stays below a message's limit
constexpr int kMaxListedRoots = 65536;

Status Violation(const LinkRef& link, std::string_view what) {
  link->metrics().violations->Add();
  return DataLossError(link->name() + ": " + std::string(what));
}

v1::LookupRequest MakeLookup(const PrefixQuery& query) {
  v1::LookupRequest request;
  request.set_root(DigestBytes(query.root));
  request.set_parent(DigestBytes(query.parent));
  request.set_first_token(query.first_token);
  request.set_tokens_per_chunk(query.tokens_per_chunk);
  if (query.division) request.set_division(*query.division);
  for (const ChunkKey& key : query.keys) request.add_keys(DigestBytes(key));
  ByteWriter content;
  WriteContent(query.content, content);
  request.set_content(content.Take());
  for (const ObjectPart part : query.parts) {
    v1::Part* asked = request.add_parts();
    asked->set_group(part.group);
    asked->set_shard(part.shard);
  }
  const auto lease = std::chrono::ceil<std::chrono::milliseconds>(query.lease);
  request.set_lease_ms(static_cast<uint64_t>(std::max<int64_t>(0, lease.count())));
  return request;
}

// What of the query an answer is checked against; the query itself may be long.
struct Question {
  std::vector<ChunkKey> keys;
  size_t num_tokens = 0;
  size_t num_parts = 0;
};

Status ReadLookup(const v1::LookupResponse& response, const Question& question, PrefixMatch& match) {
  if (response.matched_tokens() > question.num_tokens)
    return DataLossError("matched " + std::to_string(response.matched_tokens()) + " tokens of " +
                         std::to_string(question.num_tokens));
  const auto n = static_cast<size_t>(response.chunks_size());
  if (question.num_parts == 0 || n % question.num_parts != 0 ||
      n / question.num_parts > question.keys.size() + 1)
    return DataLossError("presence of " + std::to_string(n) + " objects was not asked for");
  if (response.lease().size() > kMaxLeaseBytes) return DataLossError("a lease of more than 1024 bytes");
  for (size_t i = 0; i < n; ++i) {
    const v1::ChunkPresence& from = response.chunks(static_cast<int>(i));
    const size_t chunk = i / question.num_parts;
    ChunkPresence presence{.present = from.present(), .frame_bytes = from.frame_bytes()};
    const bool is_full = chunk < question.keys.size();
    if (from.key().empty() && is_full) {
      presence.key = question.keys[chunk];
    } else if (!ReadDigest(from.key(), presence.key)) {
      return DataLossError("a key that has not 32 bytes");
    }
    if (presence.present && (presence.frame_bytes == 0 || presence.frame_bytes % kFrameAlignment != 0))
      return DataLossError("a frame of " + std::to_string(presence.frame_bytes) + " bytes");
    match.chunks.push_back(presence);
  }
  match.matched_tokens = response.matched_tokens();
  match.lease_token = response.lease();
  return OkStatus();
}

// The results of calls that each name a part of the ids, put together. `done` after the last.
template <typename Answer>
struct Parts {
  std::mutex mutex;
  std::vector<Answer> results;
  Status status;  // the first error
  size_t num_open = 0;

  // True for the last part.
  template <typename Answers>
  bool Take(size_t first, const Status& part_status, const Answers& answers) {
    std::lock_guard lock(mutex);
    if (status.ok()) status = part_status;
    for (size_t i = 0; i < answers.size(); ++i) results[first + i] = answers[i];
    return --num_open == 0;
  }
};

// Runs `each` over the parts of `ids` that one call may name.
template <typename Answer, typename Each>
void ForParts(const LinkRef& link, const std::vector<ObjectId>& ids,
              const std::shared_ptr<Parts<Answer>>& parts, const Each& each) {
  const size_t most = link->max_batch();
  parts->results.resize(ids.size());
  parts->num_open = (ids.size() + most - 1) / most;
  for (size_t first = 0; first < ids.size(); first += most) {
    const size_t n = std::min(most, ids.size() - first);
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(first);
    each(first, std::span<const ObjectId>(&*begin, n));
  }
}

}  // namespace

void StartMatch(const LinkRef& link, const PrefixQuery& query, MatchDone done) {
  Question question{query.keys, query.content.tokens.size(), query.parts.size()};
  using Call = ServerCall<v1::LookupRequest, v1::LookupResponse>;
  Call::Start(link, &Call::Stub::Lookup, MakeLookup(query), {.deadline = query.deadline},
              [link, question = std::move(question), done = std::move(done)](
                  const Status& status, const SessionRef&, v1::LookupResponse& response) {
                PrefixMatch match;
                match.status = status;
                if (status.ok()) {
                  const Status read = ReadLookup(response, question, match);
                  if (!read.ok()) {
                    match = PrefixMatch{};
                    match.status = Violation(link, read.message());
                  }
                }
                done(match);
              });
}

void StartHave(const LinkRef& link, const std::vector<ObjectId>& ids, TimePoint deadline,
               std::function<void(const Status&, std::vector<bool>)> done) {
  using Call = ServerCall<v1::HaveRequest, v1::HaveResponse>;
  auto parts = std::make_shared<Parts<bool>>();
  ForParts(link, ids, parts, [&](size_t first, std::span<const ObjectId> named) {
    v1::HaveRequest request;
    for (const ObjectId& id : named) SetName(id, request.add_names());
    Call::Start(link, &Call::Stub::Have, std::move(request), {.deadline = deadline},
                [link, parts, first, n = named.size(), done](const Status& status, const SessionRef&,
                                                             v1::HaveResponse& response) {
                  std::vector<bool> have(n, false);
                  Status answered = status;
                  if (status.ok() && response.have_size() != static_cast<int>(n)) {
                    answered = Violation(link, "another number of answers than of names");
                  } else if (status.ok()) {
                    for (size_t i = 0; i < n; ++i) have[i] = response.have(static_cast<int>(i));
                  }
                  if (parts->Take(first, answered, have)) done(parts->status, parts->results);
                });
  });
}

void StartErase(const LinkRef& link, const std::vector<ObjectId>& ids, EraseMode mode, EraseDone done) {
  using Call = ServerCall<v1::EraseRequest, v1::EraseResponse>;
  auto parts = std::make_shared<Parts<Status>>();
  ForParts(link, ids, parts, [&](size_t first, std::span<const ObjectId> named) {
    v1::EraseRequest request;
    for (const ObjectId& id : named) SetName(id, request.add_names());
    request.set_mode(mode == EraseMode::kEvict ? v1::ERASE_MODE_EVICT : v1::ERASE_MODE_ERASE);
    // Sent twice, the second answer would say "not found" of what the first one erased.
    Call::Start(link, &Call::Stub::Erase, std::move(request),
                {.is_idempotent = false, .counts_deadline = false},
                [link, parts, first, n = named.size(), done](const Status& status, const SessionRef&,
                                                             v1::EraseResponse& response) {
                  std::vector<Status> results(n, status);
                  if (status.ok() && response.results_size() != static_cast<int>(n)) {
                    std::fill(results.begin(), results.end(),
                              Violation(link, "another number of results than of names"));
                  } else if (status.ok()) {
                    for (size_t i = 0; i < n; ++i)
                      results[i] = FromResult(response.results(static_cast<int>(i)));
                  }
                  if (parts->Take(first, status, results)) done(parts->results);
                });
  });
}

void StartClear(const LinkRef& link, StatusDone done) {
  using Call = ServerCall<v1::ClearRequest, v1::ClearResponse>;
  Call::Start(link, &Call::Stub::Clear, {}, {.is_idempotent = true, .counts_deadline = false},
              [done = std::move(done)](const Status& status, const SessionRef&, v1::ClearResponse&) {
                done(status);
              });
}

void StartFlush(const LinkRef& link, StatusDone done) {
  using Call = ServerCall<v1::FlushRequest, v1::FlushResponse>;
  Call::Start(link, &Call::Stub::Flush, {}, {.is_idempotent = true, .counts_deadline = false},
              [done = std::move(done)](const Status& status, const SessionRef&, v1::FlushResponse&) {
                done(status);
              });
}

void StartScan(const LinkRef& link, const std::string& cursor, size_t limit, ScanDetail detail,
               std::function<void(Result<ScanPage>)> done) {
  v1::ScanRequest request;
  const size_t most = std::min(limit, kMaxScanPage);
  request.set_cursor(cursor);
  request.set_limit(static_cast<uint32_t>(most));
  request.set_with_content(detail == ScanDetail::kContents);
  using Call = ServerCall<v1::ScanRequest, v1::ScanResponse>;
  Call::Start(link, &Call::Stub::Scan, std::move(request), {},
              [link, most, done = std::move(done)](const Status& status, const SessionRef&,
                                                   v1::ScanResponse& response) {
                if (!status.ok()) return done(status);
                if (response.objects_size() > static_cast<int>(most))
                  return done(Violation(link, "more objects than a page was to have"));
                if (response.next_cursor().size() > kMaxCursorBytes)
                  return done(Violation(link, "a cursor of more than 4096 bytes"));
                ScanPage page;
                page.next_cursor = response.next_cursor();
                for (const v1::ScannedObject& from : response.objects()) {
                  Result<ScannedObject> object = FromPutObject(from.object());
                  if (!object.ok()) return done(Violation(link, object.status().message()));
                  page.objects.push_back(*std::move(object));
                }
                done(std::move(page));
              });
}

void StartListRoots(const LinkRef& link, std::function<void(Result<std::vector<RootRecord>>)> done) {
  using Call = ServerCall<v1::ListRootsRequest, v1::ListRootsResponse>;
  Call::Start(link, &Call::Stub::ListRoots, {}, {},
              [link, done = std::move(done)](const Status& status, const SessionRef&,
                                             v1::ListRootsResponse& response) {
                if (!status.ok()) return done(status);
                if (response.roots_size() > kMaxListedRoots)
                  return done(Violation(link, "more than 65536 roots"));
                std::vector<RootRecord> roots;
                for (const v1::RootRecord& from : response.roots()) {
                  Result<RootRecord> root = FromRoot(from);
                  if (!root.ok()) return done(Violation(link, root.status().message()));
                  roots.push_back(*std::move(root));
                }
                done(std::move(roots));
              });
}

}  // namespace terrace::remote
