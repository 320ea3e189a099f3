// A server in this process over managers with a host tier, and clients that speak the wire contract by hand.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "connectors/server/cache_server.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"
#include "proto/terrace/v1/cache.grpc.pb.h"
#include "terrace/host_backend.h"
#include "terrace/token_hasher.h"
#include "tests/support/eventually.h"

namespace terrace::server {

inline std::string Sha256(const std::string& text) {
  std::string digest(32, '\0');
  EXPECT_EQ(EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                       EVP_sha256(), nullptr),
            1);
  return digest;
}

inline std::string BytesOf(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

// A chunk of a prompt with its frame, as an engine's side makes it.
struct TestChunk {
  ObjectId id;
  ObjectMeta meta;
  std::string content;
  std::string frame;

  v1::PutObject Put() const {
    v1::PutObject object;
    object.mutable_name()->set_key(BytesOf(id.key));
    object.set_root(BytesOf(meta.root));
    object.set_parent(BytesOf(meta.parent));
    object.set_first_token(meta.first_token);
    object.set_content(content);
    object.set_frame_bytes(meta.frame_bytes);
    object.set_payload_bytes(meta.payload_bytes);
    return object;
  }
};

inline constexpr uint32_t kChunkTokens = 16;

inline RootRecord TestRoot() {
  KvSpec spec;
  spec.model_id = "service-test";
  spec.tokens_per_chunk = kChunkTokens;
  return *ComputeRoot(spec, {}, "");
}

// Chunk after chunk of one prompt; `seed` decides tokens and bytes.
inline std::vector<TestChunk> MakeChunks(uint32_t seed, size_t count, uint64_t payload_bytes) {
  std::vector<TestChunk> chunks;
  const ChunkKey root = TestRoot().root;
  ChunkKey parent = root;
  for (size_t i = 0; i < count; ++i) {
    FrameHeader header;
    header.root = root;
    header.parent = parent;
    header.first_token = i * kChunkTokens;
    for (uint32_t t = 0; t < kChunkTokens; ++t) header.content.tokens.push_back(seed * 1000 + t + 100 * i);
    header.key = TokenHasher::KeyOf(parent, header.content);
    header.payload_bytes = payload_bytes;
    header.stored_bytes = payload_bytes;
    header.pieces = PlanPieces(payload_bytes, {});
    const uint32_t header_bytes = *HeaderBytes(header);
    TestChunk chunk;
    chunk.frame.assign(RoundUp(header_bytes + payload_bytes, kFrameAlignment), '\0');
    for (size_t at = 0; at < payload_bytes; ++at) {
      chunk.frame[header_bytes + at] = static_cast<char>((at * 7 + at / 4096 + seed + i) & 0xff);
    }
    const auto* payload = reinterpret_cast<const std::byte*>(chunk.frame.data()) + header_bytes;
    for (Piece& piece : header.pieces) {
      piece.hash = HashBytes({payload + piece.stored_offset, piece.stored_bytes});
    }
    EXPECT_TRUE(
        WriteFrameHeader(header, {reinterpret_cast<std::byte*>(chunk.frame.data()), chunk.frame.size()})
            .ok());
    chunk.id.key = header.key;
    chunk.meta.root = root;
    chunk.meta.parent = parent;
    chunk.meta.first_token = header.first_token;
    chunk.meta.frame_bytes = chunk.frame.size();
    chunk.meta.payload_bytes = payload_bytes;
    chunk.meta.content = std::make_shared<ChunkContent>(header.content);
    ByteWriter out;
    WriteContent(header.content, out);
    chunk.content = out.Take();
    parent = header.key;
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

class Client {
 public:
  Client(const std::string& address, std::string token)
      : channel(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        stub(v1::Cache::NewStub(channel)),
        token_(std::move(token)) {}

  std::unique_ptr<grpc::ClientContext> Context(
      std::chrono::milliseconds limit = std::chrono::seconds(60)) const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + limit);
    if (!token_.empty()) context->AddMetadata("authorization", "Bearer " + token_);
    return context;
  }
  // Any unary call: client.Call(&v1::Cache::Stub::Have, request, response).
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::Cache::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response& response,
                    std::chrono::milliseconds limit = std::chrono::seconds(60)) const {
    const auto context = Context(limit);
    return (stub.get()->*method)(context.get(), request, &response);
  }
  grpc::Status Open(const std::vector<v1::DataPath>& paths = {}) {
    v1::OpenSessionRequest request;
    for (const v1::DataPath path : paths) request.add_paths(path);
    request.set_bulk_connections(2);
    const grpc::Status status = Call(&v1::Cache::Stub::OpenSession, request, opened);
    session = opened.session_id();
    return status;
  }
  grpc::Status PutRoot() const {
    v1::PutRootsRequest request;
    request.set_session_id(session);
    request.add_roots()->set_root(BytesOf(TestRoot().root));
    request.mutable_roots(0)->set_spec(TestRoot().spec);
    v1::PutRootsResponse response;
    const grpc::Status status = Call(&v1::Cache::Stub::PutRoots, request, response);
    if (status.ok()) {
      EXPECT_EQ(response.results(0).code(), v1::RESULT_CODE_OK) << response.DebugString();
    }
    return status;
  }
  v1::BeginPutResponse Begin(const std::vector<v1::PutObject>& objects) const {
    v1::BeginPutRequest request;
    request.set_session_id(session);
    for (const v1::PutObject& object : objects) *request.add_objects() = object;
    v1::BeginPutResponse response;
    const grpc::Status status = Call(&v1::Cache::Stub::BeginPut, request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // The bytes [begin, end) of a frame, as plain protobuf.
  grpc::Status Stream(uint64_t transfer, const std::string& frame, uint64_t begin, uint64_t end) const {
    const auto context = Context();
    v1::PutStreamResponse response;
    const auto writer = stub->PutStream(context.get(), &response);
    v1::PutPart part;
    part.set_session_id(session);
    for (uint64_t at = begin; at < end; at += uint64_t{1} << 20) {
      part.set_transfer(transfer);
      part.set_offset(at);
      part.set_data(frame.substr(at, std::min<uint64_t>(uint64_t{1} << 20, end - at)));
      if (!writer->Write(part)) break;
      part.clear_session_id();
    }
    writer->WritesDone();
    return writer->Finish();
  }
  v1::CommitPutResponse Commit(const std::vector<uint64_t>& transfers,
                               std::chrono::milliseconds limit = std::chrono::seconds(60)) const {
    v1::CommitPutRequest request;
    request.set_session_id(session);
    for (const uint64_t transfer : transfers) request.add_transfers(transfer);
    v1::CommitPutResponse response;
    const grpc::Status status = Call(&v1::Cache::Stub::CommitPut, request, response, limit);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::ResultCode Put(const TestChunk& chunk) const {
    const v1::PutNeed need = Begin({chunk.Put()}).needs(0);
    if (need.result().code() != v1::RESULT_CODE_OK) return need.result().code();
    EXPECT_TRUE(Stream(need.transfer(), chunk.frame, 0, chunk.frame.size()).ok());
    return Commit({need.transfer()}).results(0).code();
  }
  v1::GetRequest GetRequestOf(const std::vector<TestChunk>& chunks) const {
    v1::GetRequest request;
    request.set_session_id(session);
    for (size_t i = 0; i < chunks.size(); ++i) {
      v1::GetObject* object = request.add_objects();
      object->mutable_name()->set_key(BytesOf(chunks[i].id.key));
      object->set_transfer(100 + i);
    }
    return request;
  }
  // Frames by transfer, and the results.
  grpc::Status GetStream(const v1::GetRequest& request, std::map<uint64_t, std::string>& frames,
                         std::vector<v1::GetResult>& results) const {
    const auto context = Context();
    const auto reader = stub->GetStream(context.get(), request);
    v1::GetPart part;
    while (reader->Read(&part)) {
      std::string& frame = frames[part.transfer()];
      if (part.results_size() == 0) {
        frame.resize(std::max<size_t>(frame.size(), part.offset() + part.data().size()));
        frame.replace(part.offset(), part.data().size(), part.data());
      } else {
        frames.erase(part.transfer());
        results.assign(part.results().begin(), part.results().end());
      }
    }
    return reader->Finish();
  }
  v1::LookupRequest LookupOf(const std::vector<TestChunk>& chunks) const {
    v1::LookupRequest request;
    request.set_session_id(session);
    request.set_root(BytesOf(TestRoot().root));
    request.set_parent(request.root());
    request.set_tokens_per_chunk(kChunkTokens);
    ChunkContent all;
    for (const TestChunk& chunk : chunks) {
      request.add_keys(BytesOf(chunk.id.key));
      all.tokens.insert(all.tokens.end(), chunk.meta.content->tokens.begin(),
                        chunk.meta.content->tokens.end());
    }
    ByteWriter out;
    WriteContent(all, out);
    request.set_content(out.Take());
    request.add_parts();
    return request;
  }
  v1::StatsResponse Stats() const {
    v1::StatsRequest request;
    request.set_session_id(session);
    v1::StatsResponse response;
    EXPECT_TRUE(Call(&v1::Cache::Stub::Stats, request, response).ok());
    return response;
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Cache::Stub> stub;
  v1::OpenSessionResponse opened;
  std::string session;

 private:
  std::string token_;
};

class ServiceTest : public testing::Test {
 protected:
  static constexpr uint64_t kPoolBytes = uint64_t{48} << 20;

  ServiceTest() {
    options.listen = {"127.0.0.1:0"};
    options.shm = false;
    options.metrics = std::make_shared<MetricRegistry>();
    options.log = MakeNullLogSink();
    Tenant alice{"alice", "alice", true, true, true, {}};
    Tenant mate{"mate", "alice", true, true, true, {}};  // shares alice's namespace
    Tenant bob{"bob", "bob", true, true, true, {}};
    Tenant reader{"reader", "alice", true, false, false, {}};
    Tenant small{"small", "alice", true, true, false, {}};
    small.limits = {1, 2, uint64_t{2} << 20, 0, 0};
    Tenant slow{"slow", "alice", true, true, false, {}};
    slow.limits.calls_per_second = 2;
    for (const Tenant& tenant : {alice, mate, bob, reader, small, slow}) {
      entries.push_back({tenant, {Sha256("token-of-" + tenant.name)}});
    }
  }
  ~ServiceTest() override {
    server.reset();
    if (!namespaces) return;
    EXPECT_TRUE(namespaces->Close(Clock::Real()->Now() + std::chrono::seconds(60)).ok());
  }

  static Result<NamespaceRef> OpenStore(const NamespaceQuota& quota) {
    auto opened = std::make_shared<Namespace>();
    opened->quota = quota;
    opened->events = std::make_shared<EventLog>(4);
    StorageOptions storage;
    storage.pool_bytes = quota.host_bytes;
    storage.events = opened->events;
    storage.log = MakeNullLogSink();
    std::vector<Tier> tiers;
    Result<std::unique_ptr<Backend>> host = MakeHostBackend({quota.host_bytes});
    if (!host.ok()) return host.status();
    tiers.push_back({*std::move(host), nullptr});
    auto manager = StorageManager::Open(storage, std::move(tiers));
    if (!manager.ok()) return manager.status();
    opened->manager = *std::move(manager);
    opened->store = std::make_unique<FrameStore>(*opened->manager);
    return NamespaceRef(opened);
  }

  void Start() {
    namespaces = std::make_shared<NamespaceMap>(&OpenStore);
    ASSERT_TRUE(namespaces->Set({{"alice", kPoolBytes, 0}, {"bob", kPoolBytes, 0}}).ok());
    auto started = CacheServer::Start(options, std::make_shared<TenantTable>(entries), namespaces);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    server = *std::move(started);
  }
  Client ClientOf(const std::string& tenant) const {
    return Client(server->addresses().front(), tenant.empty() ? "" : "token-of-" + tenant);
  }
  // How many frames of a MiB find room: falls by what anybody holds.
  size_t FreeFrames() const {
    std::vector<std::shared_ptr<ArrivingFrame>> held;
    const NamespaceRef store = namespaces->Find("alice");
    while (true) {
      Result<std::shared_ptr<ArrivingFrame>> frame = store->store->Allocate(uint64_t{1} << 20);
      if (!frame.ok()) return held.size();
      held.push_back(*std::move(frame));
    }
  }

  CacheServerOptions options;
  std::vector<TenantEntry> entries;
  std::shared_ptr<NamespaceMap> namespaces;
  std::unique_ptr<CacheServer> server;
};

}  // namespace terrace::server
