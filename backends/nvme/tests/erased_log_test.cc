// The log of erased ids: what was added is there again, whatever a crash or a bad sector left behind it.
#include "backends/nvme/erased_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "backends/nvme/tests/faulty_disk.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

ErasedEntry EntryOf(uint64_t n) {
  ErasedEntry entry;
  std::memcpy(entry.id.key.bytes.data(), &n, sizeof(n));
  entry.id.part = {static_cast<uint16_t>(n % 3), static_cast<uint16_t>(n % 5)};
  entry.floor = 100 + n;
  return entry;
}

class ErasedLogTest : public ::testing::Test {
 protected:
  ErasedLogTest() {
    disk_ = std::make_unique<FaultyDisk>(MakeSystemDisk(root_.string(), IoEngineKind::kAuto), faults_);
    EXPECT_TRUE(disk_->OpenDirectory().ok());
  }

  std::unique_ptr<ErasedLog> Open(size_t max_entries = 100) {
    Result<std::unique_ptr<ErasedLog>> log = ErasedLog::Open(*disk_, max_entries);
    EXPECT_TRUE(log.ok()) << log.status().ToString();
    return log.ok() ? std::move(*log) : nullptr;
  }
  static Status Add(ErasedLog& log, uint64_t first, uint64_t n) {
    std::vector<ErasedEntry> entries;
    for (uint64_t i = first; i < first + n; ++i) entries.push_back(EntryOf(i));
    return log.Add(entries);
  }
  // Exactly the entries [0, n), but for those of `without`.
  static void ExpectHolds(const ErasedLog& log, uint64_t n, const std::vector<uint64_t>& without = {}) {
    ErasedFloors expected;
    for (uint64_t i = 0; i < n; ++i) {
      if (std::find(without.begin(), without.end(), i) == without.end()) {
        expected[EntryOf(i).id] = EntryOf(i).floor;
      }
    }
    EXPECT_EQ(log.Floors(), expected);
  }
  fs::path file() const { return root_ / kErasedLogName; }
  std::string ReadAll() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void WriteAll(const std::string& bytes) const { std::ofstream(file(), std::ios::binary) << bytes; }

  const TemporaryDirectory directory_;
  const fs::path& root_ = directory_.path();
  std::shared_ptr<FileFaults> faults_ = std::make_shared<FileFaults>();
  std::unique_ptr<Disk> disk_;
};

TEST_F(ErasedLogTest, BytesAreFrozen) {
  ErasedEntry entry;
  for (size_t i = 0; i < 32; ++i) entry.id.key.bytes[i] = std::byte(i + 1);
  entry.id.part = {0x0102, 0x0304};
  entry.floor = 0x1112131415161718;
  ASSERT_TRUE(Open()->Add({&entry, 1}).ok());
  std::string hex;
  for (const unsigned char byte : ReadAll()) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", byte);
    hex += two.data();
  }
  EXPECT_EQ(hex,
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
            "0201"
            "0403"
            "01000000"
            "1817161514131211"
            "0000000000000000"
            "38a4a30f16573b28");
}

TEST_F(ErasedLogTest, WhatWasAddedIsThereAgain) {
  {
    const std::unique_ptr<ErasedLog> log = Open();
    EXPECT_EQ(log->num_entries(), 0u);
    EXPECT_EQ(log->highest_floor(), 0u);
    ASSERT_TRUE(Add(*log, 0, 3).ok());
    ASSERT_TRUE(Add(*log, 3, 1).ok());
    ASSERT_TRUE(log->Add({}).ok());
    EXPECT_EQ(log->num_entries(), 4u);
    ExpectHolds(*log, 4);
  }
  const std::unique_ptr<ErasedLog> log = Open();
  EXPECT_EQ(log->num_entries(), 4u);
  EXPECT_EQ(log->highest_floor(), 103u);
  EXPECT_EQ(log->num_broken(), 0u);
  ExpectHolds(*log, 4);
}

TEST_F(ErasedLogTest, OfOneIdTheHighestFloorCounts) {
  std::unique_ptr<ErasedLog> log = Open();
  ErasedEntry entry = EntryOf(1);
  for (const uint64_t floor : {5, 9, 7}) {
    entry.floor = floor;
    ASSERT_TRUE(log->Add({&entry, 1}).ok());
  }
  EXPECT_EQ(log->Floors().at(entry.id), 9u);
  log.reset();
  EXPECT_EQ(Open()->Floors().at(entry.id), 9u);
}

TEST_F(ErasedLogTest, WhenItIsFullNothingIsAdded) {
  std::unique_ptr<ErasedLog> log = Open(5);
  ASSERT_TRUE(Add(*log, 0, 4).ok());
  EXPECT_EQ(Add(*log, 4, 2).code(), StatusCode::kResourceExhausted);
  ExpectHolds(*log, 4);
  ASSERT_TRUE(Add(*log, 4, 1).ok());
  EXPECT_EQ(Add(*log, 5, 1).code(), StatusCode::kResourceExhausted);
  log.reset();
  log = Open(3);  // made smaller
  ExpectHolds(*log, 5);
  EXPECT_EQ(Add(*log, 5, 1).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(log->Reset().ok());
  EXPECT_EQ(log->num_entries(), 0u);
  EXPECT_EQ(log->highest_floor(), 0u);
  EXPECT_TRUE(log->Floors().empty());
  ASSERT_TRUE(Add(*log, 0, 3).ok());
  log.reset();
  ExpectHolds(*Open(), 3);
}

TEST_F(ErasedLogTest, ATornEndIsCutOffAtEveryByte) {
  ASSERT_TRUE(Add(*Open(), 0, 3).ok());
  const std::string whole = ReadAll();
  ASSERT_EQ(whole.size(), 3 * kErasedEntryBytes);
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    const uint64_t kept = size / kErasedEntryBytes;
    for (const bool zeros_behind : {false, true}) {
      // What did not reach the disk: a shorter file, or zeros in one of full length.
      WriteAll(whole.substr(0, size) + (zeros_behind ? std::string(whole.size() - size, '\0') : ""));
      std::unique_ptr<ErasedLog> log = Open();
      ExpectHolds(*log, kept);
      EXPECT_EQ(log->num_broken(), 0u);
      EXPECT_EQ(fs::file_size(file()), kept * kErasedEntryBytes);
      ASSERT_TRUE(Add(*log, kept, 1).ok());
      log.reset();
      ExpectHolds(*Open(), kept + 1);
    }
  }
}

TEST_F(ErasedLogTest, ABrokenEntryInTheMiddleLosesNoOther) {
  ASSERT_TRUE(Add(*Open(), 0, 5).ok());
  const std::string whole = ReadAll();
  for (size_t bit = 0; bit < kErasedEntryBytes * 8; ++bit) {
    SCOPED_TRACE(bit);
    std::string broken = whole;
    broken[2 * kErasedEntryBytes + bit / 8] ^= static_cast<char>(1 << (bit % 8));
    WriteAll(broken);
    const std::unique_ptr<ErasedLog> log = Open();
    ExpectHolds(*log, 5, {2});
    EXPECT_EQ(log->num_broken(), 1u);
    EXPECT_EQ(log->num_entries(), 5u);
    EXPECT_EQ(log->highest_floor(), 104u);
    EXPECT_EQ(ReadAll(), broken) << "what is broken stays known as broken";
  }
  // Sectors of one append reach the disk in any order: the first is missing, the last is there.
  WriteAll(std::string(3 * kErasedEntryBytes, '\0') + whole.substr(3 * kErasedEntryBytes));
  std::unique_ptr<ErasedLog> log = Open();
  ExpectHolds(*log, 5, {0, 1, 2});
  EXPECT_EQ(log->num_broken(), 3u);
  ASSERT_TRUE(Add(*log, 5, 1).ok());
  log.reset();
  ExpectHolds(*Open(), 6, {0, 1, 2});
}

TEST_F(ErasedLogTest, AnotherVersionIsBroken) {
  ErasedEntry entry = EntryOf(0);
  ASSERT_TRUE(Open()->Add({&entry, 1}).ok());
  std::string bytes = ReadAll();
  bytes[36] = 2;
  WriteAll(bytes);
  EXPECT_EQ(Open()->num_entries(), 0u);
}

TEST_F(ErasedLogTest, MoreThanOneReadHolds) {
  ASSERT_TRUE(Add(*Open(40000), 0, 40000).ok());
  const std::unique_ptr<ErasedLog> log = Open(40000);
  EXPECT_EQ(log->num_entries(), 40000u);
  ExpectHolds(*log, 40000);
}

TEST_F(ErasedLogTest, WhatFailedWasNotAddedAndTheNextIs) {
  std::unique_ptr<ErasedLog> log = Open();
  ASSERT_TRUE(Add(*log, 0, 2).ok());
  faults_->sync = [](const std::string&) { return UnavailableError("sync"); };
  EXPECT_EQ(Add(*log, 50, 3).code(), StatusCode::kUnavailable);
  faults_->sync = nullptr;
  faults_->write = [](const std::string&) { return UnavailableError("write"); };
  EXPECT_EQ(Add(*log, 60, 1).code(), StatusCode::kUnavailable);
  faults_->write = nullptr;
  ExpectHolds(*log, 2);
  ASSERT_TRUE(Add(*log, 2, 3).ok());
  ExpectHolds(*log, 5);
  log.reset();
  ExpectHolds(*Open(), 5);
}

TEST_F(ErasedLogTest, AnOpeningThatFailsChangesNothing) {
  ASSERT_TRUE(Add(*Open(), 0, 2).ok());
  faults_->read = [](const std::string&, uint64_t, uint64_t) { return UnavailableError("read"); };
  EXPECT_EQ(ErasedLog::Open(*disk_, 100).status().code(), StatusCode::kUnavailable);
  faults_->read = nullptr;
  ExpectHolds(*Open(), 2);
  fs::remove(file());
  fs::create_symlink(root_ / "elsewhere", file());
  EXPECT_EQ(ErasedLog::Open(*disk_, 100).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace terrace
