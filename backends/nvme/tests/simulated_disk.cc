#include "backends/nvme/tests/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "backends/nvme/file_descriptor.h"
#include "lib/base/check.h"

namespace terrace {
namespace {

using WorldRef = std::shared_ptr<SimulatedWorld>;
using Caller = SimulatedWorld::Caller;
using File = SimulatedWorld::File;

constexpr uint64_t kAlignment = 4096;

Status StatusOf(const std::string& what, int error) {
  switch (error) {
    case 0:
      return OkStatus();
    case ENOENT:
      return NotFoundError(what + ": no such file");
    case EEXIST:
      return FailedPreconditionError(what + ": the name is taken");
    case EISDIR:
    case ENOTDIR:
      return DataLossError(what + ": is not what it should be");
    default:
      return ErrnoStatus(what, error);
  }
}

// The open files of one disk, by number.
class OpenFiles {
 public:
  struct Entry {
    File file;
    bool is_direct = false;
  };
  int Add(Entry entry) {
    const std::lock_guard lock(mutex_);
    entries_.emplace(next_, std::move(entry));
    return next_++;
  }
  void Remove(int fd) {
    const std::lock_guard lock(mutex_);
    entries_.erase(fd);
  }
  Entry Find(int fd) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(fd);
    TERRACE_CHECK(found != entries_.end()) << "no open file " << fd;
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, Entry> entries_;
  int next_ = 1 << 20;  // no descriptor of the system has such a number
};

class SimulatedDiskFile : public DiskFile {
 public:
  SimulatedDiskFile(WorldRef world, Caller who, std::string name, std::shared_ptr<OpenFiles> files,
                    OpenFiles::Entry entry)
      : world_(std::move(world)),
        who_(who),
        name_(std::move(name)),
        files_(std::move(files)),
        file_(entry.file),
        is_direct_(entry.is_direct),
        fd_(files_->Add(std::move(entry))) {}
  ~SimulatedDiskFile() override { files_->Remove(fd_); }

  int fd() const override { return fd_; }
  bool is_direct() const override { return is_direct_; }
  Result<uint64_t> Size() const override {
    uint64_t bytes = 0;
    const int error = world_->Size(who_, file_, &bytes);
    if (error != 0) return StatusOf(name_, error);
    return bytes;
  }
  Status Allocate(uint64_t size_bytes) override {
    return StatusOf(name_, world_->Allocate(who_, file_, size_bytes));
  }
  Status Truncate(uint64_t size_bytes) override {
    return StatusOf(name_, world_->Truncate(who_, file_, size_bytes));
  }
  Result<uint64_t> WrittenBytes() const override {
    uint64_t bytes = 0;
    const int error = world_->WrittenBytes(who_, file_, &bytes);
    if (error != 0) return StatusOf(name_, error);
    return bytes;
  }
  Status Sync() override { return StatusOf("sync of " + name_, world_->Sync(who_, file_)); }
  Result<uint64_t> ReadAt(uint64_t offset, MutableBytes to) const override {
    if (!IsAllowed(offset, to)) return StatusOf(name_, EINVAL);
    uint64_t done = 0;
    const int error = world_->Read(who_, file_, offset, to, &done);
    if (error != 0) return StatusOf(name_, error);
    return done;
  }
  Status WriteAt(uint64_t offset, Bytes from) override {
    if (!IsAllowed(offset, from)) return StatusOf(name_, EINVAL);
    return StatusOf(name_, world_->Write(who_, file_, offset, from));
  }

 private:
  bool IsAllowed(uint64_t offset, Bytes memory) const {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return !is_direct_ || (offset | memory.size() | address) % kAlignment == 0;
  }

  const WorldRef world_;
  const Caller who_;
  const std::string name_;
  const std::shared_ptr<OpenFiles> files_;
  const File file_;
  const bool is_direct_;
  const int fd_;
};

// Requests complete in an order of the seed's. Wait without a time to wait counts as time that passes.
class SimulatedEngine : public IoEngine {
 public:
  SimulatedEngine(WorldRef world, Caller who, std::shared_ptr<OpenFiles> files, uint32_t depth)
      : world_(std::move(world)), who_(who), files_(std::move(files)), depth_(depth) {}

  IoEngineMode mode() const override { return {.engine = "simulated"}; }

  void Start(IoRequest* request) override {
    TERRACE_CHECK(started_.size() < depth_);
    const OpenFiles::Entry entry = files_->Find(request->fd);
    world_->BeginRequest(who_, request, entry.file, entry.is_direct);
    started_.push_back({request, world_->NextTurn(who_, entry.file)});
  }

  void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) override {
    const size_t before = completions->size();
    for (;;) {
      CompleteDue(completions);
      if (completions->size() > before) return;
      std::unique_lock lock(mutex_);
      if (std::exchange(woken_, false) || timeout == Duration(0)) return;
      if (!started_.empty()) continue;  // time passes until one is due
      const auto woken = [this] { return woken_; };
      if (timeout) {
        changed_.wait_for(lock, *timeout, woken);
        timeout = Duration(0);
      } else {
        changed_.wait(lock, woken);
      }
    }
  }

  void Wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

 private:
  struct Started {
    IoRequest* request = nullptr;
    SimulatedWorld::Turn turn;
  };

  void CompleteDue(std::vector<IoCompletion>* completions) {
    const bool over = world_->frozen() || world_->life() != who_.life;
    std::vector<Started> due;
    std::erase_if(started_, [&](Started& started) {
      if (!over && started.turn.delay > 0) {
        --started.turn.delay;
        return false;
      }
      due.push_back(started);
      return true;
    });
    std::sort(due.begin(), due.end(),
              [](const Started& a, const Started& b) { return a.turn.rank < b.turn.rank; });
    for (const Started& one : due) {
      completions->push_back({one.request, world_->EndRequest(who_, one.request)});
    }
  }

  const WorldRef world_;
  const Caller who_;
  const std::shared_ptr<OpenFiles> files_;
  const uint32_t depth_;
  std::vector<Started> started_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

class SimulatedLock : public DiskLock {
 public:
  SimulatedLock(WorldRef world, Caller who, std::string path)
      : world_(std::move(world)), who_(who), path_(std::move(path)) {}
  ~SimulatedLock() override { world_->Unlock(who_, path_); }

 private:
  const WorldRef world_;
  const Caller who_;
  const std::string path_;
};

class SimulatedDisk : public Disk {
 public:
  SimulatedDisk(WorldRef world, std::string path)
      : world_(std::move(world)), path_(std::move(path)), who_{SimulatedPart::kTier, world_->life()} {}

  const std::string& path() const override { return path_; }
  Status OpenDirectory() override {
    const int error = world_->MakeDirectory(who_, path_);
    return error == EEXIST ? OkStatus() : StatusOf(path_, error);
  }
  Status ProtectDirectory() override { return OkStatus(); }
  Result<std::vector<std::string>> List() const override {
    std::vector<std::string> names;
    const int error = world_->List(who_, path_, &names);
    if (error != 0) return StatusOf(path_, error);
    return names;
  }
  Result<std::unique_ptr<DiskLock>> Lock() override {
    const int error = world_->Lock(who_, path_);
    if (error == EAGAIN) return UnavailableError(path_ + " is held: pid 1, process simulated, host here");
    if (error != 0) return StatusOf(path_, error);
    return std::unique_ptr<DiskLock>(std::make_unique<SimulatedLock>(world_, who_, path_));
  }
  Result<std::unique_ptr<DiskFile>> OpenFile(const std::string& name, FileOpen how, bool direct) override {
    OpenFiles::Entry entry{.file = {}, .is_direct = direct && world_->options().has_direct};
    const int error = world_->Open(who_, PathOf(name), how, &entry.file);
    if (error != 0) return StatusOf(PathOf(name), error);
    return std::unique_ptr<DiskFile>(
        std::make_unique<SimulatedDiskFile>(world_, who_, PathOf(name), files_, std::move(entry)));
  }
  Status Remove(const std::string& name) override {
    const int error = world_->Remove(who_, PathOf(name));
    return error == ENOENT ? OkStatus() : StatusOf(PathOf(name), error);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return StatusOf(PathOf(from), world_->Rename(who_, PathOf(from), PathOf(to)));
  }
  Status MakeDirectory(const std::string& name) override {
    const int error = world_->MakeDirectory(who_, PathOf(name));
    return error == EEXIST ? OkStatus() : StatusOf(PathOf(name), error);
  }
  Status RemoveDirectory(const std::string& name) override {
    const int error = world_->RemoveDirectory(who_, PathOf(name));
    return error == ENOENT ? OkStatus() : StatusOf(PathOf(name), error);
  }
  Status SyncNames() override { return StatusOf("sync of " + path_, world_->SyncNames(who_, path_)); }
  Result<uint64_t> FreeBytes() const override {
    uint64_t bytes = 0;
    const int error = world_->FreeBytes(who_, &bytes);
    if (error != 0) return StatusOf(path_, error);
    return bytes;
  }
  Result<std::unique_ptr<IoEngine>> MakeEngine(uint32_t depth) override {
    return std::unique_ptr<IoEngine>(std::make_unique<SimulatedEngine>(world_, who_, files_, depth));
  }
  std::shared_ptr<rocksdb::FileSystem> RocksFileSystem() override { return MakeSimulatedFileSystem(world_); }

 private:
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  const WorldRef world_;
  const std::string path_;
  const Caller who_;
  const std::shared_ptr<OpenFiles> files_ = std::make_shared<OpenFiles>();
};

}  // namespace

std::unique_ptr<Disk> MakeSimulatedDisk(std::shared_ptr<SimulatedWorld> world, std::string path) {
  return std::make_unique<SimulatedDisk>(std::move(world), std::move(path));
}

}  // namespace terrace
