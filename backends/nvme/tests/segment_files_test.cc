// Segments made, extended, cut and refused.
#include "backends/nvme/segment_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "backends/nvme/tests/forwarding_disk.h"
#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint64_t kSegment = 16 * kMiB;
constexpr uint64_t kKept = 100 * kMiB;

// Says how much is free, and may fail to make names durable.
class TightDisk : public ForwardingDisk {
 public:
  using ForwardingDisk::ForwardingDisk;
  Result<uint64_t> FreeBytes() const override { return free_bytes; }
  Status SyncNames() override { return sync; }
  uint64_t free_bytes = 1024 * kMiB;
  Status sync;
};

class SegmentFilesTest : public ::testing::Test {
 protected:
  SegmentFilesTest()
      : disk_(MakeSystemDisk(store_.path().string(), IoEngineKind::kAuto)), opened_(disk_.OpenDirectory()) {}
  SegmentFiles Make(uint64_t budget_bytes) { return {&disk_, kSegment, budget_bytes, kKept}; }

  NvmeTestStore store_;  // for its directory
  TightDisk disk_;
  const Status opened_;
};

TEST_F(SegmentFilesTest, NoneIsMadeThatLeavesTooLittle) {
  ASSERT_TRUE(opened_.ok());
  SegmentFiles segments = Make(3 * kSegment);
  disk_.free_bytes = kKept + kSegment;
  EXPECT_EQ(segments.CreateNext().value(), 0u) << "what is kept, to the byte";
  disk_.free_bytes = kKept + kSegment - 1;
  const Status full = segments.CreateNext().status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr(std::to_string(disk_.free_bytes) + " free, and keeps " + std::to_string(kKept)));
  EXPECT_FALSE(fs::exists(store_.segment(1))) << "nothing is left behind";
  disk_.free_bytes = kSegment - 1;
  EXPECT_EQ(segments.CreateNext().status().code(), StatusCode::kResourceExhausted);
  disk_.free_bytes = 1024 * kMiB;
  EXPECT_EQ(segments.CreateNext().value(), 1u);
  EXPECT_EQ(segments.CreateNext().value(), 2u);
  EXPECT_EQ(segments.CreateNext().status().code(), StatusCode::kResourceExhausted) << "at the budget";
  EXPECT_EQ(segments.NextMissing(), std::nullopt);
}

TEST_F(SegmentFilesTest, TheLastIsExtendedOnlyWhereThereIsRoom) {
  ASSERT_TRUE(Make(kSegment / 2).CreateNext().ok());
  SegmentFiles raised = Make(kSegment);
  ASSERT_TRUE(raised.OpenExisting().ok());
  disk_.free_bytes = kKept + kSegment / 2 - 1;
  ASSERT_TRUE(raised.FitToBudget().ok());
  EXPECT_EQ(raised.size_bytes(0), kSegment / 2) << "it serves at the length that it has";
  EXPECT_EQ(fs::file_size(store_.segment(0)), kSegment / 2);
  ++disk_.free_bytes;
  ASSERT_TRUE(raised.FitToBudget().ok());
  EXPECT_EQ(raised.size_bytes(0), kSegment);
  EXPECT_EQ(fs::file_size(store_.segment(0)), kSegment);
}

TEST_F(SegmentFilesTest, WhatCannotBeMadeDurableIsRemoved) {
  SegmentFiles segments = Make(kSegment);
  disk_.sync = UnavailableError("no sync");
  EXPECT_EQ(segments.CreateNext().status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(fs::exists(store_.segment(0)));
  disk_.sync = OkStatus();
  EXPECT_EQ(segments.CreateNext().value(), 0u);
}

TEST_F(SegmentFilesTest, AnotherThreadMakesTheFile) {
  SegmentFiles segments = Make(2 * kSegment);
  const std::optional<uint32_t> next = segments.NextMissing();
  ASSERT_EQ(next, 0u);
  Result<MadeSegment> made = UnavailableError("not made");
  std::thread maker([&] { made = segments.Make(*next); });
  maker.join();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(segments.size_bytes(0), 0u) << "not the owner's yet";
  EXPECT_EQ(segments.uncreated_bytes(), 2 * kSegment);
  EXPECT_EQ(segments.Make(0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::exists(store_.segment(0))) << "the one that is there is another's";
  segments.Adopt(std::move(*made));
  EXPECT_EQ(segments.size_bytes(0), kSegment);
  EXPECT_EQ(segments.uncreated_bytes(), kSegment);
  EXPECT_EQ(segments.NextMissing(), 1u);
}

TEST_F(SegmentFilesTest, TheWrittenMarkIsTheFileSystems) {
  {
    SegmentFiles segments = Make(2 * kSegment);
    ASSERT_TRUE(segments.CreateNext().ok());
    ASSERT_TRUE(segments.CreateNext().ok());
    EXPECT_EQ(segments.written_bytes(0), 0u);
  }
  {
    const auto file = std::move(disk_.OpenFile("seg-000000", FileOpen::kExisting, false)).value();
    const std::string bytes(3 * kMiB, 'x');
    ASSERT_TRUE(file->WriteAt(0, std::as_bytes(std::span(bytes))).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  SegmentFiles segments = Make(2 * kSegment);
  ASSERT_TRUE(segments.OpenExisting().ok());
  EXPECT_EQ(segments.written_bytes(0), 3 * kMiB);
  EXPECT_EQ(segments.written_bytes(1), 0u);
  // A mark never lies behind the end.
  SegmentFiles lowered = Make(2 * kMiB);
  ASSERT_TRUE(lowered.OpenExisting().ok());
  EXPECT_EQ(lowered.written_bytes(0), 2 * kMiB);
  ASSERT_TRUE(lowered.FitToBudget().ok());
  EXPECT_EQ(lowered.written_bytes(0), 2 * kMiB);
  EXPECT_FALSE(fs::exists(store_.segment(1)));
}

}  // namespace
}  // namespace terrace
