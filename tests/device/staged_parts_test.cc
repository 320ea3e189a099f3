#include "lib/device/staged_parts.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/plane_runs.h"

namespace terrace {
namespace {

// Where in the payload each byte of a part's slot comes from, by its runs.
std::vector<int64_t> PayloadOfSlot(const StagedPart& part, uint64_t slot_bytes) {
  std::vector<int64_t> payload(slot_bytes, -1);
  for (const StagedRun& run : part.runs) {
    for (uint64_t i = 0; i < run.bytes; ++i) {
      EXPECT_EQ(payload[run.slot_offset + i], -1) << "two runs in one place";
      payload[run.slot_offset + i] = static_cast<int64_t>(run.payload_offset + i);
    }
  }
  return payload;
}

TEST(StagedPartsTest, EveryByteOnceAndWhereTheKernelLooks) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<PlaneArgs> planes(random() % 7);
    std::vector<std::byte> names(planes.size() + 1);  // a base tells which plane it is
    PagedCopyArgs args;
    args.num_tokens = 1 + random() % 40;
    args.first_slot = random() % 10;
    uint64_t payload_bytes = random() % 50;
    for (PlaneArgs& plane : planes) {
      plane.num_heads = static_cast<uint32_t>(1 + random() % 3);
      plane.run_bytes = static_cast<uint32_t>(random() % 8 == 0 ? 0 : 1 + random() % 80);
      plane.base = &names[static_cast<size_t>(&plane - planes.data())];
      plane.payload_offset = payload_bytes;
      payload_bytes += PayloadTokenBytes(plane) * args.num_tokens + (random() % 3 == 0 ? random() % 100 : 0);
    }
    args.planes = planes.data();
    args.num_planes = static_cast<uint32_t>(planes.size());
    const uint64_t slot_bytes = kSlotAlignment * (1 + random() % 12);
    std::vector<int> copied(payload_bytes, 0);
    const Status status = ForEachStagedPart(args, slot_bytes, [&](const StagedPart& part) {
      const std::vector<int64_t> payload = PayloadOfSlot(part, slot_bytes);
      const uint64_t first_token = part.args.first_slot - args.first_slot;
      EXPECT_LE(first_token + part.args.num_tokens, args.num_tokens);
      EXPECT_GT(part.args.num_planes, 0u);
      EXPECT_EQ(part.args.num_planes, part.planes.size());
      for (uint32_t p = 0; p < part.args.num_planes; ++p) {
        const PlaneArgs& plane = part.args.planes[p];
        const PlaneArgs& whole = planes[static_cast<size_t>(plane.base - names.data())];
        const uint64_t begin = whole.payload_offset + first_token * PayloadTokenBytes(whole);
        for (uint64_t i = 0; i < part.args.num_tokens * PayloadTokenBytes(plane); ++i) {
          EXPECT_EQ(payload[plane.payload_offset + i], static_cast<int64_t>(begin + i));
          ++copied[begin + i];
        }
      }
      return OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status.ToString();
    std::vector<int> expected(payload_bytes, 0);
    for (const PlaneArgs& plane : planes) {
      for (uint64_t i = 0; i < PayloadTokenBytes(plane) * args.num_tokens; ++i)
        ++expected[plane.payload_offset + i];
    }
    ASSERT_EQ(copied, expected) << "seed " << seed;
  }
}

TEST(StagedPartsTest, WholePlanesWhereTheyFit) {
  std::vector<PlaneArgs> planes(8);
  for (size_t p = 0; p < planes.size(); ++p) {
    planes[p].run_bytes = 64;
    planes[p].payload_offset = p * 1024;
  }
  PagedCopyArgs args;
  args.planes = planes.data();
  args.num_planes = 8;
  args.num_tokens = 16;
  std::vector<std::pair<size_t, size_t>> parts;
  const auto note = [&](const StagedPart& part) {
    parts.emplace_back(part.planes.size(), part.runs.size());
    return OkStatus();
  };
  using Parts = std::vector<std::pair<size_t, size_t>>;
  ASSERT_TRUE(ForEachStagedPart(args, 8192, note).ok());
  EXPECT_EQ(parts, (Parts{{8, 1}}));  // neighbours: one copy over the bus
  parts.clear();
  ASSERT_TRUE(ForEachStagedPart(args, 3 * 1024, note).ok());
  EXPECT_EQ(parts, (Parts{{3, 1}, {3, 1}, {2, 1}}));
  parts.clear();
  for (size_t p = 0; p < planes.size(); ++p) planes[p].payload_offset = p * 4096;  // a part of the tokens
  ASSERT_TRUE(ForEachStagedPart(args, 8192, note).ok());
  EXPECT_EQ(parts, (Parts{{8, 8}}));
}

TEST(StagedPartsTest, AnErrorEndsIt) {
  PlaneArgs plane;
  plane.run_bytes = 200;
  PagedCopyArgs args;
  args.planes = &plane;
  args.num_planes = 1;
  args.num_tokens = 10;
  int parts = 0;
  const Status status = ForEachStagedPart(
      args, 256, [&](const StagedPart&) { return ++parts == 3 ? UnavailableError("lost") : OkStatus(); });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(parts, 3);
  plane.run_bytes = 300;
  EXPECT_EQ(ForEachStagedPart(args, 256, [](const StagedPart&) { return OkStatus(); }).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
