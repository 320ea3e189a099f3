#include "connectors/llamacpp/model_digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace terrace::llamacpp {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;

struct EvpDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using EvpContext = std::unique_ptr<EVP_MD_CTX, EvpDeleter>;

class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

Status ReadError(const std::string& path, int error) {
  const std::string message = path + ": " + std::strerror(error);
  return error == ENOENT ? NotFoundError(message) : UnavailableError(message);
}

int64_t Nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

Result<EvpContext> StartSha256() {
  EvpContext context(EVP_MD_CTX_new());
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return InternalError("SHA-256 is not available");
  }
  return context;
}

Result<Digest> Finish(EVP_MD_CTX* context) {
  Digest digest;
  unsigned length = 0;
  if (EVP_DigestFinal_ex(context, reinterpret_cast<unsigned char*>(digest.bytes.data()), &length) != 1 ||
      length != digest.bytes.size()) {
    return InternalError("SHA-256 failed");
  }
  return digest;
}

Result<Digest> HashFile(const std::string& path, int fd) {
  Result<EvpContext> context = StartSha256();
  if (!context.ok()) return context.status();
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  const auto buffer = std::make_unique<std::byte[]>(kReadBytes);
  off_t offset = 0;
  while (true) {
    const ssize_t count = pread(fd, buffer.get(), kReadBytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ReadError(path, errno);
    if (count == 0) break;
    if (EVP_DigestUpdate(context->get(), buffer.get(), static_cast<size_t>(count)) != 1) {
      return InternalError("SHA-256 failed");
    }
    offset += count;
  }
  return Finish(context->get());
}

}  // namespace

Result<Digest> ModelDigests::OfFile(const std::string& path) {
  const File file(path);
  if (file.fd() < 0) return ReadError(path, errno);
  const auto stamp_of = [&]() -> Result<Stamp> {
    struct stat status;
    if (fstat(file.fd(), &status) != 0) return ReadError(path, errno);
    if (!S_ISREG(status.st_mode)) return InvalidArgumentError(path + " is not a regular file");
    return Stamp{status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size),
                 Nanoseconds(status.st_mtim), Nanoseconds(status.st_ctim)};
  };
  const Result<Stamp> before = stamp_of();
  if (!before.ok()) return before.status();
  {
    std::lock_guard lock(mutex_);
    if (const auto found = remembered_.find(*before); found != remembered_.end()) return found->second;
  }
  const Result<Digest> digest = HashFile(path, file.fd());
  if (!digest.ok()) return digest.status();
  const Result<Stamp> after = stamp_of();
  if (!after.ok()) return after.status();
  if (*before != *after) return Status(StatusCode::kAborted, path + " changed while it was read");
  std::lock_guard lock(mutex_);
  ++files_read_;
  remembered_.emplace(*before, *digest);
  return *digest;
}

Result<std::string> ModelDigests::OfParts(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) {
    const Result<Digest> digest = OfFile(path);
    if (!digest.ok()) return digest.status();
    all += digest->ToHex();
  }
  if (paths.size() == 1) return all;
  const Result<Digest> joined = DigestOfText("terrace-gguf-parts-1", all);
  if (!joined.ok()) return joined.status();
  return joined->ToHex();
}

uint64_t ModelDigests::files_read() const {
  std::lock_guard lock(mutex_);
  return files_read_;
}

Result<Digest> DigestOfText(std::string_view domain, std::string_view bytes) {
  Result<EvpContext> context = StartSha256();
  if (!context.ok()) return context.status();
  const char zero = 0;
  if (EVP_DigestUpdate(context->get(), domain.data(), domain.size()) != 1 ||
      EVP_DigestUpdate(context->get(), &zero, 1) != 1 ||
      EVP_DigestUpdate(context->get(), bytes.data(), bytes.size()) != 1) {
    return InternalError("SHA-256 failed");
  }
  return Finish(context->get());
}

}  // namespace terrace::llamacpp
