// Namespaces whose pools are shared, sessions in them, a ShmListener, and clients in processes of their own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "connectors/server/shm_listener.h"
#include "connectors/server/tests/shm_digest.h"
#include "terrace/token_hasher.h"
#include "tests/support/eventually.h"
#include "tests/support/manager_fixture.h"

extern char** environ;

namespace terrace::server {

template <size_t kBytes>
std::string ToHex(const std::array<std::byte, kBytes>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(byte));
    text += digits.data();
  }
  return text;
}

// A published frame, as a test names it to a client.
struct SharedFrame {
  ObjectId id;
  BufferRef frame;
  uint64_t frame_bytes = 0;
  SharedPlace place;
  std::string Words() const {
    return std::to_string(place.frame_offset) + " " + std::to_string(frame_bytes) + " " +
           std::to_string(place.generation);
  }
  std::string Digest() const { return DigestOf(frame.frame().first(frame_bytes)); }
};

// A process that runs shm_client, and obeys.
class ClientProcess {
 public:
  ClientProcess(const std::string& socket, const SessionId& session, const OneTimeToken& token,
                int uid = -1) {
    std::array<int, 2> in;
    std::array<int, 2> out;
    EXPECT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<std::string> words = {TERRACE_SHM_CLIENT, socket, ToHex(session), ToHex(token)};
    if (uid >= 0) words.push_back(std::to_string(uid));
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, TERRACE_SHM_CLIENT, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
    greeting = ReadLine();
  }
  ~ClientProcess() {
    Kill();
    fclose(to_);
    fclose(from_);
  }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  std::string Ask(const std::string& line) {
    std::fputs((line + "\n").c_str(), to_);
    std::fflush(to_);
    return ReadLine();
  }
  void Signal(int number) { EXPECT_EQ(kill(pid_, number), 0); }
  // Returns when it has stopped.
  void Stop() {
    Signal(SIGSTOP);
    int state = 0;
    EXPECT_EQ(waitpid(pid_, &state, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(state));
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  std::string greeting;  // "connected", or why not

 private:
  std::string ReadLine() {
    std::string line;
    for (int c = fgetc(from_); c != EOF && c != '\n'; c = fgetc(from_)) line += static_cast<char>(c);
    return line;
  }

  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

struct ShmFixture {
  FakeClock clock;
  ShmListenerOptions options;
  std::shared_ptr<Tenant> tenant = std::make_shared<Tenant>();
  NamespaceRef name_space;
  SessionTable sessions{SessionTable::Options{}};
  std::unique_ptr<ShmListener> listener;
  SessionRef session;  // of the last Token()
  ChunkKey root;
  terrace::Token next_prompt = 1;

  ShmFixture() {
    options.path = testing::TempDir() + "shm_" + std::to_string(getpid()) + ".shm";
    options.staging_bytes = 4 << 20;
    options.place_share = 1;
    options.clock = &clock;
    options.metrics = std::make_shared<MetricRegistry>();
    tenant->name = "tenant";
    tenant->may_read = tenant->may_write = true;
    name_space = MakeNamespace();
    root = *name_space->manager->Root(TestSpec());
  }
  ~ShmFixture() {
    session.reset();
    listener.reset();
  }

  NamespaceRef MakeNamespace(bool share_pool = true) {
    StorageOptions storage;
    storage.pool_bytes = 2 << 20;
    storage.huge_pages = false;
    storage.share_pool = share_pool;
    storage.clock = &clock;
    storage.log = MakeNullLogSink();
    std::vector<Tier> tiers;
    tiers.emplace_back().backend = *MakeHostBackend({.capacity_bytes = storage.pool_bytes});
    auto made = std::make_shared<Namespace>();
    made->manager = *StorageManager::Open(storage, std::move(tiers));
    made->store = std::make_unique<FrameStore>(*made->manager);
    return made;
  }

  void Start() {
    Result<std::unique_ptr<ShmListener>> started = ShmListener::Start(options, &sessions);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    listener = *std::move(started);
  }

  OneTimeToken Token(const NamespaceRef& where = nullptr) {
    session = *sessions.Open(tenant, where ? where : name_space);
    return sessions.MakeToken(session->id, SessionTable::Purpose::kShm);
  }
  std::unique_ptr<ClientProcess> Client(const NamespaceRef& where = nullptr, int uid = -1) {
    const OneTimeToken token = Token(where);
    return std::make_unique<ClientProcess>(options.path, session->id, token, uid);
  }
  ClientProcess* Connected(std::unique_ptr<ClientProcess>& client) {
    client = Client();
    EXPECT_EQ(client->greeting, "connected");
    return client.get();
  }

  // Stores one chunk that nobody has stored before.
  SharedFrame Store(Namespace& where) {
    const std::vector<terrace::Token> tokens = TestTokens(kTestChunk, next_prompt++);
    Status prepared;
    StorePrompt(
        *where.manager, *where.manager->Root(TestSpec()), tokens, {0, kTestChunk},
        [](TokenRange, ObjectPart) { return kTestPayload; }, {}, &prepared);
    EXPECT_TRUE(prepared.ok()) << prepared.ToString();
    EXPECT_TRUE(where.manager->Flush().ok());
    SharedFrame stored;
    TokenHasher hasher(root, kTestChunk);
    EXPECT_TRUE(hasher.Append(tokens).ok());
    stored.id = {.key = hasher.full_keys()[0], .part = {}};
    std::vector<FetchOp> ops(1);
    ops[0].id = stored.id;
    where.store->Fetch(std::move(ops), [&](std::vector<FetchResult> results) {
      EXPECT_TRUE(results[0].status.ok()) << results[0].status.ToString();
      stored.frame = std::move(results[0].frame);
      stored.frame_bytes = results[0].frame_bytes;
    });
    const std::optional<SharedPlace> place = where.store->Locate(stored.frame);
    EXPECT_TRUE(place.has_value());
    if (place) stored.place = *place;
    return stored;
  }
  SharedFrame Store() { return Store(*name_space); }
  // Until everything that nobody holds was given to others, twice over.
  void Churn() {
    for (int i = 0; i < 40; ++i) Store();
  }
  uint64_t UsedBytes() const {
    return static_cast<uint64_t>(name_space->manager->metrics().Value("terrace_pool_used_bytes"));
  }
};

}  // namespace terrace::server
