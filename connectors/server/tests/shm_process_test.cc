// Shared memory between two processes: what a client that dies, is stopped, or is hostile leaves behind.
#include <sys/stat.h>

#include <sstream>

#include "connectors/server/shm_area.h"
#include "connectors/server/tests/shm_fixture.h"
#include "lib/wire/frame.h"

namespace terrace::server {
namespace {

constexpr Duration kLease = std::chrono::seconds(30);

uint64_t InodeOf(int fd) {
  struct stat found {};
  EXPECT_EQ(fstat(fd, &found), 0);
  return found.st_ino;
}

// The frame's bytes in a file, for a client to stage.
class FrameFile {
 public:
  explicit FrameFile(const SharedFrame& stored) {
    const Bytes bytes = stored.frame.frame().first(stored.frame_bytes);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~FrameFile() { unlink(path.c_str()); }
  const std::string path = testing::TempDir() + "shm_frame_" + std::to_string(getpid());
};

TEST(ShmProcessTest, AClientReadsWhatIsStored) {
  ShmFixture test;
  test.Start();
  std::unique_ptr<ClientProcess> client;
  test.Connected(client);
  for (int i = 0; i < 4; ++i) {
    const SharedFrame stored = test.Store();
    EXPECT_EQ(client->Ask("get " + stored.Words()), "ok " + stored.Digest());
    EXPECT_EQ(client->Ask("hold " + stored.Words()), "held");
    EXPECT_EQ(client->Ask("check"), "valid " + stored.Digest());
  }
}

TEST(ShmProcessTest, AFrameThatIsGoneIsAMiss) {
  ShmFixture test;
  test.Start();
  std::unique_ptr<ClientProcess> client;
  test.Connected(client);
  SharedFrame stored = test.Store();
  ASSERT_EQ(client->Ask("hold " + stored.Words()), "held");
  stored.frame.Reset();
  test.Churn();
  EXPECT_EQ(client->Ask("get " + stored.Words()), "NotFound");
  EXPECT_EQ(client->Ask("check"), "invalid");
  EXPECT_EQ(client->Ask("hold " + stored.Words()), "NotFound");
}

TEST(ShmProcessTest, APlaceKeepsItsFrameUntilItIsReleased) {
  ShmFixture test;
  test.Start();
  std::unique_ptr<ClientProcess> client;
  test.Connected(client);
  SharedFrame stored = test.Store();
  const std::string digest = stored.Digest();
  const uint64_t place = test.session->shm()->AddPlace(std::move(stored.frame), kLease);
  ASSERT_NE(place, 0U);
  stored.frame.Reset();
  test.Churn();
  EXPECT_EQ(client->Ask("get " + stored.Words()), "ok " + digest);
  test.session->shm()->ReleasePlace(place);
  test.Churn();
  EXPECT_EQ(client->Ask("get " + stored.Words()), "NotFound");
}

TEST(ShmProcessTest, AKilledClientGivesEverythingBack) {
  ShmFixture test;
  test.Start();
  const SharedFrame stored = test.Store();
  const uint64_t used = test.UsedBytes();
  const uint32_t references = stored.frame.use_count();
  std::unique_ptr<ClientProcess> client;
  test.Connected(client);
  std::shared_ptr<ShmArea> area = test.session->shm();
  const std::weak_ptr<ShmArea> watched = area;
  ASSERT_EQ(client->Ask("hold " + stored.Words()), "held");
  ASSERT_NE(area->AddPlace(stored.frame, kLease), 0U);
  PutTransfer transfer;
  transfer.id = stored.id;
  transfer.meta.frame_bytes = stored.frame_bytes;
  transfer.frame = *test.name_space->store->Allocate(stored.frame_bytes);
  transfer.staging_offset = *area->AllocateStaging(stored.frame_bytes);
  ASSERT_NE(test.session->AddTransfer(std::move(transfer)), 0U);
  PrefixQuery query;
  query.root = query.parent = test.root;
  query.tokens_per_chunk = kTestChunk;
  query.keys = {stored.id.key};
  query.content.tokens = TestTokens(kTestChunk, 1);
  query.parts = {ObjectPart{}};
  query.lease = kLease;
  const std::string lease = test.name_space->store->Match(query).lease_token;
  ASSERT_FALSE(lease.empty());
  test.session->AddLease(lease);
  EXPECT_GT(test.UsedBytes(), used);
  EXPECT_GT(stored.frame.use_count(), references);
  EXPECT_EQ(test.listener->num_places(), 1U);

  area.reset();
  test.session.reset();
  client->Kill();
  EXPECT_TRUE(Eventually([&] { return test.sessions.size() == 0 && watched.expired(); }));
  EXPECT_TRUE(Eventually([&] { return test.UsedBytes() == used; }));
  EXPECT_TRUE(Eventually([&] { return stored.frame.use_count() == references; }));
  EXPECT_TRUE(Eventually([&] { return test.listener->num_places() == 0; }));
  EXPECT_FALSE(test.name_space->store->Release(lease));
}

TEST(ShmProcessTest, AStoppedClientSeesAMissAfterItsPlacesLapsed) {
  ShmFixture test;
  test.Start();
  std::unique_ptr<ClientProcess> client;
  test.Connected(client);
  SharedFrame stored = test.Store();
  const std::string digest = stored.Digest();
  ASSERT_NE(test.session->shm()->AddPlace(std::move(stored.frame), kLease), 0U);
  stored.frame.Reset();
  ASSERT_EQ(client->Ask("hold " + stored.Words()), "held");
  client->Stop();
  test.clock.Advance(kLease - std::chrono::seconds(1));
  test.listener->Reap();
  test.Churn();
  client->Signal(SIGCONT);
  EXPECT_EQ(client->Ask("check"), "valid " + digest);
  client->Stop();
  test.clock.Advance(std::chrono::seconds(1));
  test.listener->Reap();
  EXPECT_EQ(test.listener->num_places(), 0U);
  test.Churn();
  client->Signal(SIGCONT);
  EXPECT_EQ(client->Ask("check"), "invalid");
  EXPECT_EQ(client->Ask("get " + stored.Words()), "NotFound");
}

// What a put of the frame that the client staged comes to.
Status PublishStaged(ShmFixture& test, const SharedFrame& stored, const ObjectMeta& meta, uint64_t offset) {
  Result<std::shared_ptr<ArrivingFrame>> frame = test.name_space->store->Allocate(stored.frame_bytes);
  if (!frame.ok()) return frame.status();
  if (Status copied = test.session->shm()->CopyOut(offset, **frame); !copied.ok()) return copied;
  return test.name_space->store->Publish(stored.id, meta, *frame);
}

// Of what is read of a frame: what pads header and frame to whole pages nobody reads, and no checksum covers
// it.
std::string DigestOfContent(const BufferRef& frame) {
  const Result<FrameHeader> header = ParseFrameHeader(frame.frame());
  if (!header.ok()) return header.status().ToString();
  return header->key.ToHex() + DigestOf(frame.frame().subspan(header->header_bytes, header->payload_bytes));
}

std::string DigestOfStored(ShmFixture& test, const ObjectId& id) {
  std::string digest;
  std::vector<FetchOp> ops(1);
  ops[0].id = id;
  test.name_space->store->Fetch(std::move(ops), [&](std::vector<FetchResult> results) {
    if (results[0].status.ok()) digest = DigestOfContent(results[0].frame);
  });
  return digest;
}

TEST(ShmProcessTest, AClientThatGoesOnWritingChangesNoAnswer) {
  ShmFixture test;
  test.Start();
  const SharedFrame stored = test.Store();
  const FrameFile file(stored);
  const std::string expected = DigestOfContent(stored.frame);
  Result<ScanPage> page = test.name_space->store->Scan("", 10, ScanDetail::kContents);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->objects.size(), 1U);
  const ObjectMeta meta = page->objects[0].meta;
  std::unique_ptr<ClientProcess> client;
  test.Connected(client);
  const uint64_t offset = *test.session->shm()->AllocateStaging(stored.frame_bytes);
  const auto erase = [&] {
    EXPECT_TRUE(test.name_space->store->Erase({&stored.id, 1}, EraseMode::kEvict)[0].ok());
    EXPECT_EQ(DigestOfStored(test, stored.id), "");
  };

  // Nothing of it, before the client wrote.
  erase();
  EXPECT_EQ(PublishStaged(test, stored, meta, offset).code(), StatusCode::kDataLoss);
  const std::string words = std::to_string(offset) + " " + file.path;
  ASSERT_EQ(client->Ask("stage " + words), "staged");
  const Status published = PublishStaged(test, stored, meta, offset);
  ASSERT_TRUE(published.ok()) << published.ToString();
  ASSERT_EQ(client->Ask("scribble " + words), "scribbling");
  for (int i = 0; i < 50; ++i) ASSERT_EQ(DigestOfStored(test, stored.id), expected);
  // While it writes junk and the frame by turns: the frame, or nothing.
  int num_refused = 0;
  for (int i = 0; i < 30; ++i) {
    erase();
    const Status status = PublishStaged(test, stored, meta, offset);
    if (status.ok()) {
      ASSERT_EQ(DigestOfStored(test, stored.id), expected);
    } else {
      ASSERT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
      ++num_refused;
      // So that there is something to erase.
      ASSERT_EQ(DigestOfStored(test, stored.id), "");
      while (!PublishStaged(test, stored, meta, offset).ok()) std::this_thread::yield();
    }
  }
  RecordProperty("refused", num_refused);
}

TEST(ShmProcessTest, NoPageOfAnotherNamespaceIsMapped) {
  ShmFixture test;
  test.Start();
  const NamespaceRef other = test.MakeNamespace();
  std::unique_ptr<ClientProcess> own = test.Client();
  std::unique_ptr<ClientProcess> others = test.Client(other);
  ASSERT_EQ(own->greeting, "connected");
  ASSERT_EQ(others->greeting, "connected");
  const auto files_of = [](ClientProcess& client) {
    std::istringstream in(client.Ask("files"));
    return std::set<uint64_t>{std::istream_iterator<uint64_t>(in), {}};
  };
  const std::set<uint64_t> own_files = files_of(*own);
  const std::set<uint64_t> others_files = files_of(*others);
  const SharedPool own_pool = *test.name_space->store->shared_pool();
  const SharedPool other_pool = *other->store->shared_pool();
  for (const auto& [mine, theirs] : {std::pair{own_pool.pool_fd, other_pool.pool_fd},
                                     std::pair{own_pool.generations_fd, other_pool.generations_fd}}) {
    ASSERT_NE(InodeOf(mine), InodeOf(theirs));
    EXPECT_TRUE(own_files.contains(InodeOf(mine)));
    EXPECT_FALSE(own_files.contains(InodeOf(theirs)));
    EXPECT_TRUE(others_files.contains(InodeOf(theirs)));
    EXPECT_FALSE(others_files.contains(InodeOf(mine)));
  }
  // A frame of the other namespace has no name in this one: the same place is another frame's, or nobody's.
  const SharedFrame secret = test.Store(*other);
  EXPECT_NE(own->Ask("get " + secret.Words()), "ok " + secret.Digest());
  EXPECT_EQ(others->Ask("get " + secret.Words()), "ok " + secret.Digest());
}

TEST(ShmProcessTest, OtherUsersGetNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  struct stat client {};
  ASSERT_EQ(stat(TERRACE_SHM_CLIENT, &client), 0);
  ShmFixture test;
  chmod(testing::TempDir().c_str(), 01777);
  test.Start();
  // The socket's mode keeps them out...
  EXPECT_EQ(test.Client(nullptr, 54321)->greeting.rfind("Unavailable", 0), 0U);
  test.listener.reset();
  test.options.users = {54321};
  test.Start();
  // ...and where others are let in, their credentials.
  EXPECT_EQ(test.Client(nullptr, 54321)->greeting, "connected");
  EXPECT_EQ(test.Client(nullptr, 54322)->greeting.rfind("Unavailable", 0), 0U);
  EXPECT_EQ(test.options.metrics->Value("terrace_server_shm_refused_total"), 1);
}

}  // namespace
}  // namespace terrace::server
