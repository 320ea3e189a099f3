// The operating system's disk: what it opens, refuses, removes and says.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/file_system.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "backends/nvme/disk.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class SystemDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = MakeSystemDisk((root_ / "tier").string() + "//", IoEngineKind::kAuto);
    ASSERT_TRUE(disk_->OpenDirectory().ok());
  }
  StatusCode CodeOf(const std::string& name, FileOpen how) {
    return disk_->OpenFile(name, how, false).status().code();
  }
  std::unique_ptr<DiskFile> Make(const std::string& name) {
    return std::move(disk_->OpenFile(name, FileOpen::kNew, false)).value();
  }
  static mode_t ModeOf(const fs::path& path) {
    struct stat facts {};
    EXPECT_EQ(lstat(path.c_str(), &facts), 0) << path;
    return facts.st_mode & 07777;
  }

  const TemporaryDirectory directory_;
  const fs::path& root_ = directory_.path();
  std::unique_ptr<Disk> disk_;
};

TEST_F(SystemDiskTest, OpensWhatItIsAskedFor) {
  EXPECT_EQ(disk_->path(), (root_ / "tier").string());
  EXPECT_EQ(CodeOf("a", FileOpen::kExisting), StatusCode::kNotFound);
  EXPECT_EQ(CodeOf("a", FileOpen::kNew), StatusCode::kOk);
  EXPECT_EQ(CodeOf("a", FileOpen::kNew), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf("a", FileOpen::kExisting), StatusCode::kOk);
  EXPECT_EQ(CodeOf("a", FileOpen::kOpenOrCreate), StatusCode::kOk);
  EXPECT_EQ(CodeOf("b", FileOpen::kOpenOrCreate), StatusCode::kOk);
  EXPECT_THAT(disk_->List().value(), UnorderedElementsAre("a", "b"));
  EXPECT_THAT(disk_->List().value(), UnorderedElementsAre("a", "b")) << "from the beginning each time";
  EXPECT_TRUE(disk_->Rename("a", "c").ok());
  EXPECT_EQ(disk_->Rename("a", "c").code(), StatusCode::kNotFound);
  EXPECT_TRUE(disk_->Remove("b").ok());
  EXPECT_TRUE(disk_->Remove("b").ok());
  EXPECT_TRUE(disk_->SyncNames().ok());
  EXPECT_THAT(disk_->List().value(), UnorderedElementsAre("c"));
}

TEST_F(SystemDiskTest, OpensRegularFilesOnly) {
  const fs::path tier = root_ / "tier";
  std::ofstream(root_ / "victim") << "precious";
  fs::create_symlink(root_ / "victim", tier / "link");
  fs::create_directory(tier / "directory");
  ASSERT_EQ(mkfifo((tier / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "directory", "pipe"}) {
    EXPECT_EQ(CodeOf(name, FileOpen::kExisting), StatusCode::kDataLoss) << name;
    EXPECT_EQ(CodeOf(name, FileOpen::kOpenOrCreate), StatusCode::kDataLoss) << name;
    EXPECT_EQ(CodeOf(name, FileOpen::kNew), StatusCode::kFailedPrecondition) << name;
  }
  EXPECT_EQ(disk_->MakeDirectory("link").code(), StatusCode::kDataLoss);
  EXPECT_EQ(disk_->RemoveDirectory("link").code(), StatusCode::kDataLoss);
  EXPECT_TRUE(disk_->Remove("link").ok());
  EXPECT_TRUE(fs::exists(root_ / "victim"));
  fs::create_symlink(tier, root_ / "other");
  EXPECT_EQ(MakeSystemDisk(root_ / "other", IoEngineKind::kAuto)->OpenDirectory().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(MakeSystemDisk(root_ / "victim", IoEngineKind::kAuto)->OpenDirectory().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(MakeSystemDisk(root_ / "no" / "parent", IoEngineKind::kAuto)->OpenDirectory().code(),
            StatusCode::kNotFound);
}

TEST_F(SystemDiskTest, ModesArePrivateWhateverTheUmask) {
  const mode_t mask = umask(0);
  Make("file");
  EXPECT_TRUE(disk_->MakeDirectory("directory").ok());
  umask(mask);
  EXPECT_EQ(ModeOf(root_ / "tier" / "file"), 0600u);
  EXPECT_EQ(ModeOf(root_ / "tier" / "directory"), 0700u);
  chmod((root_ / "tier").c_str(), 0755);
  chmod((root_ / "tier" / "directory").c_str(), 0755);
  EXPECT_TRUE(disk_->ProtectDirectory().ok());
  EXPECT_TRUE(disk_->MakeDirectory("directory").ok());
  EXPECT_EQ(ModeOf(root_ / "tier"), 0700u);
  EXPECT_EQ(ModeOf(root_ / "tier" / "directory"), 0700u);
}

TEST_F(SystemDiskTest, ADirectoryGoesWithAllThatItHoldsAndNothingElse) {
  const fs::path tier = root_ / "tier";
  fs::create_directories(tier / "manifest" / "deep" / "deeper");
  fs::create_directory(root_ / "others");
  std::ofstream(root_ / "others" / "precious") << "mine";
  std::ofstream(tier / "manifest" / "CURRENT") << "x";
  std::ofstream(tier / "manifest" / "deep" / "000001.sst") << "x";
  fs::create_symlink(root_ / "others", tier / "manifest" / "deep" / "link");
  EXPECT_TRUE(disk_->RemoveDirectory("manifest").ok());
  EXPECT_FALSE(fs::exists(tier / "manifest"));
  EXPECT_TRUE(fs::exists(root_ / "others" / "precious"));
  EXPECT_TRUE(disk_->RemoveDirectory("manifest").ok());
}

TEST_F(SystemDiskTest, AFileHoldsWhatWasWritten) {
  const std::unique_ptr<DiskFile> file = Make("file");
  EXPECT_FALSE(file->is_direct()) << "nobody asked for it";
  EXPECT_EQ(file->Size().value(), 0u);
  EXPECT_EQ(file->WrittenBytes().value(), 0u);
  const std::string text = "what was written";
  ASSERT_TRUE(file->WriteAt(5000, std::as_bytes(std::span(text))).ok());
  std::string back(100, '?');
  EXPECT_EQ(file->ReadAt(5000, std::as_writable_bytes(std::span(back))).value(), text.size());
  EXPECT_EQ(back.substr(0, text.size()), text);
  EXPECT_EQ(file->ReadAt(9999, std::as_writable_bytes(std::span(back))).value(), 0u);
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(file->WrittenBytes().value(), 0u) << "a hole is in front";
  EXPECT_TRUE(file->Truncate(10).ok());
  EXPECT_EQ(file->Size().value(), 10u);
}

TEST_F(SystemDiskTest, AllocatedIsThereAndNotWritten) {
  const std::unique_ptr<DiskFile> file = Make("file");
  ASSERT_TRUE(file->Allocate(8 * kMiB).ok());
  EXPECT_EQ(file->Size().value(), 8 * kMiB);
  EXPECT_EQ(file->WrittenBytes().value(), 0u);
  const std::string zeros(kMiB, '\0');
  ASSERT_TRUE(file->WriteAt(0, std::as_bytes(std::span(zeros))).ok());
  ASSERT_TRUE(file->WriteAt(2 * kMiB, std::as_bytes(std::span(zeros))).ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(file->WrittenBytes().value(), kMiB) << "zeros that were written are written";
  EXPECT_TRUE(file->Allocate(4 * kMiB).ok());
  EXPECT_EQ(file->Size().value(), 8 * kMiB) << "never shorter";
}

TEST_F(SystemDiskTest, ADirectoryThatWasRemovedMakesNoFiles) {
  fs::remove(root_ / "tier");
  EXPECT_EQ(CodeOf("file", FileOpen::kNew), StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf("file", FileOpen::kExisting), StatusCode::kNotFound);
  EXPECT_FALSE(disk_->MakeDirectory("manifest").ok());
}

TEST_F(SystemDiskTest, OneHolderAtATime) {
  std::unique_ptr<DiskLock> lock = std::move(disk_->Lock()).value();
  const std::unique_ptr<Disk> other = MakeSystemDisk(disk_->path(), IoEngineKind::kAuto);
  ASSERT_TRUE(other->OpenDirectory().ok());
  const Status held = other->Lock().status();
  EXPECT_EQ(held.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(held.message()), HasSubstr("(" + std::to_string(getpid()) + ")"));
  lock.reset();
  EXPECT_EQ(fs::file_size(root_ / "tier" / kLockFileName), 0u) << "no name of a former holder";
  EXPECT_TRUE(other->Lock().ok());
}

TEST_F(SystemDiskTest, FreeBytesAreThisUsers) {
  const uint64_t free_bytes = disk_->FreeBytes().value();
  EXPECT_GT(free_bytes, 0u);
  EXPECT_LE(free_bytes, fs::space(root_).capacity);
}

TEST_F(SystemDiskTest, WhatFailsSaysWhere) {
  const std::unique_ptr<DiskFile> file = Make("file");
  const auto enough = static_cast<uint64_t>(INT64_MAX);
  const Status status = file->Allocate(enough);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_THAT(std::string(status.message()), HasSubstr((root_ / "tier" / "file").string()));
  std::byte byte{};
  EXPECT_FALSE(file->ReadAt(enough + 1, {&byte, 1}).ok());
  EXPECT_FALSE(file->WriteAt(enough + 1, {&byte, 1}).ok());
  EXPECT_FALSE(file->Truncate(enough + 1).ok());
}

}  // namespace
}  // namespace terrace
