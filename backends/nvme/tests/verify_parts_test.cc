// What verify is made of: the map of claimed units, and the window of reads.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <random>

#include "backends/nvme/disk.h"
#include "backends/nvme/place_map.h"
#include "backends/nvme/read_window.h"
#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

TEST(PlaceMapTest, ClaimsAreWholeOrNothing) {
  PlaceMap map(std::vector<uint64_t>{10 * 4096 + 100, 0, 70 * 4096});
  EXPECT_EQ(map.total_bytes(), 80 * 4096u);
  EXPECT_EQ(map.OutOfBounds(std::vector<Extent>{{0, 0, 10 * 4096}, {2, 4096, 4096}}), "");
  for (const Extent& wrong : std::vector<Extent>{{0, 4096, 10 * 4096},
                                                 {1, 0, 4096},
                                                 {3, 0, 4096},
                                                 {0, 0, 0},
                                                 {0, 1, 4096},
                                                 {0, 0, 100},
                                                 {0, ~uint64_t{4095}, 8192}}) {
    EXPECT_NE(map.OutOfBounds(std::vector<Extent>{wrong}), "") << wrong.offset;
  }
  ASSERT_TRUE(map.Claim(std::vector<Extent>{{2, 60 * 4096, 8 * 4096}}));
  EXPECT_EQ(map.claimed_bytes(), 8 * 4096u);
  EXPECT_FALSE(map.Claim(std::vector<Extent>{{0, 0, 4096}, {2, 0, 61 * 4096}}));
  EXPECT_FALSE(map.Claim(std::vector<Extent>{{0, 0, 4096}, {0, 0, 4096}}));
  EXPECT_EQ(map.claimed_bytes(), 8 * 4096u) << "a refusal took something";
  map.Release(std::vector<Extent>{{2, 60 * 4096, 8 * 4096}});
  EXPECT_TRUE(map.Claim(std::vector<Extent>{{0, 0, 4096}, {2, 0, 70 * 4096}}));
}

TEST(PlaceMapTest, MarksWhatLiesInTheSegments) {
  PlaceMap map(std::vector<uint64_t>{10 * 4096, 0, 70 * 4096});
  map.Mark({0, 9 * 4096, 1 << 20});
  map.Mark({0, 9 * 4096, ~uint64_t{0}});
  map.Mark({1, 0, 4096});
  map.Mark({3, 0, 4096});
  map.Mark({2, 70 * 4096, 4096});
  EXPECT_EQ(map.claimed_bytes(), 4096u);
  map.Mark({2, 63 * 4096 + 1, 4096});  // of two units
  EXPECT_EQ(map.claimed_bytes(), 3 * 4096u);
  EXPECT_TRUE(map.IsFree(std::vector<Extent>{{0, 0, 9 * 4096}, {2, 0, 63 * 4096}, {2, 65 * 4096, 5 * 4096}}));
  EXPECT_FALSE(map.IsFree(std::vector<Extent>{{0, 0, 9 * 4096}, {2, 64 * 4096, 4096}}));
}

// Every read's bytes are its own, whatever their sizes and however the ring turns.
TEST(ReadWindowTest, HandsOutReadsInOrder) {
  NvmeTestStore store;
  std::filesystem::create_directory(store.path());
  constexpr uint64_t kFile = 4 * kMiB;
  {
    std::string bytes(kFile, '\0');
    for (uint64_t i = 0; i < kFile; i += 8) std::memcpy(bytes.data() + i, &i, 8);
    std::ofstream(store.segment(0), std::ios::binary) << bytes;
  }
  const std::unique_ptr<Disk> disk = MakeSystemDisk(store.path().string(), IoEngineKind::kAuto);
  ASSERT_TRUE(disk->OpenDirectory().ok());
  const auto file = disk->OpenFile("seg-000000", FileOpen::kExisting, true).value();
  auto window = ReadWindow::Open(*disk, 256 * kKiB, 64 * kKiB).value();
  std::mt19937_64 random(5);
  std::deque<ReadWindow::Span> expected;
  uint64_t refused = 0;
  for (int step = 0; step < 3000; ++step) {
    const uint64_t length = 4096 * (1 + random() % (step % 7 == 0 ? 64 : 12));
    const ReadWindow::Span span{file->fd(), 4096 * (random() % ((kFile - length) / 4096)), length};
    while (!window->Add({&span, 1})) {
      ++refused;
      const ReadWindow::Done done = window->Front();
      ASSERT_TRUE(done.status.ok()) << done.status.ToString();
      ASSERT_EQ(done.bytes.size(), expected.front().length);
      for (uint64_t i = 0; i < done.bytes.size(); i += 4096) {
        uint64_t word;
        std::memcpy(&word, done.bytes.data() + i, 8);
        ASSERT_EQ(word, expected.front().offset + i);
      }
      window->Release();
      expected.pop_front();
    }
    expected.push_back(span);
  }
  EXPECT_GT(refused, 1000u);
  const ReadWindow::Span beyond{file->fd(), kFile - 4096, 8192};
  while (!window->Add({&beyond, 1})) {
    window->Front();
    window->Release();
  }
  while (true) {
    const ReadWindow::Done done = window->Front();
    window->Release();
    if (!window->empty()) continue;
    EXPECT_EQ(done.status.code(), StatusCode::kDataLoss) << "the file ends in the middle";
    break;
  }
}

}  // namespace
}  // namespace terrace
