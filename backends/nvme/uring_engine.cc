// UringEngine: an IoEngine on one io_uring. No SQPOLL (it eats a core), no IOPOLL (refused by common
// devices). A read of an eventfd is always in the ring, so that Wake ends the same wait that completions end.
#include <absl/container/flat_hash_map.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/io_engine.h"
#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr size_t kMaxBufferBytes = size_t{1} << 30;  // the kernel's limit of one registered buffer
constexpr unsigned kMaxFiles = 256;                  // further ones go unregistered

class UringEngine : public IoEngine {
 public:
  ~UringEngine() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  Status Init(uint32_t depth) {
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
    if (!wake_) return ErrnoStatus("eventfd", errno);
    // One entry more: the eventfd's read.
    // The kernel hands completions over when their owner waits, and does not interrupt it before. The owner
    // is whoever enables the ring: not the thread that makes it and registers memory and files.
    int error = io_uring_queue_init(
        depth + 1, &ring_, IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    is_enabled_ = error == -EINVAL;  // a kernel before 6.1
    if (is_enabled_) error = io_uring_queue_init(depth + 1, &ring_, 0);
    if (error != 0) {
      return UnavailableError(
          std::string("io_uring is not available: ") + std::strerror(-error) +
          " (kernel.io_uring_disabled, a seccomp filter, RLIMIT_MEMLOCK, or a kernel before 5.11)");
    }
    open_ = true;
    // Without it a wait with a timeout puts requests of its own into the ring.
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0) {
      return UnavailableError("io_uring is not available: a kernel before 5.11");
    }
    ArmWake();
    return OkStatus();
  }

  IoEngineMode mode() const override {
    return {.engine = "io_uring",
            .registered_buffers = !buffers_.empty(),
            .registered_files = has_file_table_,
            .fallback = fallback_};
  }

  void RegisterMemory(std::span<const MemoryRegion> regions) override {
    std::vector<iovec> pieces;
    for (const MemoryRegion& region : regions) {
      for (size_t at = 0; at < region.bytes.size(); at += kMaxBufferBytes) {
        pieces.push_back({region.bytes.data() + at, std::min(kMaxBufferBytes, region.bytes.size() - at)});
      }
    }
    if (pieces.empty()) return;
    std::sort(pieces.begin(), pieces.end(),
              [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
    const int error = io_uring_register_buffers(&ring_, pieces.data(), static_cast<unsigned>(pieces.size()));
    if (error == 0) {
      buffers_ = std::move(pieces);
      return;
    }
    fallback_ = std::string("buffers are not registered: ") + std::strerror(-error);
    if (error == -ENOMEM || error == -EPERM) fallback_ += " (RLIMIT_MEMLOCK)";
  }

  void AddFile(int fd) override {
    if (!tried_file_table_) {
      tried_file_table_ = true;
      has_file_table_ = io_uring_register_files_sparse(&ring_, kMaxFiles) == 0;
      if (has_file_table_) {
        free_slots_.resize(kMaxFiles);
        std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
      }
    }
    if (free_slots_.empty() || slots_.contains(fd)) return;
    const int slot = free_slots_.back();
    if (io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &fd, 1) != 1) return;
    free_slots_.pop_back();
    slots_.emplace(fd, slot);
  }

  void RemoveFile(int fd) override {
    const auto found = slots_.find(fd);
    if (found == slots_.end()) return;
    const int slot = found->second;
    slots_.erase(found);
    int none = -1;
    // A slot that could not be emptied is not given out again: its file stays open with the ring.
    if (io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &none, 1) == 1) {
      free_slots_.push_back(slot);
    }
  }

  void Start(IoRequest* request) override {
    io_uring_sqe* entry = NextEntry();
    const bool is_read = request->direction == IoDirection::kRead;
    const auto slot = slots_.find(request->fd);
    const int file = slot == slots_.end() ? request->fd : slot->second;
    const std::optional<int> buffer = BufferOf(*request);
    if (buffer) {
      const iovec& run = request->memory[0];
      (is_read ? io_uring_prep_read_fixed(entry, file, run.iov_base, static_cast<unsigned>(run.iov_len),
                                          request->offset, *buffer)
               : io_uring_prep_write_fixed(entry, file, run.iov_base, static_cast<unsigned>(run.iov_len),
                                           request->offset, *buffer));
    } else {
      (is_read ? io_uring_prep_readv : io_uring_prep_writev)(entry, file, request->memory.data(),
                                                             request->num_memory, request->offset);
    }
    if (slot != slots_.end()) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(entry, request);
  }

  // What the kernel does not take now (EAGAIN, EBUSY) goes with the next Wait.
  void Submit() override {
    Enable();
    io_uring_submit(&ring_);
  }

  void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) override {
    Enable();
    io_uring_cqe* first = nullptr;
    int result;
    if (timeout) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*timeout);
      __kernel_timespec spec{.tv_sec = seconds.count(), .tv_nsec = (*timeout - seconds).count()};
      result = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &spec, nullptr);
    } else {
      result = io_uring_submit_and_wait(&ring_, 1);
    }
    // The kernel's words for "look again": a signal, the time, a full completion queue.
    TERRACE_CHECK(result >= 0 || result == -EINTR || result == -ETIME || result == -EAGAIN ||
                  result == -EBUSY)
        << std::strerror(-result);
    unsigned head;
    unsigned seen = 0;
    bool woken = false;
    io_uring_cqe* entry;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++seen;
      auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(entry));
      if (request == nullptr)
        woken = true;
      else
        completions->push_back({request, entry->res});
    }
    io_uring_cq_advance(&ring_, seen);
    if (woken) ArmWake();
  }

  void Wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

 private:
  void Enable() {
    if (is_enabled_) return;
    // Not io_uring_enable_rings: distributions have liburing 2.3, whose library does not export it.
    const long result =
        syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    TERRACE_CHECK(result == 0) << std::strerror(errno);
    is_enabled_ = true;
  }

  io_uring_sqe* NextEntry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      Submit();
      entry = io_uring_get_sqe(&ring_);
    }
    TERRACE_CHECK(entry != nullptr) << "more requests than the ring's depth";
    return entry;
  }

  // The registered buffer in which the request's memory lies; nullopt where it is not one run within one.
  std::optional<int> BufferOf(const IoRequest& request) const {
    if (request.num_memory != 1) return std::nullopt;
    const iovec& run = request.memory[0];
    const auto* begin = static_cast<const std::byte*>(run.iov_base);
    const auto after =
        std::upper_bound(buffers_.begin(), buffers_.end(), begin,
                         [](const std::byte* at, const iovec& piece) { return at < piece.iov_base; });
    if (after == buffers_.begin()) return std::nullopt;
    const iovec& piece = *std::prev(after);
    const size_t skip = static_cast<size_t>(begin - static_cast<const std::byte*>(piece.iov_base));
    if (skip >= piece.iov_len || run.iov_len > piece.iov_len - skip) return std::nullopt;
    return static_cast<int>(std::prev(after) - buffers_.begin());
  }

  void ArmWake() {
    io_uring_sqe* entry = NextEntry();
    io_uring_prep_read(entry, wake_.get(), &wake_count_, sizeof(wake_count_), 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  io_uring ring_{};
  bool open_ = false;
  bool is_enabled_ = false;
  FileDescriptor wake_;
  uint64_t wake_count_ = 0;
  std::vector<iovec> buffers_;  // as registered, by address
  std::string fallback_;
  bool tried_file_table_ = false;
  bool has_file_table_ = false;
  std::vector<int> free_slots_;
  absl::flat_hash_map<int, int> slots_;  // by fd
};

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeUringEngine(uint32_t depth) {
  auto engine = std::make_unique<UringEngine>();
  if (Status status = engine->Init(depth); !status.ok()) return status;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace terrace
