#include "connectors/server/shm_listener.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <optional>

#include "backends/remote/shm_mapping.h"
#include "connectors/server/tests/shm_fixture.h"
#include "lib/wire/file_descriptor.h"
#include "lib/wire/host_id.h"
#include "lib/wire/shm_message.h"

namespace terrace::server {
namespace {

using remote::ShmMapping;

constexpr auto kLimit = std::chrono::seconds(20);

FileDescriptor ConnectTo(const std::string& path) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? std::move(fd)
                                                                                        : FileDescriptor();
}

// The answer's code; none: the server closed the socket without one. Descriptors that came are kept.
std::optional<BulkCode> ReadAnswer(int fd, std::vector<FileDescriptor>* descriptors = nullptr) {
  std::array<std::byte, kShmWelcomeBytes> bytes;
  iovec vector{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 3)> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != kShmWelcomeBytes) return std::nullopt;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    for (int i = 0; i < 3; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      FileDescriptor owned(received);
      if (descriptors != nullptr) descriptors->push_back(std::move(owned));
    }
  }
  return DecodeShmWelcome(bytes)->code;
}

std::optional<BulkCode> Answer(const ShmFixture& test, const ShmHello& hello) {
  const FileDescriptor fd = ConnectTo(test.options.path);
  const auto bytes = EncodeShmHello(hello);
  EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{kShmHelloBytes});
  return ReadAnswer(fd.get());
}

TEST(ShmListenerTest, TheSocketIsTheServersOwn) {
  ShmFixture test;
  test.Start();
  struct stat found {};
  ASSERT_EQ(stat(test.options.path.c_str(), &found), 0);
  EXPECT_TRUE(S_ISSOCK(found.st_mode));
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  EXPECT_EQ(ShmListener::Start(test.options, &test.sessions).status().code(), StatusCode::kUnavailable);
  test.listener.reset();
  EXPECT_NE(stat(test.options.path.c_str(), &found), 0);
}

TEST(ShmListenerTest, RemovesTheSocketOfAServerThatIsGoneAndNothingElse) {
  ShmFixture test;
  {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, test.options.path.data(), test.options.path.size());
    const FileDescriptor stale(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  test.Start();
  test.listener.reset();
  std::ofstream(test.options.path) << "a file of somebody";
  EXPECT_EQ(ShmListener::Start(test.options, &test.sessions).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(unlink(test.options.path.c_str()), 0);
  test.options.path = std::string(200, 'x');
  EXPECT_EQ(ShmListener::Start(test.options, &test.sessions).status().code(), StatusCode::kInvalidArgument);
  test.options.path = "/nobody/here";
  EXPECT_EQ(ShmListener::Start(test.options, &test.sessions).status().code(), StatusCode::kUnavailable);
}

TEST(ShmListenerTest, ATokenIsGoodOnce) {
  ShmFixture test;
  test.Start();
  ShmHello hello;
  hello.token = test.Token();
  hello.session = test.session->id;
  ShmHello wrong = hello;
  wrong.token[31] ^= std::byte{1};
  EXPECT_EQ(Answer(test, wrong), BulkCode::kRefused);
  EXPECT_FALSE(test.session->shm());
  const FileDescriptor fd = ConnectTo(test.options.path);
  const auto bytes = EncodeShmHello(hello);
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{kShmHelloBytes});
  EXPECT_EQ(ReadAnswer(fd.get()), BulkCode::kOk);
  EXPECT_TRUE(test.session->shm());
  EXPECT_EQ(Answer(test, hello), BulkCode::kRefused);
  hello.token = test.sessions.MakeToken(hello.session, SessionTable::Purpose::kBulk);
  EXPECT_EQ(Answer(test, hello), BulkCode::kRefused);
  EXPECT_EQ(test.listener->num_clients(), 1U);
  EXPECT_EQ(test.options.metrics->Value("terrace_server_shm_refused_total"), 3);
}

TEST(ShmListenerTest, MemoryIsForWhoMayReadAndWhereItIsShared) {
  ShmFixture test;
  test.Start();
  ShmHello hello;
  hello.token = test.Token(test.MakeNamespace(false));
  hello.session = test.session->id;
  EXPECT_EQ(Answer(test, hello), BulkCode::kRefused);
  const auto writer = std::make_shared<Tenant>(*test.tenant);
  writer->may_read = false;
  test.tenant = writer;
  hello.token = test.Token();
  hello.session = test.session->id;
  EXPECT_EQ(Answer(test, hello), BulkCode::kRefused);
  hello.version = 2;
  EXPECT_EQ(Answer(test, hello), BulkCode::kVersion);
}

TEST(ShmListenerTest, GarbageAndSilenceEndTheSocketAlone) {
  ShmFixture test;
  test.options.hello_limit = std::chrono::milliseconds(20);
  test.Start();
  // A client may be too late for so short a limit, too.
  std::unique_ptr<ClientProcess> client;
  ASSERT_TRUE(Eventually([&] {
    client = test.Client();
    return client->greeting == "connected";
  }));
  const size_t num_sessions = test.sessions.size();
  const int64_t num_refused = test.options.metrics->Value("terrace_server_shm_refused_total");
  const FileDescriptor garbage = ConnectTo(test.options.path);
  const std::string text(kShmHelloBytes, 'x');
  ASSERT_EQ(send(garbage.get(), text.data(), text.size(), MSG_NOSIGNAL), ssize_t{kShmHelloBytes});
  EXPECT_EQ(ReadAnswer(garbage.get()), std::nullopt);
  const FileDescriptor silent = ConnectTo(test.options.path);
  EXPECT_EQ(ReadAnswer(silent.get()), std::nullopt);  // returns, with nothing sent
  const FileDescriptor slow = ConnectTo(test.options.path);
  ASSERT_EQ(send(slow.get(), text.data(), 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(ReadAnswer(slow.get()), std::nullopt);
  { const FileDescriptor gone = ConnectTo(test.options.path); }
  const auto has_refused_all = [&] {
    return test.options.metrics->Value("terrace_server_shm_refused_total") == num_refused + 3;
  };
  EXPECT_TRUE(Eventually(has_refused_all));
  EXPECT_EQ(test.listener->num_clients(), 1U);
  EXPECT_EQ(test.sessions.size(), num_sessions);
}

TEST(ShmListenerTest, FewMayWaitWithoutHello) {
  ShmFixture test;
  test.options.hello_limit = std::chrono::hours(1);
  test.options.max_pending = 2;
  test.Start();
  std::vector<FileDescriptor> silent;
  silent.push_back(ConnectTo(test.options.path));
  silent.push_back(ConnectTo(test.options.path));
  const FileDescriptor third = ConnectTo(test.options.path);
  EXPECT_EQ(ReadAnswer(third.get()), std::nullopt);
  silent.pop_back();
  // Its place is free again once its end was heard of.
  EXPECT_TRUE(Eventually([&] {
    const std::unique_ptr<ClientProcess> client = test.Client();
    return client->greeting == "connected";
  }));
}

TEST(ShmListenerTest, AByteAfterTheWelcomeEndsTheSession) {
  ShmFixture test;
  test.Start();
  ShmHello hello;
  hello.token = test.Token();
  hello.session = test.session->id;
  const FileDescriptor fd = ConnectTo(test.options.path);
  const auto bytes = EncodeShmHello(hello);
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{kShmHelloBytes});
  ASSERT_EQ(ReadAnswer(fd.get()), BulkCode::kOk);
  ASSERT_EQ(send(fd.get(), "x", 1, MSG_NOSIGNAL), 1);
  char end;
  EXPECT_LE(recv(fd.get(), &end, 1, 0), 0);
  EXPECT_TRUE(Eventually([&] { return test.sessions.size() == 0; }));
}

TEST(ShmListenerTest, TheEndOfTheSessionEndsTheSocket) {
  ShmFixture test;
  test.Start();
  const OneTimeToken token = test.Token();
  ShmHello hello;
  hello.session = test.session->id;
  hello.token = token;
  const std::shared_ptr<ShmMapping> mapping = *ShmMapping::Connect(test.options.path, hello, kLimit);
  EXPECT_TRUE(mapping->connected());
  test.sessions.Close(test.session->id);
  EXPECT_TRUE(Eventually([&] { return !mapping->connected(); }));
  EXPECT_TRUE(Eventually([&] { return test.listener->num_clients() == 0; }));
}

TEST(ShmListenerTest, WhatIsHandedOutCannotBeWritten) {
  ShmFixture test;
  test.Start();
  const SharedFrame stored = test.Store();
  ShmHello hello;
  hello.token = test.Token();
  hello.session = test.session->id;
  const FileDescriptor fd = ConnectTo(test.options.path);
  const auto bytes = EncodeShmHello(hello);
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{kShmHelloBytes});
  std::vector<FileDescriptor> files;
  ASSERT_EQ(ReadAnswer(fd.get(), &files), BulkCode::kOk);
  ASSERT_EQ(files.size(), 3U);
  for (int i = 0; i < 2; ++i) {
    const int file = files[i].get();
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
    void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_NE(mprotect(mapped, 4096, PROT_READ | PROT_WRITE), 0);
    munmap(mapped, 4096);
    EXPECT_LT(pwrite(file, "x", 1, static_cast<off_t>(stored.place.frame_offset)), 0);
    EXPECT_NE(ftruncate(file, 0), 0);
    EXPECT_NE(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    const FileDescriptor again(open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
  }
  // The same tries on what may be written, so that they can tell.
  EXPECT_EQ(pwrite(files[2].get(), "x", 1, 0), 1);
  void* writable = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, files[2].get(), 0);
  ASSERT_NE(writable, MAP_FAILED);
  munmap(writable, 4096);
}

TEST(HostIdTest, IsOfTheMachineAndItsBoot) {
  const std::string folder = testing::TempDir() + "host_id_" + std::to_string(getpid());
  const HostIdFiles files{.machine_id = folder + "_machine", .boot_id = folder + "_boot"};
  EXPECT_EQ(ReadHostId(files), std::nullopt);
  std::ofstream(files.machine_id) << "0123456789abcdef\n";
  EXPECT_EQ(ReadHostId(files), std::nullopt);
  std::ofstream(files.boot_id) << "first\n";
  const std::optional<std::string> first = ReadHostId(files);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->size(), 32U);
  EXPECT_EQ(first->find("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(ReadHostId(files), first);
  std::ofstream(files.boot_id) << "second\n";
  EXPECT_NE(ReadHostId(files), first);
  std::ofstream(files.machine_id) << "";
  EXPECT_EQ(ReadHostId(files), std::nullopt);
  unlink(files.machine_id.c_str());
  unlink(files.boot_id.c_str());
}

}  // namespace
}  // namespace terrace::server
