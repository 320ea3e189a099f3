#include "backends/nvme/segment_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr uint64_t kUnit = 4096;

// Blocks for [0, bytes) now. Where the file system cannot reserve, a sparse file of that length.
int Allocate(int fd, uint64_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

// The number in "seg-000012"; nullopt for other names.
std::optional<uint64_t> NumberOf(const char* name) {
  unsigned long long number = 0;
  int used = 0;
  if (std::sscanf(name, "seg-%6llu%n", &number, &used) != 1 || name[used] != '\0' || used != 10)
    return std::nullopt;
  return number;
}

}  // namespace

SegmentFiles::SegmentFiles(int directory_fd, std::string directory_path, uint64_t segment_bytes,
                           uint64_t budget_bytes)
    : directory_fd_(directory_fd),
      directory_path_(std::move(directory_path)),
      segment_bytes_(segment_bytes),
      budget_bytes_(budget_bytes / kUnit * kUnit) {
  segments_.resize((budget_bytes_ + segment_bytes_ - 1) / segment_bytes_);
}

uint64_t SegmentFiles::WantedBytes(uint32_t index) const {
  return std::min(segment_bytes_, budget_bytes_ - uint64_t{index} * segment_bytes_);
}

std::string SegmentFiles::NameOf(uint32_t index) const {
  std::array<char, 24> name{};
  std::snprintf(name.data(), name.size(), "seg-%06u", index);
  return name.data();
}

FileDescriptor SegmentFiles::OpenFile(const std::string& name, int* error) {
  const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  FileDescriptor file(openat(directory_fd_, name.c_str(), flags | O_DIRECT));
  if (!file && errno == EINVAL) {
    file = FileDescriptor(openat(directory_fd_, name.c_str(), flags));
    if (file) buffered_ = true;
  }
  *error = errno;
  return file;
}

Status SegmentFiles::OpenExisting() {
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    const std::string name = NameOf(index);
    int error = 0;
    FileDescriptor file = OpenFile(name, &error);
    if (!file && error == ENOENT) continue;
    const std::string path = directory_path_ + "/" + name;
    if (!file) return ErrnoStatus(path, error);
    struct stat facts {};
    if (fstat(file.get(), &facts) != 0) return ErrnoStatus(path, errno);
    if (!S_ISREG(facts.st_mode)) return DataLossError(path + ": is not a regular file");
    segments_[index].size_bytes = std::min<uint64_t>(facts.st_size / kUnit * kUnit, WantedBytes(index));
    segments_[index].file = std::move(file);
  }
  return OkStatus();
}

Status SegmentFiles::FitToBudget() {
  TERRACE_RETURN_IF_ERROR(RemoveBeyondBudget());
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    Segment& segment = segments_[index];
    if (!segment.file) continue;
    const std::string path = directory_path_ + "/" + NameOf(index);
    struct stat facts {};
    if (fstat(segment.file.get(), &facts) != 0) return ErrnoStatus(path, errno);
    const uint64_t wanted = WantedBytes(index);
    if (static_cast<uint64_t>(facts.st_size) > wanted) {
      if (ftruncate(segment.file.get(), static_cast<off_t>(wanted)) != 0) return ErrnoStatus(path, errno);
    } else if (static_cast<uint64_t>(facts.st_size) < wanted && Allocate(segment.file.get(), wanted) != 0) {
      continue;  // it serves at the length that it has
    }
    segment.size_bytes = wanted;
  }
  return OkStatus();
}

Status SegmentFiles::RemoveBeyondBudget() {
  const int listing = openat(directory_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(listing >= 0 ? fdopendir(listing) : nullptr, closedir);
  if (!entries) return ErrnoStatus("directory " + directory_path_, errno);
  while (const dirent* entry = readdir(entries.get())) {
    const std::optional<uint64_t> number = NumberOf(entry->d_name);
    if (!number || *number < segments_.size()) continue;
    if (unlinkat(directory_fd_, entry->d_name, 0) != 0) {
      return ErrnoStatus(directory_path_ + "/" + entry->d_name, errno);
    }
  }
  return OkStatus();
}

Result<uint32_t> SegmentFiles::CreateNext() {
  uint32_t index = 0;
  while (index < segments_.size() && segments_[index].file) ++index;
  if (index == segments_.size()) return ResourceExhaustedError("all segments are in use");
  const std::string name = NameOf(index);
  const std::string path = directory_path_ + "/" + name;
  // Made without O_DIRECT: some file systems make the file first and refuse the flag then.
  FileDescriptor made(
      openat(directory_fd_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!made) return ErrnoStatus(path, errno);
  int error = fchmod(made.get(), 0600) == 0 ? 0 : errno;
  if (error == 0) error = Allocate(made.get(), WantedBytes(index));
  FileDescriptor file;
  if (error == 0) {
    file = OpenFile(name, &error);
    if (file) error = fsync(directory_fd_) == 0 ? 0 : errno;
  }
  if (error != 0) {
    unlinkat(directory_fd_, name.c_str(), 0);
    return ErrnoStatus(path, error);
  }
  segments_[index].file = std::move(file);
  segments_[index].size_bytes = WantedBytes(index);
  return index;
}

uint64_t SegmentFiles::uncreated_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    if (!segments_[index].file) bytes += WantedBytes(index);
  }
  return bytes;
}

std::vector<uint32_t> SegmentFiles::TakeDirty() {
  std::vector<uint32_t> dirty;
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    if (std::exchange(segments_[index].dirty, false)) dirty.push_back(index);
  }
  return dirty;
}

}  // namespace terrace
