#include <grpcpp/generic/generic_stub.h>
#include <sys/stat.h>

#include <future>

#include "connectors/server/tests/service_fixture.h"

namespace terrace::server {
namespace {

using Stub = v1::Cache::Stub;
using grpc::StatusCode;

TEST_F(ServiceTest, OpenSessionTellsLimitsAndOffersWhatWasAskedFor) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open({static_cast<v1::DataPath>(99), v1::DATA_PATH_BULK}).ok());
  EXPECT_EQ(client.session.size(), 16u);
  EXPECT_EQ(client.opened.tenant(), "alice");
  EXPECT_EQ(client.opened.server_id().size(), 16u);
  EXPECT_GT(client.opened.limits().max_frame_bytes(), 0u);
  EXPECT_EQ(client.opened.limits().max_inflight_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(client.opened.bulk().tokens_size(), 2);
  EXPECT_NE(client.opened.bulk().tcp_port(), 0u);
  EXPECT_FALSE(client.opened.has_shm());
  Client streams = ClientOf("alice");
  ASSERT_TRUE(streams.Open().ok());
  EXPECT_FALSE(streams.opened.has_bulk()) << "not asked for";
  v1::OpenSessionRequest request;
  request.set_client_name(std::string(129, 'x'));
  v1::OpenSessionResponse response;
  EXPECT_EQ(client.Call(&Stub::OpenSession, request, response).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, UnknownFieldsAreIgnored) {
  Start();
  Client client = ClientOf("alice");
  v1::OpenSessionRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(99, 5);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1000, "later");
  v1::OpenSessionResponse response;
  EXPECT_TRUE(client.Call(&Stub::OpenSession, request, response).ok());
}

TEST_F(ServiceTest, WhoHasNoTokenOrNoRightIsTurnedAway) {
  Start();
  EXPECT_EQ(ClientOf("").Open().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ClientOf("nobody").Open().error_code(), StatusCode::UNAUTHENTICATED);
  Client reader = ClientOf("reader");
  ASSERT_TRUE(reader.Open().ok());
  v1::BeginPutRequest put;
  put.set_session_id(reader.session);
  v1::BeginPutResponse needs;
  EXPECT_EQ(reader.Call(&Stub::BeginPut, put, needs).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(reader.Stream(1, std::string(4096, 'x'), 0, 4096).error_code(), StatusCode::PERMISSION_DENIED);
  v1::ClearRequest clear;
  clear.set_session_id(reader.session);
  v1::ClearResponse cleared;
  EXPECT_EQ(reader.Call(&Stub::Clear, clear, cleared).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_GT(options.metrics->Value("terrace_server_refusals_total", {{"reason", "Unauthenticated"}}), 0);
}

TEST_F(ServiceTest, SessionsOfOthersAndEndedOnesAreNotTold) {
  Start();
  Client alice = ClientOf("alice");
  Client bob = ClientOf("bob");
  Client mate = ClientOf("mate");
  ASSERT_TRUE(alice.Open().ok());
  v1::StatsRequest request;
  request.set_session_id(alice.session);
  v1::StatsResponse response;
  EXPECT_EQ(bob.Call(&Stub::Stats, request, response).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(mate.Call(&Stub::Stats, request, response).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(alice.Call(&Stub::Stats, request, response).ok());
  EXPECT_EQ(response.sessions(), 1u);
  request.set_session_id("short");
  EXPECT_EQ(alice.Call(&Stub::Stats, request, response).error_code(), StatusCode::INVALID_ARGUMENT);
  v1::CloseSessionRequest close;
  close.set_session_id(alice.session);
  v1::CloseSessionResponse closed;
  ASSERT_TRUE(alice.Call(&Stub::CloseSession, close, closed).ok());
  request.set_session_id(alice.session);
  EXPECT_EQ(alice.Call(&Stub::Stats, request, response).error_code(), StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, LookupMatchesWhatIsStoredInTheNamespaceOnly) {
  Start();
  Client alice = ClientOf("alice");
  Client mate = ClientOf("mate");
  Client bob = ClientOf("bob");
  for (Client* client : {&alice, &mate, &bob}) ASSERT_TRUE(client->Open().ok() && client->PutRoot().ok());
  const auto chunks = MakeChunks(1, 3, 20'000);
  ASSERT_EQ(alice.Put(chunks[0]), v1::RESULT_CODE_OK);
  ASSERT_EQ(alice.Put(chunks[1]), v1::RESULT_CODE_OK);
  v1::LookupResponse response;
  v1::LookupRequest request = mate.LookupOf(chunks);
  request.set_lease_ms(5000);
  ASSERT_TRUE(mate.Call(&Stub::Lookup, request, response).ok());
  EXPECT_EQ(response.matched_tokens(), 2 * kChunkTokens);
  ASSERT_GE(response.chunks_size(), 2);
  EXPECT_TRUE(response.chunks(1).present());
  EXPECT_TRUE(response.chunks(1).key().empty()) << "the request's own key";
  EXPECT_EQ(response.chunks(1).frame_bytes(), chunks[1].frame.size());
  EXPECT_FALSE(response.lease().empty());
  v1::ReleaseRequest release;
  release.set_session_id(mate.session);
  release.add_leases(response.lease());
  release.add_leases("unknown");
  release.add_places(7);
  v1::ReleaseResponse released;
  EXPECT_TRUE(mate.Call(&Stub::Release, release, released).ok());
  v1::LookupResponse nothing;
  ASSERT_TRUE(bob.Call(&Stub::Lookup, bob.LookupOf(chunks), nothing).ok());
  EXPECT_EQ(nothing.matched_tokens(), 0u);
  v1::HaveRequest have;
  v1::HaveResponse has;
  have.set_session_id(bob.session);
  have.add_names()->set_key(BytesOf(chunks[0].id.key));
  ASSERT_TRUE(bob.Call(&Stub::Have, have, has).ok());
  EXPECT_FALSE(has.have(0));
  std::map<uint64_t, std::string> frames;
  std::vector<v1::GetResult> results;
  ASSERT_TRUE(bob.GetStream(bob.GetRequestOf(chunks), frames, results).ok());
  EXPECT_EQ(results[0].result().code(), v1::RESULT_CODE_NOT_FOUND);
  EXPECT_TRUE(frames.empty());
}

TEST_F(ServiceTest, LookupNamesTheFieldThatIsWrong) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open().ok());
  const v1::LookupRequest good = client.LookupOf(MakeChunks(1, 2, 20'000));
  const auto refused = [&client](const v1::LookupRequest& request, const std::string& field) {
    v1::LookupResponse response;
    const grpc::Status status = client.Call(&Stub::Lookup, request, response);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_NE(status.error_message().find(field), std::string::npos) << status.error_message();
  };
  v1::LookupRequest request = good;
  request.set_root("short");
  refused(request, "root");
  request = good;
  request.set_parent("");
  refused(request, "parent");
  request = good;
  request.set_tokens_per_chunk(0);
  refused(request, "tokens_per_chunk");
  request = good;
  request.set_first_token(3);
  refused(request, "first_token");
  request = good;
  request.clear_parts();
  refused(request, "parts");
  request = good;
  request.mutable_parts(0)->set_group(70'000);
  refused(request, "group");
  request = good;
  request.add_keys("short");
  refused(request, "keys");
  request = good;
  request.add_keys(good.keys(0));
  refused(request, "keys");
  request = good;
  request.mutable_content()->pop_back();
  refused(request, "content");
  request = good;
  request.set_content(std::string("\xff\xff\xff\xff", 4));
  refused(request, "content");
}

TEST_F(ServiceTest, ObjectsAreScannedErasedPinnedAndCleared) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open().ok() && client.PutRoot().ok());
  const auto chunks = MakeChunks(2, 2, 20'000);
  for (const TestChunk& chunk : chunks) ASSERT_EQ(client.Put(chunk), v1::RESULT_CODE_OK);
  v1::ScanRequest scan;
  scan.set_session_id(client.session);
  scan.set_with_content(true);
  v1::ScanResponse page;
  ASSERT_TRUE(client.Call(&Stub::Scan, scan, page).ok());
  ASSERT_EQ(page.objects_size(), 2);
  EXPECT_FALSE(page.objects(0).object().content().empty());
  v1::PinRequest pin;
  pin.set_session_id(client.session);
  pin.set_name("system prompt");
  *pin.mutable_prefix() = client.LookupOf(chunks);
  v1::PinResponse pinned;
  ASSERT_TRUE(client.Call(&Stub::Pin, pin, pinned).ok());
  EXPECT_EQ(pinned.pinned_tokens(), 2 * kChunkTokens);
  v1::UnpinRequest unpin;
  unpin.set_session_id(client.session);
  unpin.set_name("system prompt");
  v1::UnpinResponse unpinned;
  ASSERT_TRUE(client.Call(&Stub::Unpin, unpin, unpinned).ok());
  EXPECT_TRUE(unpinned.found());
  ASSERT_TRUE(client.Call(&Stub::Unpin, unpin, unpinned).ok());
  EXPECT_FALSE(unpinned.found());
  pin.set_name("");
  EXPECT_EQ(client.Call(&Stub::Pin, pin, pinned).error_code(), StatusCode::INVALID_ARGUMENT);
  v1::EraseRequest erase;
  erase.set_session_id(client.session);
  erase.add_names()->set_key(BytesOf(chunks[1].id.key));
  erase.add_names()->set_key(std::string(32, 'x'));
  v1::EraseResponse erased;
  ASSERT_TRUE(client.Call(&Stub::Erase, erase, erased).ok());
  EXPECT_EQ(erased.results(0).code(), v1::RESULT_CODE_OK);
  EXPECT_EQ(erased.results(1).code(), v1::RESULT_CODE_NOT_FOUND);
  erase.add_names()->set_key("short");
  EXPECT_EQ(client.Call(&Stub::Erase, erase, erased).error_code(), StatusCode::INVALID_ARGUMENT);
  v1::FlushRequest flush;
  flush.set_session_id(client.session);
  v1::FlushResponse flushed;
  EXPECT_TRUE(client.Call(&Stub::Flush, flush, flushed).ok());
  v1::ClearRequest clear;
  clear.set_session_id(client.session);
  v1::ClearResponse cleared;
  EXPECT_TRUE(client.Call(&Stub::Clear, clear, cleared).ok());
  ASSERT_TRUE(client.Call(&Stub::Scan, scan, page).ok());
  EXPECT_EQ(page.objects_size(), 0);
  v1::ListRootsRequest list;
  list.set_session_id(client.session);
  v1::ListRootsResponse roots;
  EXPECT_TRUE(client.Call(&Stub::ListRoots, list, roots).ok());
}

TEST_F(ServiceTest, ARootIsCheckedAndRememberedOnce) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open().ok() && client.PutRoot().ok() && client.PutRoot().ok());
  v1::PutRootsRequest request;
  request.set_session_id(client.session);
  request.add_roots()->set_root("short");
  request.add_roots()->set_root(std::string(32, 'r'));
  request.mutable_roots(1)->set_spec("no spec");
  v1::PutRootsResponse response;
  ASSERT_TRUE(client.Call(&Stub::PutRoots, request, response).ok());
  EXPECT_EQ(response.results(0).code(), v1::RESULT_CODE_INVALID_ARGUMENT);
  EXPECT_NE(response.results(1).code(), v1::RESULT_CODE_OK);
  v1::ListRootsRequest list;
  list.set_session_id(client.session);
  v1::ListRootsResponse roots;
  ASSERT_TRUE(client.Call(&Stub::ListRoots, list, roots).ok());
  ASSERT_EQ(roots.roots_size(), 1);
  EXPECT_EQ(roots.roots(0).spec(), TestRoot().spec);
}

TEST_F(ServiceTest, WatchTellsWhatHappensAndWhatWasMissed) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open().ok() && client.PutRoot().ok());
  const auto chunks = MakeChunks(3, 7, 20'000);
  ASSERT_EQ(client.Put(chunks[0]), v1::RESULT_CODE_OK);
  v1::WatchRequest request;
  request.set_session_id(client.session);
  const uint64_t before = client.Stats().next_sequence();
  EXPECT_GT(before, 1u);
  for (size_t i = 1; i < chunks.size(); ++i) ASSERT_EQ(client.Put(chunks[i]), v1::RESULT_CODE_OK);
  request.set_after(1);
  const auto context = client.Context();
  const auto reader = client.stub->Watch(context.get(), request);
  v1::WatchEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::EVENT_KIND_MISSED) << "the log keeps four";
  const uint64_t missed = event.sequence();
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::EVENT_KIND_STORED);
  EXPECT_EQ(event.sequence(), missed + 1);
  EXPECT_FALSE(event.content().empty());
  EXPECT_EQ(event.parent(), BytesOf(chunks[2].id.key));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.name().key(), BytesOf(chunks[6].id.key));
  const auto late = MakeChunks(4, 1, 20'000);
  ASSERT_EQ(client.Put(late[0]), v1::RESULT_CODE_OK);
  ASSERT_TRUE(reader->Read(&event)) << "what comes while it waits";
  EXPECT_EQ(event.name().key(), BytesOf(late[0].id.key));
  context->TryCancel();
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
}

TEST_F(ServiceTest, AWatchEndsWithItsSession) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open().ok());
  v1::WatchRequest request;
  request.set_session_id(client.session);
  const auto context = client.Context();
  const auto reader = client.stub->Watch(context.get(), request);
  v1::CloseSessionRequest close;
  close.set_session_id(client.session);
  v1::CloseSessionResponse closed;
  ASSERT_TRUE(client.Call(&Stub::CloseSession, close, closed).ok());
  v1::WatchEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, LimitsOfATenantAreKept) {
  Start();
  Client small = ClientOf("small");
  ASSERT_TRUE(small.Open().ok());
  EXPECT_EQ(ClientOf("small").Open().error_code(), StatusCode::RESOURCE_EXHAUSTED) << "one session";
  v1::WatchRequest request;
  request.set_session_id(small.session);
  const auto first_context = small.Context();
  const auto second_context = small.Context();
  const auto first = small.stub->Watch(first_context.get(), request);
  const auto second = small.stub->Watch(second_context.get(), request);
  v1::StatsRequest stats;
  stats.set_session_id(small.session);
  v1::StatsResponse response;
  EXPECT_TRUE(Eventually([&] {
    return small.Call(&Stub::Stats, stats, response).error_code() == StatusCode::RESOURCE_EXHAUSTED;
  })) << "two calls in flight";
  first_context->TryCancel();
  second_context->TryCancel();
  EXPECT_TRUE(Eventually([&] { return small.Call(&Stub::Stats, stats, response).ok(); }));
  Client slow = ClientOf("slow");
  grpc::Status status;
  ASSERT_TRUE(slow.Open().ok());
  EXPECT_TRUE(Eventually([&] {
    stats.set_session_id(slow.session);
    status = slow.Call(&Stub::Stats, stats, response);
    return status.error_code() == StatusCode::RESOURCE_EXHAUSTED;
  })) << "two calls a second";
  EXPECT_NE(status.error_message().find("calls_per_second"), std::string::npos);
}

TEST_F(ServiceTest, ADrainingServerMissesAndRefusesButEndsWhatItHas) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open({v1::DATA_PATH_BULK}).ok() && client.PutRoot().ok());
  const auto chunks = MakeChunks(5, 3, 20'000);
  ASSERT_EQ(client.Put(chunks[0]), v1::RESULT_CODE_OK);
  const v1::PutNeed need = client.Begin({chunks[1].Put()}).needs(0);
  auto commit = std::async(std::launch::async, [&] { return client.Commit({need.transfer()}); });
  // What is counted from here on is the commit.
  options.metrics->GetGauge("terrace_server_calls_in_flight", "")->Set(-1);
  ASSERT_TRUE(Eventually([&] { return options.metrics->Value("terrace_server_calls_in_flight") == 1; }));
  std::thread drain([&] { server->Drain(Clock::Real()->Now() + std::chrono::seconds(60)); });
  Client late = ClientOf("alice");
  ASSERT_TRUE(Eventually([&] { return late.Open().error_code() == StatusCode::UNAVAILABLE; }));
  v1::LookupResponse match;
  ASSERT_TRUE(client.Call(&Stub::Lookup, client.LookupOf(chunks), match).ok());
  EXPECT_EQ(match.matched_tokens(), 0u);
  std::map<uint64_t, std::string> frames;
  std::vector<v1::GetResult> results;
  ASSERT_TRUE(client.GetStream(client.GetRequestOf({chunks[0]}), frames, results).ok());
  EXPECT_EQ(results[0].result().code(), v1::RESULT_CODE_NOT_FOUND);
  EXPECT_EQ(client.Begin({chunks[2].Put()}).needs(0).result().code(), v1::RESULT_CODE_UNAVAILABLE);
  ASSERT_TRUE(client.Stream(need.transfer(), chunks[1].frame, 0, chunks[1].frame.size()).ok());
  EXPECT_EQ(commit.get().results(0).code(), v1::RESULT_CODE_OK);
  drain.join();
  EXPECT_EQ(server->num_sessions(), 0u);
}

TEST_F(ServiceTest, AUnixSocketIsPrivateAndHealthIsTold) {
  const std::string path = testing::TempDir() + "terrace_service_" + std::to_string(getpid()) + ".sock";
  options.unix_path = path;
  Start();
  ASSERT_EQ(server->addresses().back(), "unix:" + path);
  for (const char* suffix : {"", ".bulk"}) {
    struct stat mode {};
    ASSERT_EQ(stat((path + suffix).c_str(), &mode), 0) << suffix;
    EXPECT_EQ(mode.st_mode & 0777, 0600u) << suffix;
  }
  Client client(server->addresses().back(), "token-of-alice");
  ASSERT_TRUE(client.Open().ok());
  grpc::GenericStub generic(client.channel);
  const grpc::Slice empty;
  grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  const auto context = client.Context();
  generic.UnaryCall(context.get(), "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                    [&done](grpc::Status status) { done.set_value(std::move(status)); });
  ASSERT_TRUE(done.get_future().get().ok());
  grpc::Slice slice;
  ASSERT_TRUE(response.DumpToSingleSlice(&slice).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()), "\x08\x01") << "SERVING";
  const auto second =
      CacheServer::Start(options, std::make_shared<TenantTable>(std::vector<TenantEntry>{}), namespaces);
  EXPECT_EQ(second.status().code(), terrace::StatusCode::kUnavailable) << "somebody listens there";
  server.reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "removed at the end";
}

TEST_F(ServiceTest, OptionsThatMakeNoSenseAreNamed) {
  Start();
  const auto refused = [this](const CacheServerOptions& wrong) {
    return CacheServer::Start(wrong, std::make_shared<TenantTable>(entries), namespaces).status();
  };
  CacheServerOptions wrong = options;
  wrong.listen = {};
  EXPECT_EQ(refused(wrong).code(), terrace::StatusCode::kInvalidArgument);
  for (const char* address : {"nowhere", ":1", "::1:5", "[]:5", "host:", "host:70000", "host:5x"}) {
    wrong.listen = {address};
    EXPECT_EQ(refused(wrong).code(), terrace::StatusCode::kInvalidArgument) << address;
  }
  wrong = options;
  wrong.tls.certificate_chain = "no PEM";
  EXPECT_EQ(refused(wrong).code(), terrace::StatusCode::kInvalidArgument) << "without a key";
  wrong.tls.private_key = "no PEM";
  EXPECT_EQ(refused(wrong).code(), terrace::StatusCode::kInvalidArgument);
  wrong = options;
  wrong.max_message_bytes = 1;
  EXPECT_EQ(refused(wrong).code(), terrace::StatusCode::kInvalidArgument);
  wrong = options;
  wrong.listen = {server->addresses().front()};
  EXPECT_EQ(refused(wrong).code(), terrace::StatusCode::kUnavailable) << "the port is taken";
}

}  // namespace
}  // namespace terrace::server
