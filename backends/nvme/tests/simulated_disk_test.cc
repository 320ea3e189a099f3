// What the simulated disk keeps, loses and refuses, exactly.
#include "backends/nvme/tests/simulated_disk.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <cerrno>
#include <cstdlib>
#include <set>

namespace terrace {
namespace {

constexpr uint64_t kPage = 4096;

std::vector<std::byte> Filled(size_t n, int value) { return std::vector<std::byte>(n, std::byte(value)); }

class SimulatedDiskTest : public ::testing::Test {
 protected:
  explicit SimulatedDiskTest(SimulatedWorldOptions options = {.seed = 1})
      : world_(std::make_shared<SimulatedWorld>(options)) {
    Mount();
  }

  void Mount() {
    disk_ = MakeSimulatedDisk(world_, "/tier");
    ASSERT_TRUE(disk_->OpenDirectory().ok());
  }
  void LosePower(LossStyle style) {
    world_->LosePower(style);
    Mount();
  }
  std::unique_ptr<DiskFile> Open(const std::string& name, FileOpen how = FileOpen::kOpenOrCreate) {
    Result<std::unique_ptr<DiskFile>> file = disk_->OpenFile(name, how, false);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? std::move(*file) : nullptr;
  }
  std::vector<std::byte> Contents(const std::string& name) {
    const std::unique_ptr<DiskFile> file = Open(name, FileOpen::kExisting);
    if (!file) return {};
    std::vector<std::byte> bytes(file->Size().value());
    EXPECT_EQ(file->ReadAt(0, bytes).value(), bytes.size());
    return bytes;
  }
  std::vector<std::string> Names() { return disk_->List().value(); }

  std::shared_ptr<SimulatedWorld> world_;
  std::unique_ptr<Disk> disk_;
};

TEST_F(SimulatedDiskTest, WhatWasSyncedIsThereAndNothingElse) {
  std::unique_ptr<DiskFile> file = Open("a");
  ASSERT_TRUE(file->WriteAt(0, Filled(kPage, 1)).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(disk_->SyncNames().ok());
  ASSERT_TRUE(file->WriteAt(100, Filled(2 * kPage, 2)).ok());
  EXPECT_EQ(file->Size().value(), 100 + 2 * kPage);
  LosePower(LossStyle::kAll);
  EXPECT_EQ(Contents("a"), Filled(kPage, 1)) << "length and bytes of the last sync";
  EXPECT_FALSE(file->Size().ok()) << "of a life that is over";
  EXPECT_FALSE(file->WriteAt(0, Filled(1, 1)).ok());
}

TEST_F(SimulatedDiskTest, NothingIsLostByACrashOfTheProcess) {
  ASSERT_TRUE(Open("a")->WriteAt(10, Filled(600, 3)).ok());
  world_->Crash();
  Mount();
  std::vector<std::byte> wanted = Filled(610, 3);
  std::fill(wanted.begin(), wanted.begin() + 10, std::byte{0});
  EXPECT_EQ(Contents("a"), wanted);
}

TEST_F(SimulatedDiskTest, NamesAreLostInOrder) {
  for (const char* name : {"a", "b"}) Open(name);
  ASSERT_TRUE(disk_->SyncNames().ok());
  ASSERT_TRUE(Open("b")->WriteAt(0, Filled(8, 7)).ok());
  ASSERT_TRUE(Open("b")->Sync().ok());
  ASSERT_TRUE(disk_->Rename("b", "c").ok());
  ASSERT_TRUE(disk_->Remove("a").ok());
  EXPECT_EQ(Names(), std::vector<std::string>({"c"}));
  std::set<std::vector<std::string>> seen;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    auto world = std::make_shared<SimulatedWorld>(SimulatedWorldOptions{.seed = seed});
    std::unique_ptr<Disk> disk = MakeSimulatedDisk(world, "/tier");
    ASSERT_TRUE(disk->OpenDirectory().ok());
    for (const char* name : {"a", "b"}) ASSERT_TRUE(disk->OpenFile(name, FileOpen::kNew, false).ok());
    ASSERT_TRUE(disk->SyncNames().ok());
    ASSERT_TRUE(disk->Rename("b", "c").ok());
    ASSERT_TRUE(disk->Remove("a").ok());
    world->LosePower();
    seen.insert(MakeSimulatedDisk(world, "/tier")->List().value());
  }
  EXPECT_EQ(seen, (std::set<std::vector<std::string>>({{"a", "b"}, {"a", "c"}, {"c"}})))
      << "the removal never without the rename before it";
  LosePower(LossStyle::kAll);
  EXPECT_EQ(Names(), std::vector<std::string>({"a", "b"}));
  EXPECT_EQ(Contents("b"), Filled(8, 7)) << "data is synced by the file, not by its name";
}

TEST_F(SimulatedDiskTest, ADirectoryWhoseNameIsLostTakesItsFilesWithIt) {
  ASSERT_TRUE(disk_->MakeDirectory("manifest").ok());
  SimulatedWorld::File file;
  const SimulatedWorld::Caller rocks{SimulatedPart::kManifest, world_->life()};
  ASSERT_EQ(world_->Open(rocks, "/tier/manifest/LOG", FileOpen::kNew, &file), 0);
  ASSERT_EQ(world_->Append(rocks, file, Filled(3, 1)), 0);
  ASSERT_EQ(world_->Sync(rocks, file), 0);
  ASSERT_EQ(world_->SyncNames(rocks, "/tier/manifest"), 0);
  LosePower(LossStyle::kAll);
  EXPECT_TRUE(Names().empty());
}

TEST_F(SimulatedDiskTest, SectorsOfAWriteAreLostOneByOne) {
  size_t partial = 0;
  size_t whole = 0;
  size_t none = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    world_ = std::make_shared<SimulatedWorld>(SimulatedWorldOptions{.seed = seed});
    Mount();
    std::unique_ptr<DiskFile> file = Open("a");
    ASSERT_TRUE(file->WriteAt(0, Filled(8 * kSectorBytes, 1)).ok());
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(disk_->SyncNames().ok());
    ASSERT_TRUE(file->WriteAt(100, Filled(7 * kSectorBytes, 2)).ok());
    LosePower(LossStyle::kDrawn);
    const std::vector<std::byte> bytes = Contents("a");
    ASSERT_EQ(bytes.size(), 8 * kSectorBytes);
    size_t kept = 0;
    for (size_t sector = 0; sector < 8; ++sector) {
      const size_t begin = sector == 0 ? 100 : sector * kSectorBytes;
      const size_t end = sector == 7 ? 7 * kSectorBytes + 100 : (sector + 1) * kSectorBytes;
      kept += bytes[begin] == std::byte{2};
      for (size_t i = begin; i < end; ++i) ASSERT_EQ(bytes[i], bytes[begin]) << "a torn sector";
    }
    EXPECT_EQ(bytes[99], std::byte{1});
    ++(kept == 0 ? none : kept == 8 ? whole : partial);
  }
  EXPECT_GT(partial, 20u);
  EXPECT_GT(whole, 20u);
  EXPECT_GT(none, 20u);
}

TEST_F(SimulatedDiskTest, ASyncThatFailedLosesWhatALaterOneDoesNotBringBack) {
  size_t lost = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    world_ = std::make_shared<SimulatedWorld>(SimulatedWorldOptions{.seed = seed});
    Mount();
    std::unique_ptr<DiskFile> file = Open("a");
    ASSERT_TRUE(file->Allocate(kPage).ok());
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(disk_->SyncNames().ok());
    ASSERT_TRUE(file->WriteAt(0, Filled(kPage, 1)).ok());
    world_->SetFaults(SimulatedPart::kTier, {.failed_sync = 10'000});
    EXPECT_EQ(file->Sync().code(), StatusCode::kUnavailable);
    world_->SetNoFaults();
    ASSERT_TRUE(file->Sync().ok());
    EXPECT_EQ(Contents("a"), Filled(kPage, 1)) << "readers do not notice";
    LosePower(LossStyle::kAll);
    lost += Contents("a") != Filled(kPage, 1);
  }
  EXPECT_GT(lost, 10u);
  EXPECT_LT(lost, 40u);
}

TEST_F(SimulatedDiskTest, AllocatedBytesAreZerosAndUnwritten) {
  std::unique_ptr<DiskFile> file = Open("a");
  ASSERT_TRUE(file->Allocate(16 * kPage).ok());
  EXPECT_EQ(file->Size().value(), 16 * kPage);
  EXPECT_EQ(file->WrittenBytes().value(), 0u);
  EXPECT_EQ(world_->used_bytes(), 16 * kPage);
  ASSERT_TRUE(file->WriteAt(0, Filled(kPage, 0)).ok());
  ASSERT_TRUE(file->WriteAt(kPage, Filled(kPage, 1)).ok());
  ASSERT_TRUE(file->WriteAt(4 * kPage, Filled(kPage, 1)).ok());
  EXPECT_EQ(file->WrittenBytes().value(), 2 * kPage) << "up to the first hole; zeros count";
  ASSERT_TRUE(file->Truncate(kPage + 10).ok());
  ASSERT_TRUE(file->Allocate(2 * kPage).ok());
  std::vector<std::byte> wanted = Filled(2 * kPage, 0);
  std::fill(wanted.begin() + kPage, wanted.begin() + kPage + 10, std::byte{1});
  EXPECT_EQ(Contents("a"), wanted) << "what was cut off is zeros";
}

TEST_F(SimulatedDiskTest, TheFileSystemIsFullAtItsSize) {
  world_ = std::make_shared<SimulatedWorld>(SimulatedWorldOptions{.seed = 1, .total_bytes = 4 * kPage});
  Mount();
  std::unique_ptr<DiskFile> file = Open("a");
  ASSERT_TRUE(file->Allocate(3 * kPage).ok());
  EXPECT_EQ(disk_->FreeBytes().value(), kPage);
  EXPECT_EQ(Open("b")->Allocate(2 * kPage).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(file->WriteAt(3 * kPage, Filled(2 * kPage, 1)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(file->WriteAt(0, Filled(3 * kPage, 1)).ok()) << "allocated before";
  ASSERT_TRUE(disk_->Remove("a").ok());
  EXPECT_TRUE(Open("b")->Allocate(2 * kPage).ok());
}

TEST_F(SimulatedDiskTest, OneHoldsTheLockUntilTheLifeEnds) {
  Result<std::unique_ptr<DiskLock>> lock = disk_->Lock();
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(disk_->Lock().status().code(), StatusCode::kUnavailable);
  world_->Crash();
  Mount();
  EXPECT_TRUE(disk_->Lock().ok());
}

TEST_F(SimulatedDiskTest, TheWorldFreezesInTheMiddleOfAnOperation) {
  std::unique_ptr<DiskFile> file = Open("a");
  world_->FreezeAfter(2);
  EXPECT_TRUE(file->WriteAt(0, Filled(10, 1)).ok());
  EXPECT_FALSE(world_->frozen());
  EXPECT_FALSE(file->WriteAt(0, Filled(20, 1)).ok());
  EXPECT_TRUE(world_->frozen());
  EXPECT_FALSE(disk_->List().ok());
  LosePower(LossStyle::kNothing);
  EXPECT_EQ(Contents("a"), Filled(20, 1)) << "it was on its way";
}

class SimulatedEngineTest : public SimulatedDiskTest {
 protected:
  void SetUp() override {
    engine_ = std::move(disk_->MakeEngine(8)).value();
    file_ = std::move(disk_->OpenFile("a", FileOpen::kNew, true)).value();
    ASSERT_TRUE(file_->Allocate(64 * kPage).ok());
    ASSERT_TRUE(file_->Sync().ok());
    ASSERT_TRUE(disk_->SyncNames().ok());
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, 2 * kPage)));
    std::fill_n(memory_.get(), 2 * kPage, std::byte{5});
  }
  IoRequest Request(IoDirection direction, uint64_t offset) {
    IoRequest request{.direction = direction, .fd = file_->fd(), .offset = offset};
    request.memory = {{{memory_.get(), kPage}, {memory_.get() + kPage, kPage}}};
    request.num_memory = 2;
    return request;
  }
  int64_t Run(IoRequest& request) {
    engine_->Start(&request);
    std::vector<IoCompletion> completions;
    engine_->Wait(std::nullopt, &completions);
    EXPECT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions.at(0).request, &request);
    return completions.at(0).result;
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<DiskFile> file_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<std::byte, Free> memory_;
};

TEST_F(SimulatedEngineTest, WritesAndReads) {
  IoRequest write = Request(IoDirection::kWrite, kPage);
  EXPECT_EQ(Run(write), static_cast<int64_t>(2 * kPage));
  std::fill_n(memory_.get(), 2 * kPage, std::byte{0});
  IoRequest read = Request(IoDirection::kRead, 2 * kPage);
  EXPECT_EQ(Run(read), static_cast<int64_t>(2 * kPage));
  EXPECT_EQ(memory_.get()[0], std::byte{5});
  EXPECT_EQ(memory_.get()[kPage], std::byte{0});
  IoRequest at_end = Request(IoDirection::kRead, 63 * kPage);
  EXPECT_EQ(Run(at_end), static_cast<int64_t>(kPage));
  IoRequest odd = Request(IoDirection::kWrite, 512);
  EXPECT_EQ(Run(odd), -EINVAL) << "O_DIRECT";
}

TEST_F(SimulatedEngineTest, FaultsComeAtTheirRates) {
  world_->SetFaults(
      SimulatedPart::kTier,
      {.short_transfer = 2000, .again = 1000, .interrupted = 1000, .io_error = 1000, .no_space = 1000});
  std::map<int64_t, int> errors;
  int shorter = 0;
  for (int i = 0; i < 1000; ++i) {
    IoRequest write = Request(IoDirection::kWrite, 0);
    const int64_t result = Run(write);
    ASSERT_NE(result, 0);
    if (result < 0) ++errors[result];
    shorter += result > 0 && result < static_cast<int64_t>(2 * kPage);
  }
  EXPECT_EQ(errors.size(), 4u);
  for (const auto& [error, times] : errors) {
    EXPECT_GT(times, 60) << error;
    EXPECT_LT(times, 150) << error;
  }
  EXPECT_GT(shorter, 140);
}

TEST_F(SimulatedEngineTest, LateCompletionsComeBehindOthers) {
  world_->SetFaults(SimulatedPart::kTier, {.late = 5000});
  bool reordered = false;
  for (int round = 0; round < 20; ++round) {
    std::array<IoRequest, 4> requests;
    for (IoRequest& request : requests) {
      request = Request(IoDirection::kRead, 0);
      engine_->Start(&request);
    }
    std::vector<IoCompletion> completions;
    int waits = 0;
    for (; completions.size() < requests.size(); ++waits) engine_->Wait(Duration(0), &completions);
    EXPECT_LE(waits, 13);
    for (size_t i = 0; i < requests.size(); ++i) reordered |= completions[i].request != &requests[i];
  }
  EXPECT_TRUE(reordered);
}

TEST_F(SimulatedEngineTest, WhatIsInFlightMayReachTheDevice) {
  IoRequest write = Request(IoDirection::kWrite, 0);
  engine_->Start(&write);
  ASSERT_TRUE(file_->Sync().ok()) << "covers what has completed";
  world_->Freeze();
  std::fill_n(memory_.get(), 2 * kPage, std::byte{9});  // the memory is the caller's again
  std::vector<IoCompletion> completions;
  engine_->Wait(std::nullopt, &completions);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].result, -EIO);
  LosePower(LossStyle::kNothing);
  std::vector<std::byte> bytes = Contents("a");
  EXPECT_EQ(bytes[0], std::byte{5});
  EXPECT_EQ(bytes[2 * kPage - 1], std::byte{5});
}

TEST_F(SimulatedEngineTest, ASyncDoesNotCoverWhatIsInFlight) {
  IoRequest write = Request(IoDirection::kWrite, 0);
  engine_->Start(&write);
  ASSERT_TRUE(file_->Sync().ok());
  LosePower(LossStyle::kAll);
  EXPECT_EQ(Contents("a"), Filled(64 * kPage, 0));
}

TEST_F(SimulatedDiskTest, RocksDbLivesThroughALossAndKeepsWhatItSynced) {
  ASSERT_TRUE(disk_->MakeDirectory("manifest").ok());
  ASSERT_TRUE(disk_->SyncNames().ok());
  rocksdb::Options options;
  options.create_if_missing = true;
  for (int life = 0; life < 4; ++life) {
    const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(disk_->RocksFileSystem());
    options.env = env.get();
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, "/tier/manifest", &opened);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::unique_ptr<rocksdb::DB> db(opened);
    for (int before = 0; before < life; ++before) {
      std::string value;
      ASSERT_TRUE(db->Get({}, std::to_string(before), &value).ok());
      EXPECT_EQ(value, "synced");
    }
    rocksdb::WriteOptions durable;
    durable.sync = true;
    ASSERT_TRUE(db->Put(durable, std::to_string(life), "synced").ok());
    ASSERT_TRUE(db->Put({}, "volatile", std::to_string(life)).ok());
    world_->Freeze();
    EXPECT_FALSE(db->Put(durable, "dead", "dead").ok());
    db->Close().PermitUncheckedError();
    LosePower(LossStyle::kDrawn);
  }
}

}  // namespace
}  // namespace terrace
