// A server of shared memory as a test wants it: right, or wrong in one way.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lib/wire/file_descriptor.h"
#include "lib/wire/shm_message.h"
#include "terrace/shared_pool.h"

namespace terrace::remote {

inline constexpr int kPoolSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
inline constexpr int kStagingSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A memory file that its maker has mapped for writing.
class StubMemory {
 public:
  StubMemory(uint64_t bytes, int seals) : fd_(memfd_create("stub", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(mapped, MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(mapped), bytes};
    EXPECT_EQ(fcntl(fd_.get(), F_ADD_SEALS, seals), 0);
  }
  ~StubMemory() { munmap(bytes_.data(), bytes_.size()); }
  int fd() const { return fd_.get(); }
  MutableBytes bytes() const { return bytes_; }

 private:
  FileDescriptor fd_;
  MutableBytes bytes_;
};

struct StubServer {
  static constexpr uint64_t kPoolBytes = 16 * kSharedPoolUnitBytes;
  static constexpr uint64_t kStagingBytes = 8 * kSharedPoolUnitBytes;

  // What is handed out; changed before Listen.
  std::unique_ptr<StubMemory> pool = std::make_unique<StubMemory>(kPoolBytes, kPoolSeals);
  std::unique_ptr<StubMemory> generations =
      std::make_unique<StubMemory>(kPoolBytes / kSharedPoolUnitBytes * 8, kPoolSeals);
  std::unique_ptr<StubMemory> staging = std::make_unique<StubMemory>(kStagingBytes, kStagingSeals);
  ShmWelcome welcome{.pool_bytes = kPoolBytes,
                     .generations_bytes = kPoolBytes / kSharedPoolUnitBytes * 8,
                     .staging_bytes = kStagingBytes};
  size_t num_descriptors = 3;
  size_t welcome_bytes = kShmWelcomeBytes;  // that are sent; 0: silence
  bool hang_up = false;

  std::string path;
  std::array<std::byte, kShmHelloBytes> hello{};

  ~StubServer() {
    if (listener_) shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    if (!path.empty()) unlink(path.c_str());
  }

  void Listen() {
    static std::atomic<int> number{0};
    path = testing::TempDir() + "shm_stub_" + std::to_string(getpid()) + "_" + std::to_string(++number);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    listener_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  void HangUp() { shutdown(accepted_.get(), SHUT_RDWR); }

  std::atomic_ref<uint64_t> Generation(uint64_t unit) {
    return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(generations->bytes().data())[unit]);
  }

 private:
  void Serve() {
    accepted_ = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted_) return;
    if (recv(accepted_.get(), hello.data(), hello.size(), MSG_WAITALL) != kShmHelloBytes) return;
    if (hang_up) HangUp();
    if (welcome_bytes == 0 || hang_up) return;
    std::array<std::byte, kShmWelcomeBytes> bytes = EncodeShmWelcome(welcome);
    iovec vector{bytes.data(), welcome_bytes};
    std::vector<int> fds = {pool->fd(), generations->fd(), staging->fd(), staging->fd()};
    fds.resize(num_descriptors);
    std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    EXPECT_EQ(sendmsg(accepted_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(welcome_bytes));
  }

  FileDescriptor listener_;
  FileDescriptor accepted_;
  std::thread thread_;
};

}  // namespace terrace::remote
