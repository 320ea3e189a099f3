#include "backends/remote/shm_mapping.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/status_macros.h"
#include "terrace/shared_pool.h"

namespace terrace::remote {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kNumDescriptors = 3;
// One can speak of no more than a process can map.
constexpr uint64_t kMaxMappedBytes = uint64_t{1} << 46;

Status Errno(const std::string& what) { return UnavailableError(what + ": " + std::strerror(errno)); }

struct Answer {
  std::array<std::byte, kShmWelcomeBytes> welcome;
  size_t received = 0;
  std::array<FileDescriptor, kNumDescriptors> descriptors;
  size_t num_descriptors = 0;
};

// Takes over what came, more than there may be too: nothing is left open.
bool TakeDescriptors(msghdr& message, Answer& answer) {
  bool good = (message.msg_flags & MSG_CTRUNC) == 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      FileDescriptor owned(fd);
      good &= answer.num_descriptors < kNumDescriptors;
      if (good) answer.descriptors[answer.num_descriptors++] = std::move(owned);
    }
  }
  return good;
}

// One message's worth of the answer, until the deadline.
Status ReceiveSome(int socket, TimePoint deadline, Answer& answer) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
  pollfd waited{.fd = socket, .events = POLLIN, .revents = 0};
  const int ready = poll(&waited, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  if (ready < 0 && errno == EINTR) return OkStatus();
  if (ready <= 0) return UnavailableError("no welcome in time");
  iovec vector{answer.welcome.data() + answer.received, answer.welcome.size() - answer.received};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kNumDescriptors)> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return OkStatus();
  if (n < 0) return Errno("receiving shared memory");
  if (!TakeDescriptors(message, answer)) return DataLossError("shm welcome: too many descriptors");
  if (n == 0) return UnavailableError("the server closed the socket of shared memory");
  answer.received += static_cast<size_t>(n);
  return OkStatus();
}

Result<FileDescriptor> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return DataLossError("shm: the server names no socket");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // A Unix socket connects at once or not at all: EAGAIN is a full queue.
  if (!socket || connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Errno("connecting to " + path);
  }
  return socket;
}

Status CheckCode(const ShmWelcome& welcome) {
  if (welcome.code == BulkCode::kRefused) {
    return Status(StatusCode::kPermissionDenied, "the server gives no shared memory");
  }
  if (welcome.code != BulkCode::kOk) {
    return UnavailableError("shm: the server answers with code " +
                            std::to_string(static_cast<uint32_t>(welcome.code)));
  }
  if (welcome.version != kShmVersion) return DataLossError("shm welcome: another version");
  if (welcome.pool_bytes % kSharedPoolUnitBytes != 0 ||
      welcome.generations_bytes / sizeof(uint64_t) < welcome.pool_bytes / kSharedPoolUnitBytes) {
    return DataLossError("shm welcome: units without generation");
  }
  return OkStatus();
}

}  // namespace

Result<MappedFile> MappedFile::Map(FileDescriptor file, uint64_t bytes, Access access) {
  int seals = F_SEAL_SHRINK;
  if (access == Access::kRead) seals |= F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  const int found = fcntl(file.get(), F_GET_SEALS);
  if (found < 0 || (found & seals) != seals) {
    return DataLossError("shm: a descriptor is no memory file that is sealed as it has to be");
  }
  struct stat state {};
  if (bytes == 0 || bytes > kMaxMappedBytes || fstat(file.get(), &state) != 0 ||
      static_cast<uint64_t>(state.st_size) != bytes) {
    return DataLossError("shm: a memory file is not as long as the server says");
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = mmap(nullptr, bytes, protection, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhaustedError(std::string("shm: mapping failed: ") + std::strerror(errno));
  }
  MappedFile made;
  made.bytes_ = {static_cast<std::byte*>(mapped), bytes};
  return made;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Result<std::shared_ptr<ShmMapping>> ShmMapping::Connect(const std::string& path, const ShmHello& hello,
                                                        Duration limit) {
  const TimePoint deadline = SteadyClock::now() + limit;
  std::shared_ptr<ShmMapping> made(new ShmMapping());
  TERRACE_ASSIGN_OR_RETURN(made->socket_, ConnectTo(path));
  const std::array<std::byte, kShmHelloBytes> bytes = EncodeShmHello(hello);
  if (send(made->socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != ssize_t{kShmHelloBytes}) {
    return Errno("asking for shared memory");
  }
  Answer answer;
  while (answer.received < answer.welcome.size()) {
    TERRACE_RETURN_IF_ERROR(ReceiveSome(made->socket_.get(), deadline, answer));
  }
  TERRACE_ASSIGN_OR_RETURN(const ShmWelcome welcome, DecodeShmWelcome(answer.welcome));
  TERRACE_RETURN_IF_ERROR(CheckCode(welcome));
  if (answer.num_descriptors != kNumDescriptors) return DataLossError("shm welcome: descriptors are missing");
  auto& files = answer.descriptors;
  using Access = MappedFile::Access;
  TERRACE_ASSIGN_OR_RETURN(made->pool_,
                           MappedFile::Map(std::move(files[0]), welcome.pool_bytes, Access::kRead));
  TERRACE_ASSIGN_OR_RETURN(made->generations_,
                           MappedFile::Map(std::move(files[1]), welcome.generations_bytes, Access::kRead));
  TERRACE_ASSIGN_OR_RETURN(made->staging_,
                           MappedFile::Map(std::move(files[2]), welcome.staging_bytes, Access::kReadWrite));
  return made;
}

bool ShmMapping::connected() const {
  pollfd waited{.fd = socket_.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
  // Nothing is ever sent after the welcome.
  return poll(&waited, 1, 0) == 0;
}

Result<Bytes> ShmMapping::FrameAt(uint64_t frame_offset, uint64_t frame_bytes) const {
  const bool aligned = frame_offset >= kTierPageBytes &&
                       (frame_offset - kTierPageBytes) % kSharedPoolUnitBytes == 0 && frame_bytes != 0 &&
                       frame_bytes % kFrameAlignment == 0;
  if (!aligned || !pool_.Holds(frame_offset, frame_bytes)) {
    return DataLossError("shm: no frame of " + std::to_string(frame_bytes) + " bytes can lie at " +
                         std::to_string(frame_offset));
  }
  return Bytes(pool_.bytes()).subspan(frame_offset, frame_bytes);
}

uint64_t ShmMapping::GenerationBefore(uint64_t frame_offset) const {
  const uint64_t unit = (frame_offset - kTierPageBytes) / kSharedPoolUnitBytes;
  auto& word = reinterpret_cast<uint64_t*>(generations_.bytes().data())[unit];
  return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}

uint64_t ShmMapping::GenerationAfter(uint64_t frame_offset) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return GenerationBefore(frame_offset);
}

Result<MutableBytes> ShmMapping::StagingAt(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || !staging_.Holds(offset, bytes)) {
    return DataLossError("shm: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                         " lie outside the staging area");
  }
  return staging_.bytes().subspan(offset, bytes);
}

}  // namespace terrace::remote
