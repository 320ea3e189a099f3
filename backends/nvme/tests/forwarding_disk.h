// ForwardingDisk: a disk that asks another one. A test derives from it and overrides what is to differ.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/nvme/disk.h"

namespace terrace {

class ForwardingDisk : public Disk {
 public:
  explicit ForwardingDisk(std::unique_ptr<Disk> base) : base_(std::move(base)) {}

  const std::string& path() const override { return base_->path(); }
  Status OpenDirectory() override { return base_->OpenDirectory(); }
  Status ProtectDirectory() override { return base_->ProtectDirectory(); }
  Result<std::vector<std::string>> List() const override { return base_->List(); }
  Result<std::unique_ptr<DiskLock>> Lock() override { return base_->Lock(); }
  Result<std::unique_ptr<DiskFile>> OpenFile(const std::string& name, FileOpen how, bool direct) override {
    return base_->OpenFile(name, how, direct);
  }
  Status Remove(const std::string& name) override { return base_->Remove(name); }
  Status Rename(const std::string& from, const std::string& to) override { return base_->Rename(from, to); }
  Status MakeDirectory(const std::string& name) override { return base_->MakeDirectory(name); }
  Status RemoveDirectory(const std::string& name) override { return base_->RemoveDirectory(name); }
  Status SyncNames() override { return base_->SyncNames(); }
  Result<uint64_t> FreeBytes() const override { return base_->FreeBytes(); }
  Result<std::unique_ptr<IoEngine>> MakeEngine(uint32_t depth) override { return base_->MakeEngine(depth); }
  std::shared_ptr<rocksdb::FileSystem> RocksFileSystem() override { return base_->RocksFileSystem(); }

 protected:
  std::unique_ptr<Disk> base_;
};

}  // namespace terrace
