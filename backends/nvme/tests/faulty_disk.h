// FaultyDisk: the files of another disk, with waiting reads, writes and syncs that a test lets fail.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backends/nvme/tests/forwarding_disk.h"

namespace terrace {

// What each answers before the file is asked; null: OK.
struct FileFaults {
  std::function<Status(const std::string& name, uint64_t offset, uint64_t length)> read;
  std::function<Status(const std::string& name)> write;
  std::function<Status(const std::string& name)> sync;
};

class FaultyFile : public DiskFile {
 public:
  FaultyFile(std::string name, std::unique_ptr<DiskFile> base, std::shared_ptr<FileFaults> faults)
      : name_(std::move(name)), base_(std::move(base)), faults_(std::move(faults)) {}

  int fd() const override { return base_->fd(); }
  bool is_direct() const override { return base_->is_direct(); }
  Result<uint64_t> Size() const override { return base_->Size(); }
  Status Allocate(uint64_t size_bytes) override { return base_->Allocate(size_bytes); }
  Status Truncate(uint64_t size_bytes) override { return base_->Truncate(size_bytes); }
  Result<uint64_t> WrittenBytes() const override { return base_->WrittenBytes(); }
  Status Sync() override {
    const Status fault = faults_->sync ? faults_->sync(name_) : OkStatus();
    return fault.ok() ? base_->Sync() : fault;
  }
  Result<uint64_t> ReadAt(uint64_t offset, MutableBytes to) const override {
    const Status fault = faults_->read ? faults_->read(name_, offset, to.size()) : OkStatus();
    if (!fault.ok()) return fault;
    return base_->ReadAt(offset, to);
  }
  Status WriteAt(uint64_t offset, Bytes from) override {
    const Status fault = faults_->write ? faults_->write(name_) : OkStatus();
    return fault.ok() ? base_->WriteAt(offset, from) : fault;
  }

 private:
  const std::string name_;
  const std::unique_ptr<DiskFile> base_;
  const std::shared_ptr<FileFaults> faults_;
};

class FaultyDisk : public ForwardingDisk {
 public:
  FaultyDisk(std::unique_ptr<Disk> base, std::shared_ptr<FileFaults> faults)
      : ForwardingDisk(std::move(base)), faults_(std::move(faults)) {}

  Result<std::unique_ptr<DiskFile>> OpenFile(const std::string& name, FileOpen how, bool direct) override {
    Result<std::unique_ptr<DiskFile>> file = base_->OpenFile(name, how, direct);
    if (!file.ok()) return file;
    return std::unique_ptr<DiskFile>(std::make_unique<FaultyFile>(name, std::move(*file), faults_));
  }

 private:
  const std::shared_ptr<FileFaults> faults_;
};

}  // namespace terrace
