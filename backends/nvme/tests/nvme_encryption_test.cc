// An encrypted tier as a whole: what comes back, what lies on disk, and which keys open it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <random>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "lib/wire/object_record.h"
#include "lib/wire/sealed_layout.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint64_t kFrame = 192 * kKiB;  // three pieces
constexpr uint64_t kHead = FrameOffsetInRun(kFrame, true);
constexpr uint64_t kRun = RunBytes(kFrame, true);

EncryptionKey KeyOf(uint32_t id, int fill) {
  EncryptionKey key{.id = id};
  key.bytes.fill(static_cast<std::byte>(fill));
  return key;
}

class NvmeEncryptionTest : public ::testing::Test {
 protected:
  NvmeEncryptionTest() { store_.keys = {KeyOf(1, 0x11)}; }

  std::string Read(uint64_t offset, size_t n) const {
    FileDescriptor file(open(store_.segment(0).c_str(), O_RDONLY));
    std::string bytes(n, '\0');
    EXPECT_EQ(pread(file.get(), bytes.data(), n, static_cast<off_t>(offset)), static_cast<ssize_t>(n));
    return bytes;
  }
  void Write(uint64_t offset, const std::string& bytes) const {
    FileDescriptor file(open(store_.segment(0).c_str(), O_WRONLY));
    EXPECT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(fsync(file.get()), 0);
  }
  void Flip(uint64_t offset, int bit) const {
    std::string byte = Read(offset, 1);
    byte[0] = static_cast<char>(byte[0] ^ (1 << bit));
    Write(offset, byte);
  }
  // Put one after another into an empty segment, they lie one after another.
  std::vector<TestObject> PutSome(size_t n, uint64_t first_seed = 1) {
    std::vector<TestObject> objects;
    for (uint64_t seed = first_seed; seed < first_seed + n; ++seed) {
      objects.push_back(MakeNvmeObject(seed, kFrame));
      EXPECT_TRUE(store_.Put(objects.back()).ok());
    }
    return objects;
  }
  Status TryOpen(std::vector<EncryptionKey> keys) {
    NvmeOptions options = store_.options();
    options.keys = std::move(keys);
    return store_.TryOpen(options);
  }
  // What every file of the directory holds, by name.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(store_.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      files[entry.path().string()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return files;
  }
  bool IsOnDisk(std::string_view bytes) const {
    for (const auto& [name, content] : Files()) {
      if (content.find(bytes) != std::string::npos) return true;
    }
    return false;
  }
  GetResult GetRanges(const TestObject& object, std::vector<FrameRange> ranges, const BufferRef& dst,
                      std::vector<std::pair<uint64_t, uint64_t>>* reported) {
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    ops.push_back(GetOpOf(object, dst));
    ops[0].ranges = std::move(ranges);
    ops[0].on_bytes = [reported](uint64_t offset, uint64_t n) { reported->emplace_back(offset, n); };
    store_.backend().Get(std::move(ops), answers.Callback());
    return answers.Wait().at(0);
  }
  int64_t Corrupt() const { return store_.Metric("terrace_nvme_corrupt_objects_total"); }

  NvmeTestStore store_;
};

std::string_view Text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

TEST_F(NvmeEncryptionTest, ObjectsOfAllSizesComeBackAlsoAfterARestart) {
  store_.Open(256 * kMiB);
  std::vector<TestObject> objects;
  uint64_t seed = 1;
  uint64_t expected = 0;
  for (const uint64_t frame_bytes : {8 * kKiB, 64 * kKiB, 68 * kKiB, 1 * kMiB, 5 * kMiB + 4 * kKiB, 16 * kMiB,
                                     16 * kMiB + 4 * kKiB, 33 * kMiB}) {
    objects.push_back(MakeNvmeObject(seed++, frame_bytes));
    const Status put = store_.Put(objects.back());
    ASSERT_TRUE(put.ok()) << put.ToString();
    expected += RunBytes(frame_bytes, true);
  }
  EXPECT_EQ(store_.backend().used_bytes(), expected);
  for (const TestObject& object : objects) store_.ExpectHas(object);
  store_.Reopen(256 * kMiB);
  EXPECT_EQ(store_.backend().used_bytes(), expected);
  for (const TestObject& object : objects) store_.ExpectHas(object);
  EXPECT_EQ(store_.Metric("terrace_nvme_dropped_records_total"), 0);
}

TEST_F(NvmeEncryptionTest, RangesOpenWithThePiecesThatCoverThem) {
  store_.Open();
  const TestObject object = MakeNvmeObject(1, kFrame + 8 * kKiB);
  ASSERT_TRUE(store_.Put(object).ok());
  const std::vector<std::vector<FrameRange>> cases = {
      {{0, 4 * kKiB, 0}},
      {{60 * kKiB, 8 * kKiB, 4 * kKiB}},
      {{64 * kKiB, 64 * kKiB, 100 * kKiB}},
      {{4 * kKiB, kFrame, 4 * kKiB}},
      {{kFrame, 8 * kKiB, 0}, {0, 64 * kKiB, 8 * kKiB}},
      // Two parts of one piece, in the order that the disk does not have.
      {{32 * kKiB, 4 * kKiB, 0}, {8 * kKiB, 4 * kKiB, 4 * kKiB}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const BufferRef dst = MakeTestBuffer(kFrame + 8 * kKiB, std::byte{0xee});
    std::vector<std::byte> expected(dst.frame().begin(), dst.frame().end());
    std::vector<bool> wanted(dst.frame().size());
    for (const FrameRange& range : cases[i]) {
      const Bytes from = object.frame.frame().subspan(range.frame_offset, range.length);
      std::copy(from.begin(), from.end(), expected.begin() + range.dst_offset);
      std::fill_n(wanted.begin() + range.dst_offset, range.length, true);
    }
    std::vector<std::pair<uint64_t, uint64_t>> reported;
    const GetResult result = GetRanges(object, cases[i], dst, &reported);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), dst.frame().begin()))
        << "what was not asked for stays as it was";
    std::vector<bool> seen(wanted.size());
    for (const auto& [offset, n] : reported) {
      for (uint64_t at = offset; at < offset + n; ++at) {
        ASSERT_FALSE(seen[at]) << "twice";
        seen[at] = true;
      }
    }
    EXPECT_EQ(seen, wanted);
  }
}

TEST_F(NvmeEncryptionTest, NothingOfTheContentIsOnDisk) {
  KvSpec spec;
  spec.model_id = "a model that nobody may know of";
  const RootRecord root = *ComputeRoot(spec, {}, "salt");
  const TestObject object = MakeNvmeObject(255, kFrame);  // 256 tokens
  const auto on_disk = [&] {
    std::vector<bool> found;
    store_.Open();
    EXPECT_TRUE(store_.backend().PutRoot(root).ok());
    EXPECT_TRUE(store_.Put(object).ok());
    EXPECT_TRUE(store_.Flush().ok());
    store_.Reopen();  // RocksDB's log becomes a table
    store_.ExpectHas(object);
    store_.Close();
    for (uint64_t at = 0; at < kFrame; at += 4 * kKiB) {
      found.push_back(IsOnDisk(Text(object.frame.frame().subspan(at, 16))));
    }
    found.push_back(IsOnDisk(Text(std::as_bytes(std::span(object.meta.content->tokens).first(4)))));
    found.push_back(IsOnDisk(spec.model_id));
    found.push_back(IsOnDisk(Text(root.salt_sha256.bytes)));
    EXPECT_TRUE(IsOnDisk(Text(object.id.key.bytes))) << "the search looks in the right place";
    return found;
  };
  EXPECT_THAT(on_disk(), ::testing::Each(false));
  fs::remove_all(store_.path());
  store_.keys.clear();
  EXPECT_THAT(on_disk(), ::testing::Each(true)) << "and would have found it";
}

TEST_F(NvmeEncryptionTest, ContentsAndRootsComeBack) {
  KvSpec spec;
  spec.model_id = "m";
  const RootRecord root = *ComputeRoot(spec, {}, "salt");
  store_.Open();
  const std::vector<TestObject> objects = PutSome(3);
  ASSERT_TRUE(store_.backend().PutRoot(root).ok());
  ASSERT_TRUE(store_.backend().PutRoot(root).ok());
  store_.Reopen();
  const Result<ScanPage> page = store_.backend().Scan("", 10);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->objects.size(), 3u);
  std::map<ObjectId, ChunkContentRef> contents;
  for (const ScannedObject& object : page->objects) contents[object.id] = object.meta.content;
  for (const TestObject& object : objects) EXPECT_EQ(*contents.at(object.id), *object.meta.content);
  const Result<std::vector<RootRecord>> roots = store_.backend().ScanRoots();
  ASSERT_TRUE(roots.ok());
  EXPECT_THAT(*roots, ::testing::ElementsAre(root));
}

TEST_F(NvmeEncryptionTest, TwoRunsOfOnePlaintextDiffer) {
  store_.Open();
  const TestObject object = MakeNvmeObject(1, kFrame);
  ASSERT_TRUE(store_.Put(object).ok());
  const std::string first = Read(0, kRun);
  ASSERT_TRUE(store_.Erase(object.id, EraseMode::kErase).ok());
  EXPECT_EQ(Read(0, kTierPageBytes), std::string(kTierPageBytes, '\0')) << "the salt is gone";
  ASSERT_TRUE(store_.Put(object).ok());
  const std::string second = Read(0, kRun);
  for (uint64_t at = kHead; at < kRun; at += 64) {
    ASSERT_NE(first.substr(at, 64), second.substr(at, 64)) << at;
  }
  // A copy of the directory that goes on gives out the same generations.
  store_.Close();
  fs::copy(store_.path(), store_.root() / "copy", fs::copy_options::recursive);
  const TestObject next = MakeNvmeObject(2, kFrame);
  store_.Open();
  ASSERT_TRUE(store_.Put(next).ok());
  const std::string here = Read(kRun, kRun);
  store_.Close();
  fs::remove_all(store_.path());
  fs::rename(store_.root() / "copy", store_.path());
  store_.Open();
  store_.ExpectHas(object);
  ASSERT_TRUE(store_.Put(next).ok());
  const std::string there = Read(kRun, kRun);
  const auto page_of = [](const std::string& run) {
    return PeekTierPage(std::as_bytes(std::span(run)).first(kTierPageBytes)).value().fields;
  };
  EXPECT_EQ(page_of(here).generation, page_of(there).generation) << "so that this test sees what it means";
  EXPECT_NE(here.substr(kHead), there.substr(kHead));
}

TEST_F(NvmeEncryptionTest, WrongKeysAreRefusedAndNothingIsTouched) {
  store_.keys = {KeyOf(1, 0x11), KeyOf(2, 0x22)};
  store_.Open();
  const std::vector<TestObject> objects = PutSome(2);
  store_.Close();
  const std::map<std::string, std::string> before = Files();
  const auto refused = [&](std::vector<EncryptionKey> keys, const std::string& reason) {
    const Status status = TryOpen(std::move(keys));
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
    EXPECT_THAT(std::string(status.message()), HasSubstr(store_.path().string()));
    EXPECT_TRUE(Files() == before);
  };
  refused({}, "key id 1, 2 was not given");
  refused({KeyOf(1, 0x11)}, "key id 2 was not given");
  refused({KeyOf(2, 0x22)}, "key id 1 was not given");
  refused({KeyOf(1, 0x11), KeyOf(2, 0x23)}, "key id 2: not the key");
  refused({KeyOf(1, 0x22), KeyOf(2, 0x11)}, "key id 1, 2: not the key");
  refused({KeyOf(3, 0x11)}, "key id 1, 2 was not given");
  EXPECT_EQ(TryOpen({KeyOf(1, 0x11), KeyOf(1, 0x11)}).code(), StatusCode::kInvalidArgument);
  store_.Open();
  for (const TestObject& object : objects) store_.ExpectHas(object);
}

TEST_F(NvmeEncryptionTest, APlainDirectoryTakesNoKeys) {
  const std::vector<EncryptionKey> keys = std::exchange(store_.keys, {});
  store_.Open();
  const TestObject object = MakeNvmeObject(1, kFrame);
  ASSERT_TRUE(store_.Put(object).ok());
  store_.Close();
  const std::map<std::string, std::string> before = Files();
  const Status status = TryOpen(keys);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("without encryption"));
  EXPECT_TRUE(Files() == before);
  store_.Open();
  store_.ExpectHas(object);
}

TEST_F(NvmeEncryptionTest, ARotationKeepsOldObjectsAndSealsNewOnesWithTheNewKey) {
  store_.Open();
  const std::vector<TestObject> old_objects = PutSome(2);
  store_.Close();
  store_.keys.push_back(KeyOf(5, 0x55));
  store_.Open();
  const std::vector<TestObject> new_objects = PutSome(2, 10);
  for (const TestObject& object : old_objects) store_.ExpectHas(object);
  store_.Reopen();
  for (const TestObject& object : old_objects) store_.ExpectHas(object);
  for (const TestObject& object : new_objects) store_.ExpectHas(object);
  const uint32_t expected[] = {1, 1, 5, 5};
  for (int i = 0; i < 4; ++i) {
    const std::string page = Read(i * kRun, kTierPageBytes);
    EXPECT_EQ(PeekTierPage(std::as_bytes(std::span(page))).value().fields.key_id, expected[i]) << i;
  }
  store_.Close();
  EXPECT_EQ(TryOpen({KeyOf(5, 0x55)}).code(), StatusCode::kPermissionDenied) << "the old key is needed";
  EXPECT_EQ(TryOpen({KeyOf(1, 0x11)}).code(), StatusCode::kPermissionDenied) << "so is the new one";
  const Status lower = TryOpen({KeyOf(1, 0x11), KeyOf(3, 0x33), KeyOf(5, 0x55)});
  EXPECT_EQ(lower.code(), StatusCode::kInvalidArgument) << lower.ToString();
}

TEST_F(NvmeEncryptionTest, AClearedDirectoryKeepsItsKeys) {
  store_.Open();
  PutSome(2);
  ASSERT_TRUE(store_.Clear().ok());
  const TestObject object = MakeNvmeObject(7, kFrame);
  ASSERT_TRUE(store_.Put(object).ok());
  store_.Close();
  EXPECT_EQ(TryOpen({}).code(), StatusCode::kPermissionDenied);
  store_.Open();
  store_.ExpectHas(object);
}

TEST_F(NvmeEncryptionTest, DamageAnywhereInARunDropsTheObject) {
  store_.Open();
  // Tier page: magic, version, header length, directory, generation, frame length, expiry, flags, code,
  // number of extents, key id, salt, an extent, an unused byte, the object's name. Tags. Each piece.
  const std::vector<uint64_t> places = {0,
                                        9,
                                        13,
                                        20,
                                        33,
                                        41,
                                        50,
                                        60,
                                        64,
                                        80,
                                        84,
                                        88,
                                        104,
                                        2000,
                                        4060,
                                        4095,
                                        kTierPageBytes,
                                        kTierPageBytes + 47,
                                        kHead,
                                        kHead + 5000,
                                        kHead + 64 * kKiB,
                                        kHead + 192 * kKiB - 1};
  const std::vector<TestObject> objects = PutSome(places.size());
  for (size_t i = 0; i < places.size(); ++i) Flip(i * kRun + places[i], static_cast<int>(i % 8));
  for (size_t i = 0; i < places.size(); ++i) {
    SCOPED_TRACE(places[i]);
    EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kDataLoss);
    EXPECT_EQ(Corrupt(), static_cast<int64_t>(i + 1));
    EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kNotFound) << "it is dropped";
  }
  store_.Reopen();
  for (const TestObject& object : objects) EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
}

TEST_F(NvmeEncryptionTest, ADamagedPieceIsNeverReported) {
  store_.Open();
  const std::vector<TestObject> objects = PutSome(2);
  Flip(kHead + 64 * kKiB + 100, 3);
  std::vector<std::pair<uint64_t, uint64_t>> reported;
  GetResult result = GetRanges(objects[0], {}, MakeTestBuffer(kFrame), &reported);
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss);
  for (const auto& [offset, n] : reported) EXPECT_TRUE(offset + n <= 64 * kKiB || offset >= 128 * kKiB);
  // A range beside the damage is right, one on it is not.
  Flip(kRun + kHead + 64 * kKiB + 100, 3);
  EXPECT_TRUE(GetRanges(objects[1], {{0, 64 * kKiB, 0}}, MakeTestBuffer(kFrame), &reported).status.ok());
  reported.clear();
  result = GetRanges(objects[1], {{124 * kKiB, 4 * kKiB, 0}}, MakeTestBuffer(kFrame), &reported);
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(reported.empty());
  EXPECT_EQ(store_.GetCode(objects[1]), StatusCode::kNotFound);
}

TEST_F(NvmeEncryptionTest, BytesOfAnotherRunDoNotOpen) {
  store_.Open();
  const std::vector<TestObject> objects = PutSome(5);
  const auto copy = [&](uint64_t from, uint64_t to, uint64_t n) { Write(to, Read(from, n)); };
  // A whole run; pieces with their tags; a piece of the same run at another place.
  copy(0, kRun, kRun);
  copy(kTierPageBytes, 2 * kRun + kTierPageBytes, kRun - kTierPageBytes);
  copy(3 * kRun + kHead, 3 * kRun + kHead + 64 * kKiB, 64 * kKiB);
  copy(3 * kRun + kTierPageBytes, 3 * kRun + kTierPageBytes + 16, 16);
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kDataLoss) << i;
  store_.ExpectHas(objects[0]);
  // An older save of the same object, whole.
  const std::string old_save = Read(4 * kRun, kRun);
  ASSERT_TRUE(store_.Erase(objects[4].id, EraseMode::kEvict).ok());
  const TestObject new_save = MakeNvmeObject(5, kFrame, 1);
  ASSERT_EQ(new_save.id, objects[4].id);
  // The places in front are free again; it takes one of them, and the old bytes come there.
  ASSERT_TRUE(store_.Put(new_save).ok());
  store_.ExpectHas(new_save);
  for (int i = 1; i < 5; ++i) Write(i * kRun, old_save);
  std::vector<std::pair<uint64_t, uint64_t>> reported;
  const GetResult result = GetRanges(new_save, {{0, 4 * kKiB, 0}}, MakeTestBuffer(kFrame), &reported);
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss) << "a range knows its save too";
  EXPECT_TRUE(reported.empty());
}

TEST_F(NvmeEncryptionTest, ALostManifestIsMadeAgainFromSealedRuns) {
  store_.Open();
  std::vector<TestObject> objects = PutSome(4);
  store_.Close();
  store_.keys.push_back(KeyOf(2, 0x22));
  store_.Open();
  objects.push_back(MakeNvmeObject(10, 17 * kMiB));  // two pages of tags, two segments
  ASSERT_TRUE(store_.Put(objects.back()).ok());
  const uint64_t used = store_.backend().used_bytes();
  store_.Close();
  Flip(kHead + 100, 1);                     // in the piece that has the first one's header
  Flip(kRun + kHead + 3 * 64 * kKiB - 1, 1);  // behind the second one's
  fs::remove_all(store_.path() / "manifest");
  EXPECT_EQ(TryOpen({}).code(), StatusCode::kPermissionDenied);
  store_.Open();
  EXPECT_EQ(store_.backend().used_bytes(), used - kRun);
  EXPECT_EQ(store_.GetCode(objects[0]), StatusCode::kNotFound) << "nothing of it is known";
  EXPECT_EQ(store_.GetCode(objects[1]), StatusCode::kDataLoss) << "verified at its first read";
  for (size_t i = 2; i < objects.size(); ++i) store_.ExpectHas(objects[i]);
  const Result<ScanPage> page = store_.backend().Scan("", 10);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->objects.size(), 3u);
  for (const ScannedObject& found : page->objects) {
    for (const TestObject& object : objects) {
      if (object.id == found.id) {
        EXPECT_EQ(*found.meta.content, *object.meta.content);
      }
    }
  }
  EXPECT_TRUE(store_.Flush().ok());
  store_.Reopen();
  for (size_t i = 2; i < objects.size(); ++i) store_.ExpectHas(objects[i]);
  EXPECT_FALSE(IsOnDisk(Text(std::as_bytes(std::span(objects[3].meta.content->tokens).first(4)))));
}

TEST_F(NvmeEncryptionTest, ShortAndInterruptedTransfersChangeNothing) {
  const auto faults = std::make_shared<EngineFaults>();
  store_.Open(128 * kMiB, MakeFaultyEngine(faults));
  std::atomic<int> shortened{0};
  {
    const std::lock_guard lock(faults->mutex);
    faults->change = [&, random = std::mt19937_64(7)](IoCompletion& completion) mutable {
      if (completion.result <= 4096) return;
      const uint64_t turn = random() % 4;
      if (turn == 0) completion.result = -EAGAIN;
      // A part, and never nothing: that is an end of the file, or a full device.
      if (turn == 1) completion.result = 4096 + static_cast<int64_t>(random() % (completion.result - 4096));
      shortened += turn < 2;
    };
  }
  std::vector<TestObject> objects;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    objects.push_back(MakeNvmeObject(seed, (1 + seed * 37 % 100) * 64 * kKiB + 4 * kKiB));
    const Status put = store_.Put(objects.back());
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  for (const TestObject& object : objects) store_.ExpectHas(object);
  EXPECT_GT(shortened, 50);
  EXPECT_EQ(Corrupt(), 0);
}

}  // namespace
}  // namespace terrace
