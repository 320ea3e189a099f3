#include "backends/nvme/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <ctime>
#include <map>
#include <sstream>

#include "backends/nvme/file_descriptor.h"

namespace terrace {
namespace {

constexpr size_t kMaxTextBytes = 1024;

std::string HolderText() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"unknown"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return "pid " + std::to_string(getpid()) + "\nprocess " + program_invocation_short_name + "\nhost " +
         host.data() + "\nsince " + since.data() + "\n";
}

std::string ReadHolder(int fd, const std::string& directory_path) {
  std::array<char, kMaxTextBytes> raw{};
  const ssize_t got = pread(fd, raw.data(), raw.size(), 0);
  std::istringstream lines(std::string(raw.data(), got > 0 ? static_cast<size_t>(got) : 0));
  std::map<std::string, std::string> fields = {
      {"pid", "?"}, {"process", "unknown"}, {"host", "unknown"}, {"since", "unknown"}};
  for (std::string line; std::getline(lines, line);) {
    const size_t blank = line.find(' ');
    if (blank != std::string::npos) fields[line.substr(0, blank)] = line.substr(blank + 1);
  }
  return "directory " + directory_path + " is held by process " + fields["process"] + " (" + fields["pid"] +
         ") on " + fields["host"] + " since " + fields["since"];
}

class FlockLock : public DiskLock {
 public:
  explicit FlockLock(FileDescriptor file) : file_(std::move(file)) {}
  // The text goes first: whoever comes between sees no holder rather than a former one. A failure leaves a
  // text that the next holder replaces.
  ~FlockLock() override { [[maybe_unused]] const int cut = ftruncate(file_.get(), 0); }

 private:
  FileDescriptor file_;
};

}  // namespace

Result<std::unique_ptr<DiskLock>> AcquireDirectoryLock(int directory_fd, const std::string& directory_path) {
  const std::string path = directory_path + "/" + kLockFileName;
  FileDescriptor file(
      openat(directory_fd, kLockFileName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!file) return ErrnoStatus(path, errno);
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return ErrnoStatus(path, errno);
  if (!S_ISREG(facts.st_mode)) return DataLossError(path + ": is not a regular file");
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return UnavailableError(ReadHolder(file.get(), directory_path));
    return ErrnoStatus(path, errno);
  }
  const std::string text = HolderText();
  if (fchmod(file.get(), 0600) != 0 || ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(path, errno);
  }
  return std::unique_ptr<DiskLock>(std::make_unique<FlockLock>(std::move(file)));
}

}  // namespace terrace
