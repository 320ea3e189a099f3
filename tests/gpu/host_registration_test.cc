#include "kernels/cuda/host_registration.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxPiece = 16 * kPage;

// Addresses alone: nothing is behind them.
std::byte* At(uint64_t page) { return reinterpret_cast<std::byte*>(uintptr_t{1} << 40) + page * kPage; }
MutableBytes Region(uint64_t first_page, uint64_t num_pages) { return {At(first_page), num_pages * kPage}; }

class HostRegistrationTest : public testing::Test {
 protected:
  HostRegistration registration_{{[this](std::byte* base, uint64_t bytes) {
                                    const std::lock_guard<std::mutex> lock(mutex_);
                                    if (base == refused_) return UnavailableError("refused");
                                    if (base == pinned_before_) return AlreadyExistsError("pinned before");
                                    pinned_[base] = bytes;
                                    return OkStatus();
                                  },
                                  [this](std::byte* base) {
                                    const std::lock_guard<std::mutex> lock(mutex_);
                                    EXPECT_EQ(pinned_.erase(base), 1u);
                                  }},
                                 kMaxPiece};
  std::mutex mutex_;
  std::map<std::byte*, uint64_t> pinned_;
  std::byte* refused_ = nullptr;
  std::byte* pinned_before_ = nullptr;
};

TEST_F(HostRegistrationTest, PinsInPiecesThatNoCopyCrosses) {
  ASSERT_TRUE(registration_.Add(Region(0, 40)).ok());
  EXPECT_EQ(pinned_,
            (std::map<std::byte*, uint64_t>{{At(0), kMaxPiece}, {At(16), kMaxPiece}, {At(32), 8 * kPage}}));
  EXPECT_EQ(registration_.UncutBytes(At(0), 40 * kPage), kMaxPiece);
  EXPECT_EQ(registration_.UncutBytes(At(15) + 1, 40 * kPage), kPage - 1);
  EXPECT_EQ(registration_.UncutBytes(At(16), kPage), kPage);
  EXPECT_EQ(registration_.UncutBytes(At(39), 2 * kPage), kPage) << "the last piece's end is a border";
  EXPECT_EQ(registration_.PieceOf(At(17)), At(16));
  registration_.Remove(Region(0, 40));
  EXPECT_TRUE(pinned_.empty());
}

TEST_F(HostRegistrationTest, OutsideNothingIsCutBeforeTheNextPiece) {
  EXPECT_EQ(registration_.UncutBytes(At(3), 7), 7u);
  ASSERT_TRUE(registration_.Add(Region(8, 4)).ok());
  EXPECT_EQ(registration_.UncutBytes(At(6), 3 * kPage), 2 * kPage);
  EXPECT_EQ(registration_.UncutBytes(At(12), 3 * kPage), 3 * kPage);
  EXPECT_EQ(registration_.PieceOf(At(7)), nullptr);
  EXPECT_EQ(registration_.PieceOf(At(12)), nullptr);
}

TEST_F(HostRegistrationTest, ARefusedPieceLeavesNothingBehind) {
  refused_ = At(32);
  EXPECT_EQ(registration_.Add(Region(0, 40)).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pinned_.empty());
  EXPECT_EQ(registration_.PieceOf(At(0)), nullptr);
  refused_ = nullptr;
  EXPECT_TRUE(registration_.Add(Region(0, 40)).ok());
}

TEST_F(HostRegistrationTest, WhatIsPinnedBeforeIsUsedAndLeftPinned) {
  pinned_before_ = At(16);
  ASSERT_TRUE(registration_.Add(Region(0, 32)).ok());
  EXPECT_EQ(registration_.PieceOf(At(20)), At(16));
  registration_.Remove(Region(0, 32));
  EXPECT_TRUE(pinned_.empty()) << "and the one that was pinned before was not unpinned (EXPECT_EQ above)";
}

TEST_F(HostRegistrationTest, OnlyWholePagesOnce) {
  EXPECT_EQ(registration_.Add({}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(registration_.Add({At(0) + 1, kPage}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(registration_.Add({At(0), kPage + 1}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(registration_.Add(Region(4, 4)).ok());
  for (const auto& [first, count] : {std::pair<uint64_t, uint64_t>{4, 4}, {0, 5}, {7, 9}, {5, 1}, {0, 20}}) {
    EXPECT_EQ(registration_.Add(Region(first, count)).code(), StatusCode::kInvalidArgument) << first;
  }
  EXPECT_TRUE(registration_.Add(Region(0, 4)).ok());
  EXPECT_TRUE(registration_.Add(Region(8, 1)).ok());
  registration_.Remove(Region(100, 4));
  EXPECT_EQ(pinned_.size(), 3u);
}

TEST_F(HostRegistrationTest, RegionsFromManyThreads) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_TRUE(registration_.Add(Region(100 * t, 40)).ok());
        EXPECT_EQ(registration_.UncutBytes(At(100 * t), kPage), kPage);
        registration_.Remove(Region(100 * t, 40));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(pinned_.empty());
}

}  // namespace
}  // namespace terrace
