// UringEngine: an IoEngine on one io_uring. No SQPOLL (it eats a core), no IOPOLL (refused by common
// devices). A read of an eventfd is always in the ring, so that Wake ends the same wait that completions end.
#include <liburing.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/io_engine.h"
#include "lib/base/check.h"

namespace terrace {
namespace {

class UringEngine : public IoEngine {
 public:
  ~UringEngine() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  Status Init(uint32_t depth) {
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
    if (!wake_) return ErrnoStatus("eventfd", errno);
    // One entry more: the eventfd's read.
    const int error = io_uring_queue_init(depth + 1, &ring_, 0);
    if (error != 0) {
      return UnavailableError(std::string("io_uring is not available: ") + std::strerror(-error) +
                              " (kernel.io_uring_disabled, a seccomp filter, or a kernel before 5.6)");
    }
    open_ = true;
    ArmWake();
    return OkStatus();
  }

  void Start(IoRequest* request) override {
    io_uring_sqe* entry = NextEntry();
    if (request->direction == IoDirection::kRead) {
      io_uring_prep_readv(entry, request->fd, request->memory.data(), request->num_memory, request->offset);
    } else {
      io_uring_prep_writev(entry, request->fd, request->memory.data(), request->num_memory, request->offset);
    }
    io_uring_sqe_set_data(entry, request);
  }

  void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) override {
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
  io_uring_sqe* NextEntry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
    }
    TERRACE_CHECK(entry != nullptr) << "more requests than the ring's depth";
    return entry;
  }

  void ArmWake() {
    io_uring_sqe* entry = NextEntry();
    io_uring_prep_read(entry, wake_.get(), &wake_count_, sizeof(wake_count_), 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  io_uring ring_{};
  bool open_ = false;
  FileDescriptor wake_;
  uint64_t wake_count_ = 0;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeUringEngine(uint32_t depth) {
  auto engine = std::make_unique<UringEngine>();
  if (Status status = engine->Init(depth); !status.ok()) return status;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace terrace
