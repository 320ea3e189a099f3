// What the conformance suite does not see: physical bytes, changed capacities, and the death of the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "backends/nvme/manifest.h"
#include "backends/nvme/nvme_core.h"
#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

TEST(NvmeBackendTest, UsedBytesAreTierPageAndFrame) {
  NvmeTestStore store;
  store.Open();
  ASSERT_TRUE(store.Put(MakeNvmeObject(1, kMiB)).ok());
  ASSERT_TRUE(store.Put(MakeNvmeObject(2, 8192)).ok());
  EXPECT_EQ(store.backend().used_bytes(), kMiB + 4096 + 8192 + 4096);
  store.Reopen();
  EXPECT_EQ(store.backend().used_bytes(), kMiB + 4096 + 8192 + 4096);
  EXPECT_EQ(store.Metric("terrace_nvme_used_bytes"), static_cast<int64_t>(kMiB + 4096 + 8192 + 4096));
  EXPECT_EQ(store.Metric("terrace_nvme_live_objects"), 2);
}

TEST(NvmeBackendTest, PutWritesNothingIntoTheFramesBuffer) {
  NvmeTestStore store;
  store.Open();
  const TestObject object = MakeNvmeObject(1, kMiB);
  std::memset(object.frame.mutable_run().data(), 0x5a, kTierPageBytes);
  ASSERT_TRUE(store.Put(object).ok());
  for (size_t i = 0; i < kTierPageBytes; ++i) ASSERT_EQ(object.frame.run()[i], std::byte{0x5a});
  store.ExpectHas(object);
}

// Small and large objects come and go; the directory never takes more than its capacity, as the file system
// counts.
TEST(NvmeBackendTest, TheDirectoryStaysWithinItsCapacity) {
  constexpr uint64_t kCapacity = 40 * kMiB;
  NvmeTestStore store;
  store.Open(kCapacity);
  std::mt19937_64 random(7);
  std::vector<TestObject> stored;
  size_t refused = 0;
  uint64_t largest = 0;
  for (uint64_t seed = 1; seed <= 2500; ++seed) {
    const uint64_t bytes =
        random() % 20 == 0 ? 3 * kMiB + 4096 * (random() % 500) : 8192 + 4096 * (random() % 12);
    TestObject object = MakeNvmeObject(seed, bytes);
    Status put = store.Put(object);
    while (put.code() == StatusCode::kResourceExhausted && !stored.empty()) {
      ++refused;
      const size_t victim = random() % stored.size();
      ASSERT_TRUE(store.Erase(stored[victim].id, EraseMode::kEvict).ok());
      std::swap(stored[victim], stored.back());
      stored.pop_back();
      put = store.Put(object);
    }
    ASSERT_TRUE(put.ok()) << put.ToString();
    stored.push_back(std::move(object));
    if (seed % 25 == 0) {
      largest = std::max(largest, store.BytesOnDisk());
      ASSERT_LE(largest, kCapacity) << "after " << seed;
    }
    if (seed % 1000 == 0) store.Reopen(kCapacity);
  }
  EXPECT_GT(refused, 50u) << "it was never full";
  EXPECT_GT(largest, kCapacity / 2) << "segments are allocated in full";
  for (const TestObject& object : stored) store.ExpectHas(object);
}

TEST(NvmeBackendTest, RecordsHaveALimitOfTheirOwn) {
  constexpr uint64_t kCapacity = 40 * kMiB;
  NvmeTestStore store;
  store.Open(kCapacity);
  Status put;
  uint64_t n = 0;
  for (; put.ok() && n < 10000; ++n) put = store.Put(MakeNvmeObject(n + 1, 8192));
  EXPECT_EQ(put.code(), StatusCode::kResourceExhausted);
  EXPECT_LE(store.BytesOnDisk(), kCapacity);
  EXPECT_LT(store.backend().used_bytes(), store.backend().capacity_bytes());
  ASSERT_TRUE(store.Erase(MakeNvmeObject(1, 8192).id, EraseMode::kEvict).ok());
  EXPECT_TRUE(store.Put(MakeNvmeObject(1, 8192)).ok()) << "evicting makes room";
}

TEST(NvmeBackendTest, LoweredCapacityDropsWhatLiesBeyond) {
  NvmeTestStore store;
  store.Open(128 * kMiB);
  std::vector<TestObject> objects;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    objects.push_back(MakeNvmeObject(seed, 5 * kMiB));
    ASSERT_TRUE(store.Put(objects.back()).ok());
  }
  ASSERT_TRUE(fs::exists(store.segment(6)));
  store.Reopen(40 * kMiB);
  EXPECT_FALSE(fs::exists(store.segment(3)));
  EXPECT_LE(store.BytesOnDisk(), 40 * kMiB);
  EXPECT_LE(store.backend().used_bytes(), 40 * kMiB);
  size_t kept = 0;
  for (const TestObject& object : objects) {
    BufferRef dst;
    const GetResult result = store.Get(object, &dst);
    if (result.status.ok()) {
      EXPECT_TRUE(object.Holds(dst));
      ++kept;
    } else {
      EXPECT_EQ(result.status.code(), StatusCode::kNotFound);
    }
  }
  EXPECT_GE(kept, 6u);
  EXPECT_LE(kept, 7u);
  EXPECT_EQ(store.Metric("terrace_nvme_dropped_records_total"), static_cast<int64_t>(objects.size() - kept));
  // And up again: the last segment grows, more are made.
  store.Reopen(128 * kMiB);
  for (uint64_t seed = 101; seed <= 110; ++seed) ASSERT_TRUE(store.Put(MakeNvmeObject(seed, 5 * kMiB)).ok());
  for (uint64_t seed = 101; seed <= 110; ++seed) store.ExpectHas(MakeNvmeObject(seed, 5 * kMiB));
  store.Reopen(0);
  EXPECT_EQ(store.backend().used_bytes(), 0u);
  EXPECT_FALSE(fs::exists(store.segment(0)));
}

TEST(NvmeBackendTest, TheDirectorysSegmentBytesStand) {
  NvmeTestStore store;
  store.Open();
  ASSERT_TRUE(store.Put(MakeNvmeObject(1, 9 * kMiB)).ok());
  store.Close();
  NvmeOptions options = store.options();
  options.segment_bytes = 64 * kMiB;
  ASSERT_TRUE(store.TryOpen(options).ok());
  store.ExpectHas(MakeNvmeObject(1, 9 * kMiB));
  ASSERT_TRUE(store.Put(MakeNvmeObject(2, 20 * kMiB)).ok()) << "more than a segment";
  EXPECT_EQ(fs::file_size(store.segment(0)), 16 * kMiB);
  store.ExpectHas(MakeNvmeObject(2, 20 * kMiB));
}

TEST(NvmeBackendTest, GenerationsGoOnAfterAReopen) {
  NvmeTestStore store;
  store.Open();
  uint64_t last = 0;
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(store.Put(MakeNvmeObject(round, 8192)).ok());
    const Result<ScanPage> page = store.backend().Scan("", 100);
    ASSERT_TRUE(page.ok());
    ASSERT_EQ(page->objects.size(), 1u);
    EXPECT_GT(page->objects[0].meta.generation, last);
    last = page->objects[0].meta.generation;
    // The highest one is not in the manifest when it is reopened.
    ASSERT_TRUE(store.Erase(MakeNvmeObject(round, 8192).id, EraseMode::kErase).ok());
    store.Reopen();
  }
}

// What the child below does: object `seed` is put; every third round an earlier one is evicted or erased. A
// byte is written to standard output for each answer, so that the parent knows what was acknowledged.
constexpr uint64_t kChildCapacity = 48 * kMiB;
uint64_t ChildBytes(uint64_t seed) { return 8192 + (seed * 7919 % 500) * 4096; }

TEST(NvmeBackendChild, DISABLED_WritesUntilItIsKilled) {
  NvmeOptions options;
  options.directory = getenv("TERRACE_NVME_TEST_DIRECTORY");
  options.capacity_bytes = kChildCapacity;
  options.segment_bytes = 16 * kMiB;
  const uint64_t first = strtoull(getenv("TERRACE_NVME_TEST_FIRST"), nullptr, 10);
  const int pipe = atoi(getenv("TERRACE_NVME_TEST_PIPE"));
  NvmeTestStore store;
  ASSERT_TRUE(store.TryOpen(options).ok());
  const auto report = [&](char what, uint64_t seed) {
    std::array<char, 9> record;
    record[0] = what;
    std::memcpy(record.data() + 1, &seed, 8);
    ASSERT_EQ(write(pipe, record.data(), record.size()), 9);
  };
  uint64_t oldest = first;
  for (uint64_t seed = first;; ++seed) {
    Status put = store.Put(MakeNvmeObject(seed, ChildBytes(seed)));
    while (put.code() == StatusCode::kResourceExhausted && oldest < seed) {
      const EraseMode mode = oldest % 3 == 0 ? EraseMode::kErase : EraseMode::kEvict;
      report('b', oldest);
      if (store.Erase(MakeNvmeObject(oldest, ChildBytes(oldest)).id, mode).ok()) report('e', oldest);
      ++oldest;
      put = store.Put(MakeNvmeObject(seed, ChildBytes(seed)));
    }
    if (put.ok()) report('p', seed);
    if (put.code() == StatusCode::kResourceExhausted) {
      ASSERT_TRUE(store.Clear().ok());
    }
  }
}

struct ChildHistory {
  std::map<uint64_t, char> last;  // the last report of each object
  uint64_t reports = 0;
};

// Starts a child, lets it make `reports` reports, kills it with SIGKILL.
ChildHistory RunAndKill(const NvmeTestStore& store, uint64_t first, uint64_t reports) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  setenv("TERRACE_NVME_TEST_DIRECTORY", store.path().c_str(), 1);
  setenv("TERRACE_NVME_TEST_FIRST", std::to_string(first).c_str(), 1);
  setenv("TERRACE_NVME_TEST_PIPE", std::to_string(ends[1]).c_str(), 1);
  setenv("TMPDIR", store.root().c_str(), 1);  // what it leaves behind goes with the store
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const pid_t child = fork();
  if (child == 0) {
    execl(program.c_str(), program.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_filter=NvmeBackendChild.*", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  unsetenv("TMPDIR");
  close(ends[1]);
  ChildHistory history;
  std::array<char, 9> record;
  while (read(ends[0], record.data(), record.size()) == 9) {
    uint64_t seed;
    std::memcpy(&seed, record.data() + 1, 8);
    history.last[seed] = record[0];
    if (++history.reports == reports) kill(child, SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself: " << status;
  close(ends[0]);
  return history;
}

// A crash of the process, not of the machine.
TEST(NvmeBackendTest, WhatWasAcknowledgedOutlivesKillNine) {
  NvmeTestStore store;
  uint64_t first = 1;
  size_t hits = 0;
  for (const uint64_t reports : {1, 7, 40, 133, 260, 401}) {
    SCOPED_TRACE(reports);
    const ChildHistory history = RunAndKill(store, first, reports);
    EXPECT_GE(history.reports, reports);
    store.Open(kChildCapacity);
    std::map<uint64_t, bool> found;
    for (const auto& [seed, what] : history.last) {
      const TestObject object = MakeNvmeObject(seed, ChildBytes(seed));
      BufferRef dst;
      const GetResult result = store.Get(object, &dst);
      if (result.status.ok()) {
        ASSERT_TRUE(object.Holds(dst)) << seed;
        ASSERT_NE(what, 'e') << "erased or evicted, acknowledged, and back: " << seed;
        ++hits;
      } else {
        ASSERT_EQ(result.status.code(), StatusCode::kNotFound) << result.status.ToString();
        ASSERT_NE(what, 'p') << "put, acknowledged, and gone: " << seed;
      }
      first = std::max(first, seed + 2);  // the one in flight when it died is not used again
    }
    EXPECT_EQ(store.Metric("terrace_nvme_corrupt_objects_total"), 0);
    EXPECT_EQ(store.Metric("terrace_nvme_dropped_records_total"), 0);
    EXPECT_LE(store.backend().used_bytes(), store.backend().capacity_bytes());
    EXPECT_LE(store.BytesOnDisk(), kChildCapacity);
    // All accounting agrees: what is found, erased, leaves nothing behind.
    std::string cursor;
    std::vector<ObjectId> ids;
    do {
      const Result<ScanPage> page = store.backend().Scan(cursor, 50);
      ASSERT_TRUE(page.ok());
      for (const ScannedObject& object : page->objects) ids.push_back(object.id);
      cursor = page->next_cursor;
    } while (!cursor.empty());
    for (const ObjectId& id : ids) ASSERT_TRUE(store.Erase(id, EraseMode::kEvict).ok());
    EXPECT_EQ(store.backend().used_bytes(), 0u);
    store.Close();
  }
  EXPECT_GT(hits, 20u);
}

TEST(NvmeDurabilityTest, ACleanCloseKeepsEverythingUnderEach) {
  for (const Durability durability : {Durability::kNone, Durability::kFlush, Durability::kSync}) {
    NvmeTestStore store;
    NvmeOptions options = store.options();
    options.durability = durability;
    ASSERT_TRUE(store.TryOpen(options).ok());
    const TestObject kept = MakeNvmeObject(1, 64 * kKiB);
    const TestObject evicted = MakeNvmeObject(2, 64 * kKiB);
    const TestObject erased = MakeNvmeObject(3, 64 * kKiB);
    for (const TestObject& object : {kept, evicted, erased}) ASSERT_TRUE(store.Put(object).ok());
    ASSERT_TRUE(store.Flush().ok());
    const TestObject late = MakeNvmeObject(4, 64 * kKiB);
    ASSERT_TRUE(store.Put(late).ok());
    ASSERT_TRUE(store.Erase(evicted.id, EraseMode::kEvict).ok());
    ASSERT_TRUE(store.Erase(erased.id, EraseMode::kErase).ok());
    store.Close();
    ASSERT_TRUE(store.TryOpen(options).ok());
    store.ExpectHas(kept);
    store.ExpectHas(late);
    EXPECT_EQ(store.GetCode(evicted), StatusCode::kNotFound);
    EXPECT_EQ(store.GetCode(erased), StatusCode::kNotFound);
    EXPECT_EQ(store.backend().used_bytes(), 2 * (64 * kKiB + kTierPageBytes));
  }
}

}  // namespace
}  // namespace terrace
