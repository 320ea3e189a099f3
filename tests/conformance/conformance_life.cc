// How objects end, and what outlives a close: erase, clear, scan, roots, reopen, flush.
#include <algorithm>
#include <map>

#include "tests/conformance/conformance_run.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

std::vector<TestObject> PutMany(ConformanceRun& run, size_t n, uint64_t first_seed = 1000) {
  std::vector<TestObject> objects;
  std::vector<PutOp> puts;
  for (size_t i = 0; i < n; ++i) {
    const ObjectPart part{static_cast<uint16_t>(i % 3), static_cast<uint16_t>(i % 2)};
    objects.push_back(run.Object(first_seed + i, run.small_bytes() + (i % 7) * 4 * kKiB, 0, part));
    puts.push_back(PutOpOf(objects.back()));
  }
  for (const Status& status : run.Put(std::move(puts))) EXPECT_TRUE(status.ok()) << status.ToString();
  return objects;
}

void CheckErase(ConformanceRun& run, EraseMode mode) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, kMiB);
  const TestObject kept = run.Object(2, kMiB);
  const TestObject absent = run.Object(3, kMiB);
  const uint64_t used_before = run.backend().used_bytes();
  ASSERT_TRUE(run.PutOne(object).ok());
  if (!run.fixture().deviations.usage_is_late) {
    EXPECT_GE(run.backend().used_bytes(), used_before + kMiB) << "capacity is physical bytes";
  }
  ASSERT_TRUE(run.PutOne(kept).ok());
  const std::vector<Status> erased = run.Erase({absent.id, object.id, absent.id}, mode);
  EXPECT_EQ(erased[0].code(), StatusCode::kNotFound);
  EXPECT_TRUE(erased[1].ok()) << erased[1].ToString();
  EXPECT_EQ(erased[2].code(), StatusCode::kNotFound);
  run.ExpectMisses(object);
  run.ExpectHas(kept);
  EXPECT_EQ(run.EraseOne(object, mode).code(), StatusCode::kNotFound) << "a second time";
  // Its place is free for another save of it.
  const TestObject again = run.Object(1, kMiB, 1);
  ASSERT_TRUE(run.PutOne(again).ok());
  run.ExpectHas(again);
}
void EraseDropsForEver(ConformanceRun& run) { CheckErase(run, EraseMode::kErase); }
void EvictDrops(ConformanceRun& run) { CheckErase(run, EraseMode::kEvict); }

void EqualIdsInOneEraseAreErasedOnce(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 64 * kKiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  const std::vector<Status> erased = run.Erase({object.id, object.id}, EraseMode::kErase);
  EXPECT_NE(erased[0].ok(), erased[1].ok()) << erased[0].ToString() << ", " << erased[1].ToString();
  run.ExpectMisses(object);
}

void ErasedDoesNotComeBack(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject erased = run.Object(1, 256 * kKiB);
  const TestObject replaced = run.Object(2, 256 * kKiB);
  const TestObject replacement = run.Object(2, 256 * kKiB, 1);
  const TestObject kept = run.Object(3, 256 * kKiB);
  for (const TestObject* object : {&erased, &replaced, &kept}) ASSERT_TRUE(run.PutOne(*object).ok());
  ASSERT_TRUE(run.Flush().ok());
  ASSERT_TRUE(run.EraseOne(erased, EraseMode::kErase).ok());
  ASSERT_TRUE(run.EraseOne(replaced, EraseMode::kErase).ok());
  ASSERT_TRUE(run.PutOne(replacement).ok());
  ASSERT_TRUE(run.Reopen());
  run.ExpectMisses(erased);
  if (!run.fixture().durable) return run.ExpectMisses(kept);
  run.ExpectHas(kept);
  run.ExpectHas(replacement);
  EXPECT_EQ(run.ScanAll(100).size(), 2u);
}

void ClearDropsEverything(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const std::vector<TestObject> objects = PutMany(run, 20);
  ASSERT_EQ(run.ScanAll(100).size(), 20u);
  const Status cleared = run.Clear();
  ASSERT_TRUE(cleared.ok()) << cleared.ToString();
  for (const TestObject& object : objects) run.ExpectMisses(object);
  EXPECT_TRUE(run.ScanAll(100).empty());
  // And goes on.
  const TestObject after = run.Object(1000, run.small_bytes(), 1);
  ASSERT_TRUE(run.PutOne(after).ok());
  run.ExpectHas(after);
  ASSERT_TRUE(run.Reopen());
  if (run.fixture().durable) run.ExpectHas(after);
  EXPECT_EQ(run.ScanAll(100).size(), run.fixture().durable ? 1u : 0u) << "what was cleared is back";
}

void ClearOfNothingSucceeds(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  EXPECT_TRUE(run.Clear().ok());
  EXPECT_TRUE(run.Clear().ok());
}

void ExpectMeta(const ConformanceRun& run, const ObjectMeta& found, const ObjectMeta& put,
                ScanDetail detail) {
  EXPECT_EQ(found.root, put.root);
  EXPECT_EQ(found.parent, put.parent);
  EXPECT_EQ(found.first_token, put.first_token);
  EXPECT_EQ(found.frame_bytes, put.frame_bytes);
  EXPECT_EQ(found.payload_bytes, put.payload_bytes);
  EXPECT_EQ(found.codec, put.codec);
  EXPECT_EQ(found.flags, put.flags);
  EXPECT_EQ(found.priority, put.priority);
  EXPECT_EQ(found.expiry, put.expiry);
  if (run.fixture().deviations.scan_without_content) return;
  if (detail == ScanDetail::kPlaces && found.content == nullptr) return;
  ASSERT_NE(found.content, nullptr);
  EXPECT_EQ(found.content->tokens, put.content->tokens);
  EXPECT_EQ(found.content->items, put.content->items);
}

void ExpectScanOf(ConformanceRun& run, const std::vector<TestObject>& objects, size_t limit,
                  ScanDetail detail) {
  SCOPED_TRACE(limit);
  SCOPED_TRACE(detail == ScanDetail::kPlaces ? "places" : "contents");
  std::map<ObjectId, ObjectMeta> found;
  for (const ScannedObject& object : run.ScanAll(limit, detail)) {
    EXPECT_TRUE(found.emplace(object.id, object.meta).second) << "seen twice";
  }
  EXPECT_EQ(found.size(), objects.size());
  for (const TestObject& object : objects) {
    const auto at = found.find(object.id);
    if (at == found.end()) {
      ADD_FAILURE() << "not seen: " << object.id.key.ToHex();
      continue;
    }
    ExpectMeta(run, at->second, object.meta, detail);
  }
}

void ExpectScan(ConformanceRun& run, const std::vector<TestObject>& objects, size_t limit) {
  ExpectScanOf(run, objects, limit, ScanDetail::kContents);
  ExpectScanOf(run, objects, limit, ScanDetail::kPlaces);
}

void ScanSeesEveryObjectOnce(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  ExpectScan(run, {}, 10);
  const std::vector<TestObject> objects = PutMany(run, 50);
  for (const size_t limit : {1, 3, 50, 1000}) ExpectScan(run, objects, limit);
  EXPECT_EQ(run.backend().Scan("", 0).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(run.Reopen());
  ExpectScan(run, run.fixture().durable ? objects : std::vector<TestObject>(), 7);
}

void ScanKeepsItsPlaceAmongChanges(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const std::vector<TestObject> stay = PutMany(run, 24, 1000);
  std::vector<TestObject> change = PutMany(run, 24, 2000);
  std::map<ObjectId, int> seen;
  std::string cursor;
  size_t step = 0;
  do {
    // One cursor for both.
    const ScanDetail detail = step % 2 == 0 ? ScanDetail::kPlaces : ScanDetail::kContents;
    Result<ScanPage> page = run.backend().Scan(cursor, 4, detail);
    ASSERT_TRUE(page.ok()) << page.status().ToString();
    for (const ScannedObject& object : page->objects) ++seen[object.id];
    cursor = page->next_cursor;
    if (step < change.size()) {
      ASSERT_TRUE(run.EraseOne(change[step], EraseMode::kEvict).ok());
    }
    ASSERT_TRUE(run.PutOne(run.Object(3000 + step, run.small_bytes())).ok());
    ASSERT_LT(++step, 1000u);
  } while (!cursor.empty());
  for (const TestObject& object : stay) EXPECT_EQ(seen[object.id], 1) << object.id.key.ToHex();
}

void RootsAreKept(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const std::vector<RootRecord> before = run.backend().ScanRoots().value();
  EXPECT_TRUE(before.empty() || run.fixture().deviations.checks_roots);
  std::vector<RootRecord> records(3);
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].root.bytes.fill(std::byte(i + 1));
    records[i].spec = std::string("spec\0with zero ", 15) + std::to_string(i);
    if (run.fixture().deviations.checks_roots) {
      records[i].spec = KvSpec{.model_id = "model " + std::to_string(i)}.SerializeIdentity();
    }
    records[i].adapters = i == 0 ? "" : std::string(36, static_cast<char>(i));
    records[i].salt_sha256.bytes.fill(std::byte(0x40 * i));
    const Status put = run.backend().PutRoot(records[i]);
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  ASSERT_TRUE(run.backend().PutRoot(records[1]).ok()) << "an equal record is free";
  auto scan = [&] {
    Result<std::vector<RootRecord>> roots = run.backend().ScanRoots();
    EXPECT_TRUE(roots.ok()) << roots.status().ToString();
    if (!roots.ok()) return std::vector<RootRecord>();
    std::erase_if(*roots, [&](const RootRecord& record) {
      return std::find(before.begin(), before.end(), record) != before.end();
    });
    std::sort(roots->begin(), roots->end(), [](const auto& a, const auto& b) { return a.root < b.root; });
    return *roots;
  };
  EXPECT_EQ(scan(), records);
  ASSERT_TRUE(run.Reopen());
  EXPECT_EQ(scan(), run.fixture().durable ? records : std::vector<RootRecord>());
}

void ReopenFindsEverything(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  EXPECT_EQ(run.backend().capabilities().is_durable, run.fixture().durable);
  std::vector<TestObject> objects = PutMany(run, 30);
  for (const uint64_t bytes : {kMiB, 5764 * kKiB, 3 * kMiB + 4 * kKiB}) {
    objects.push_back(run.Object(bytes, bytes));
    ASSERT_TRUE(run.PutOne(objects.back()).ok());
  }
  const uint64_t used = run.backend().used_bytes();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(run.Reopen());
    if (!run.fixture().durable) {
      for (const TestObject& object : objects) run.ExpectMisses(object);
      EXPECT_EQ(run.backend().used_bytes(), 0u);
      return;
    }
    for (const TestObject& object : objects) {
      run.ExpectHas(object);
      EXPECT_EQ(run.PutOne(object).code(), StatusCode::kAlreadyExists);
    }
    if (run.fixture().deviations.usage_is_late) continue;
    // The manifest may be smaller or larger by a little; objects are not counted twice or lost.
    EXPECT_GT(run.backend().used_bytes() + 4 * kMiB, used);
    EXPECT_LT(run.backend().used_bytes(), used + 4 * kMiB);
  }
}

void FlushedSurvivesDestructionWithoutClose(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const std::vector<TestObject> objects = PutMany(run, 10);
  const Status flushed = run.Flush();
  ASSERT_TRUE(flushed.ok()) << flushed.ToString();
  run.Destroy();
  ASSERT_TRUE(run.OpenRoomy());
  for (const TestObject& object : objects) {
    if (run.fixture().durable)
      run.ExpectHas(object);
    else
      run.ExpectMisses(object);
  }
}

constexpr ConformanceCase kCases[] = {
    {"EraseDropsForEver", EraseDropsForEver},
    {"EvictDrops", EvictDrops},
    {"EqualIdsInOneEraseAreErasedOnce", EqualIdsInOneEraseAreErasedOnce},
    {"ErasedDoesNotComeBack", ErasedDoesNotComeBack},
    {"ClearDropsEverything", ClearDropsEverything},
    {"ClearOfNothingSucceeds", ClearOfNothingSucceeds},
    {"ScanSeesEveryObjectOnce", ScanSeesEveryObjectOnce},
    {"ScanKeepsItsPlaceAmongChanges", ScanKeepsItsPlaceAmongChanges},
    {"RootsAreKept", RootsAreKept},
    {"ReopenFindsEverything", ReopenFindsEverything},
    {"FlushedSurvivesDestructionWithoutClose", FlushedSurvivesDestructionWithoutClose},
};

}  // namespace

std::span<const ConformanceCase> LifeCases() { return kCases; }

}  // namespace terrace
