// RebuildFixture: a store that loses its manifest.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/nvme/nvme_core.h"
#include "backends/nvme/opened_store.h"
#include "backends/nvme/tests/faulty_disk.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "backends/nvme/tier_directory.h"

namespace terrace {

inline constexpr uint64_t kFrame = 64 * kKiB;
inline constexpr uint64_t kRun = kTierPageBytes + kFrame;
// One segment of 16 MiB.
inline constexpr uint64_t kOneSegment = 17 * kMiB;

class RebuildFixture : public ::testing::Test {
 protected:
  std::filesystem::path manifest() const { return store_.path() / kManifestDirectoryName; }
  int64_t Rebuilt() const { return store_.Metric("terrace_nvme_rebuilt_objects_total"); }
  int64_t Unadopted() const { return store_.Metric("terrace_nvme_unadopted_objects_total"); }

  TestObject PutNew(uint64_t seed, uint64_t frame_bytes = kFrame, uint64_t version = 0) {
    TestObject object = MakeNvmeObject(seed, frame_bytes, version);
    const Status put = store_.Put(object);
    EXPECT_TRUE(put.ok()) << put.ToString();
    return object;
  }
  void Erase(const TestObject& object, EraseMode mode) {
    const Status erased = store_.Erase(object.id, mode);
    EXPECT_TRUE(erased.ok() || erased.code() == StatusCode::kNotFound) << erased.ToString();
  }
  void LoseManifestAndOpen(uint64_t capacity_bytes = 128 * kMiB) {
    store_.Close();
    OpenWithoutManifest(capacity_bytes);
  }
  void OpenWithoutManifest(uint64_t capacity_bytes = 128 * kMiB) {
    std::filesystem::remove_all(manifest());
    store_.Open(capacity_bytes);
  }
  void ExpectMiss(const TestObject& object) {
    EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
    // Nor in ranges, for which no tier page is read.
    BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    ops.push_back(GetOpOf(object, dst));
    ops[0].ranges = {{0, 4096, 0}};
    store_.backend().Get(std::move(ops), answers.Callback());
    EXPECT_EQ(answers.Wait().at(0).status.code(), StatusCode::kNotFound);
  }
  // Right bytes or a miss.
  bool HasOrMisses(const TestObject& object) {
    BufferRef dst;
    const GetResult got = store_.Get(object, &dst);
    EXPECT_TRUE(!got.status.ok() || object.Holds(dst));
    EXPECT_TRUE(got.status.ok() || got.status.code() == StatusCode::kNotFound ||
                got.status.code() == StatusCode::kDataLoss)
        << got.status.ToString();
    return got.status.ok();
  }
  // The bytes of segment 0, of a store that is closed or idle.
  std::string Read(uint64_t offset, size_t n) const {
    std::ifstream in(store_.segment(0), std::ios::binary);
    in.seekg(static_cast<std::streamoff>(offset));
    std::string bytes(n, '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(n));
    EXPECT_TRUE(in.good());
    return bytes;
  }
  void Write(uint64_t offset, const std::string& bytes) const {
    std::fstream out(store_.segment(0), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(offset));
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    EXPECT_TRUE(out.good());
  }
  // Opens the closed store's directory without a backend, and looks at its accounting.
  void CheckAccounting(uint64_t live_bytes) {
    Result<std::unique_ptr<OpenedStore>> opened =
        OpenStore(store_.options(), MakeSystemDisk(store_.path().string(), IoEngineKind::kAuto));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    (*opened)->allocator.CheckInvariants();
    EXPECT_EQ((*opened)->allocator.live_bytes(), live_bytes);
    ASSERT_TRUE((*opened)->manifest->Close().ok());
  }
  Status OpenOn(std::shared_ptr<FileFaults> faults) {
    const NvmeOptions options = store_.options();
    return store_.TryAttach(MakeNvmeBackendOnDisk(
        options, std::make_unique<FaultyDisk>(MakeSystemDisk(options.directory, options.io_engine), faults)));
  }
  std::map<ObjectId, ObjectMeta> ScanAll() {
    std::map<ObjectId, ObjectMeta> all;
    std::string cursor;
    do {
      Result<ScanPage> page = store_.backend().Scan(cursor, 7);
      EXPECT_TRUE(page.ok());
      for (ScannedObject& object : page->objects) all.emplace(object.id, std::move(object.meta));
      cursor = page->next_cursor;
    } while (!cursor.empty());
    return all;
  }

  NvmeTestStore store_;
};

}  // namespace terrace
