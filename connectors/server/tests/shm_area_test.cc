#include "connectors/server/shm_area.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/support/manager_fixture.h"

namespace terrace::server {
namespace {

constexpr uint64_t kStaging = 1 << 20;

class HeapFrame final : public ArrivingFrame {
 public:
  explicit HeapFrame(uint64_t bytes) : memory_(bytes) {}
  MutableBytes bytes() override { return memory_; }
  void MarkPresent(uint64_t offset, uint64_t n) override {
    EXPECT_EQ(offset, present_);
    present_ += n;
    if (on_present) on_present();
  }
  uint64_t present() const { return present_; }
  std::function<void()> on_present;

 private:
  std::vector<std::byte> memory_;
  uint64_t present_ = 0;
};

struct CountedBuffer : BufferControl {
  int* num_released = nullptr;
};

BufferRef MakeBuffer(uint64_t bytes, int* num_released) {
  auto* control = new CountedBuffer();
  control->size_bytes = bytes;
  control->num_released = num_released;
  control->release = [](BufferControl* given) {
    ++*static_cast<CountedBuffer*>(given)->num_released;
    delete static_cast<CountedBuffer*>(given);
  };
  return BufferRef(control);
}

struct AreaFixture {
  FakeClock clock;
  std::shared_ptr<SessionShmArea> area;
  AreaFixture() {
    ShmAreaOptions options;
    options.staging_bytes = kStaging;
    options.max_staged = 4;
    options.max_places = 3;
    options.max_place_bytes = 100;
    options.clock = &clock;
    area = *SessionShmArea::Make(options, nullptr);
  }
};

TEST(ShmAreaTest, StagingIsHandedOutOnceAndTakenBack) {
  AreaFixture test;
  EXPECT_EQ(*test.area->AllocateStaging(kStaging / 2), 0U);
  EXPECT_EQ(*test.area->AllocateStaging(4095), kStaging / 2);
  EXPECT_EQ(*test.area->AllocateStaging(4097), kStaging / 2 + 4096);
  EXPECT_EQ(test.area->AllocateStaging(kStaging / 2).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(test.area->AllocateStaging(0).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(test.area->AllocateStaging(UINT64_MAX).status().code(), StatusCode::kResourceExhausted);
  test.area->FreeStaging(kStaging / 2);
  test.area->FreeStaging(77);  // never handed out
  EXPECT_EQ(*test.area->AllocateStaging(4096), kStaging / 2);
  EXPECT_EQ(*test.area->AllocateStaging(4096), kStaging / 2 + 3 * 4096);
  EXPECT_EQ(test.area->AllocateStaging(4096).status().code(), StatusCode::kResourceExhausted);  // a fifth
  EXPECT_EQ(test.area->num_staged(), 4U);
}

TEST(ShmAreaTest, WhatIsStagedIsCopiedInOrder) {
  AreaFixture test;
  const uint64_t bytes = 600 * 1024;
  const uint64_t offset = *test.area->AllocateStaging(bytes);
  std::vector<std::byte> staged(bytes);
  for (size_t i = 0; i < bytes; ++i) staged[i] = static_cast<std::byte>(i * 7 + i / 4096);
  ASSERT_EQ(pwrite(test.area->staging_fd(), staged.data(), bytes, static_cast<off_t>(offset)),
            ssize_t{600 * 1024});
  HeapFrame frame(bytes);
  ASSERT_TRUE(test.area->CopyOut(offset, frame).ok());
  EXPECT_EQ(frame.present(), bytes);
  EXPECT_TRUE(std::equal(staged.begin(), staged.end(), frame.bytes().begin()));
}

TEST(ShmAreaTest, BytesThatWereCopiedAreNotReadAgain) {
  AreaFixture test;
  const uint64_t bytes = 600 * 1024;
  const uint64_t offset = *test.area->AllocateStaging(bytes);
  HeapFrame frame(bytes);
  std::vector<std::byte> junk(bytes, std::byte{0x5a});
  frame.on_present = [&] {
    // What was reported is hashed by now; nothing written later may show in it.
    ASSERT_EQ(pwrite(test.area->staging_fd(), junk.data(), frame.present(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(frame.present()));
  };
  ASSERT_TRUE(test.area->CopyOut(offset, frame).ok());
  const MutableBytes copy = frame.bytes();
  EXPECT_TRUE(std::all_of(copy.begin(), copy.end(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(ShmAreaTest, HolesInTheStagingAreZeroes) {
  AreaFixture test;
  const uint64_t offset = *test.area->AllocateStaging(kStaging);
  std::vector<std::byte> junk(kStaging, std::byte{0x5a});
  ASSERT_EQ(pwrite(test.area->staging_fd(), junk.data(), kStaging, 0), ssize_t{kStaging});
  ASSERT_EQ(fallocate(test.area->staging_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kStaging), 0);
  HeapFrame frame(kStaging);
  ASSERT_TRUE(test.area->CopyOut(offset, frame).ok());
  EXPECT_EQ(frame.bytes()[kStaging - 1], std::byte{0});
}

TEST(ShmAreaTest, OnlyWhatWasHandedOutIsCopied) {
  AreaFixture test;
  HeapFrame frame(8192);
  EXPECT_EQ(test.area->CopyOut(0, frame).code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(*test.area->AllocateStaging(4096), 0U);
  EXPECT_EQ(test.area->CopyOut(0, frame).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(test.area->CopyOut(4096, frame).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(frame.present(), 0U);
}

TEST(ShmAreaTest, TheClientCannotChangeTheFilesLength) {
  AreaFixture test;
  EXPECT_NE(ftruncate(test.area->staging_fd(), 0), 0);
  EXPECT_NE(ftruncate(test.area->staging_fd(), 2 * kStaging), 0);
  EXPECT_NE(fcntl(test.area->staging_fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

TEST(ShmAreaTest, PlacesAreBoundedInNumberAndBytes) {
  AreaFixture test;
  int released = 0;
  const auto lease = std::chrono::seconds(30);
  const uint64_t large = test.area->AddPlace(MakeBuffer(1000, &released), lease);  // one may always be held
  EXPECT_NE(large, 0U);
  EXPECT_EQ(test.area->AddPlace(MakeBuffer(1, &released), lease), 0U);
  EXPECT_EQ(released, 1);
  test.area->ReleasePlace(large);
  test.area->ReleasePlace(large);
  EXPECT_EQ(released, 2);
  EXPECT_NE(test.area->AddPlace(MakeBuffer(60, &released), lease), 0U);
  EXPECT_EQ(test.area->AddPlace(MakeBuffer(41, &released), lease), 0U);
  EXPECT_NE(test.area->AddPlace(MakeBuffer(20, &released), lease), 0U);
  EXPECT_NE(test.area->AddPlace(MakeBuffer(20, &released), lease), 0U);
  EXPECT_EQ(test.area->AddPlace(MakeBuffer(0, &released), lease), 0U);  // a fourth
  EXPECT_EQ(test.area->num_places(), 3U);
}

TEST(ShmAreaTest, PlacesEndWithTheirLeaseOrTheArea) {
  AreaFixture test;
  int released = 0;
  EXPECT_NE(test.area->AddPlace(MakeBuffer(1, &released), std::chrono::seconds(10)), 0U);
  EXPECT_NE(test.area->AddPlace(MakeBuffer(1, &released), std::chrono::seconds(20)), 0U);
  test.clock.Advance(std::chrono::seconds(9));
  test.area->Sweep();
  EXPECT_EQ(released, 0);
  test.clock.Advance(std::chrono::seconds(1));
  test.area->Sweep();
  EXPECT_EQ(released, 1);
  test.area.reset();
  EXPECT_EQ(released, 2);
}

TEST(ShmAreaTest, TheEndOfTheAreaEndsTheSocket) {
  std::array<int, 2> pair;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  const auto ours = std::make_shared<FileDescriptor>(pair[0]);
  const FileDescriptor theirs(pair[1]);
  ShmAreaOptions options;
  options.staging_bytes = 4096;
  std::shared_ptr<SessionShmArea> area = *SessionShmArea::Make(options, ours);
  char byte;
  EXPECT_EQ(recv(theirs.get(), &byte, 1, MSG_DONTWAIT), -1);
  area.reset();
  EXPECT_EQ(recv(theirs.get(), &byte, 1, MSG_DONTWAIT), 0);
}

}  // namespace
}  // namespace terrace::server
