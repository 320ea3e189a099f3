// A stripe over members that keep their objects in memory: which member has what, and what happens when the
// set of members changes.
#include "backends/nvme/striped_backend.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "backends/nvme/tests/nvme_test_store.h"
#include "lib/wire/tier_page.h"
#include "tests/conformance/kept_backend.h"

namespace terrace {
namespace {

ChunkKey KeyOf(uint64_t number) { return Sha256("key " + std::to_string(number)); }

class StripeTest : public ::testing::Test {
 protected:
  struct Device {
    uint64_t seed;
    std::shared_ptr<KeptDisk> disk = std::make_shared<KeptDisk>();
  };

  void Open(const std::vector<Device*>& devices) {
    backend_.reset();
    std::vector<StripeMember> members;
    for (Device* device : devices) {
      StripeMember member{.name = "device " + std::to_string(device->seed), .seed = device->seed};
      for (const auto& [id, object] : device->disk->objects) member.ids.push_back(id);
      member.backend = std::make_unique<KeptBackend>(device->disk, 256 * kMiB);
      members.push_back(std::move(member));
    }
    backend_ = MakeStripedBackend("kept", std::move(members));
    metrics_ = std::make_unique<MetricRegistry>();
    ASSERT_TRUE(backend_->Attach({Clock::Real(), metrics_.get(), log_.get(), {}}).ok());
  }
  std::vector<Status> Put(const std::vector<TestObject>& objects) {
    Answers<Status> answers;
    std::vector<PutOp> ops;
    for (const TestObject& object : objects) ops.push_back(PutOpOf(object));
    backend_->Put(std::move(ops), answers.Callback());
    return answers.Wait();
  }
  std::vector<Status> Erase(std::vector<ObjectId> ids, EraseMode mode) {
    Answers<Status> answers;
    backend_->Erase(std::move(ids), mode, answers.Callback());
    return answers.Wait();
  }
  // Of each object: found with its own bytes, or a miss.
  std::vector<bool> Found(const std::vector<TestObject>& objects) {
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    std::vector<BufferRef> dsts;
    for (const TestObject& object : objects) {
      dsts.push_back(MakeTestBuffer(object.meta.frame_bytes));
      ops.push_back(GetOpOf(object, dsts.back()));
    }
    backend_->Get(std::move(ops), answers.Callback());
    const std::vector<GetResult> results = answers.Wait();
    std::vector<bool> found;
    for (size_t i = 0; i < results.size(); ++i) {
      found.push_back(results[i].status.ok());
      if (found.back()) {
        EXPECT_TRUE(objects[i].Holds(dsts[i])) << i;
      } else {
        EXPECT_EQ(results[i].status.code(), StatusCode::kNotFound) << i;
      }
    }
    return found;
  }
  std::map<ObjectId, int> Scanned() {
    std::map<ObjectId, int> times;
    std::string cursor;
    do {
      Result<ScanPage> page = backend_->Scan(cursor, 7);
      EXPECT_TRUE(page.ok());
      EXPECT_LE(page->objects.size(), 7u);
      for (const ScannedObject& object : page->objects) ++times[object.id];
      cursor = page->next_cursor;
    } while (!cursor.empty());
    return times;
  }
  static std::vector<TestObject> Objects(uint64_t from, uint64_t count) {
    std::vector<TestObject> objects;
    for (uint64_t i = 0; i < count; ++i) objects.push_back(MakeNvmeObject(from + i, 8 * kKiB));
    return objects;
  }

  Device a_{11};
  Device b_{22};
  Device c_{33};
  std::unique_ptr<MetricRegistry> metrics_;
  std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<Backend> backend_;
};

TEST(StripeOwnerTest, SharesAreEvenAndAMemberMovesOnlyItsOwn) {
  constexpr int kKeys = 30'000;
  const std::vector<uint64_t> three = {11, 22, 33};
  const std::vector<uint64_t> four = {11, 22, 33, 44};
  std::vector<int> shares(4);
  int moved = 0;
  for (int i = 0; i < kKeys; ++i) {
    const size_t before = StripeOwner(three, KeyOf(i));
    const size_t after = StripeOwner(four, KeyOf(i));
    ++shares[after];
    if (before != after) {
      ++moved;
      EXPECT_EQ(after, 3u);
    }
  }
  EXPECT_EQ(moved, shares[3]);
  for (const int share : shares) EXPECT_NEAR(share, kKeys / 4, kKeys / 4 / 20);
}

TEST_F(StripeTest, EveryObjectIsInItsOwnerAloneAndBatchesKeepTheirOrder) {
  Open({&a_, &b_});
  std::vector<TestObject> objects = Objects(1, 40);
  for (const Status& status : Put(objects)) EXPECT_TRUE(status.ok());
  EXPECT_GT(a_.disk->objects.size(), 8u);
  EXPECT_GT(b_.disk->objects.size(), 8u);
  EXPECT_EQ(a_.disk->objects.size() + b_.disk->objects.size(), 40u);
  // Misses between hits stay where they are.
  std::vector<TestObject> mixed;
  for (size_t i = 0; i < objects.size(); ++i) {
    mixed.push_back(objects[i]);
    mixed.push_back(MakeNvmeObject(1000 + i, 8 * kKiB));
  }
  const std::vector<bool> found = Found(mixed);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i % 2 == 0) << i;
  const std::map<ObjectId, int> scanned = Scanned();
  EXPECT_EQ(scanned.size(), 40u);
  for (const auto& [id, times] : scanned) EXPECT_EQ(times, 1);
  EXPECT_EQ(backend_->used_bytes(), a_.disk->used_bytes + b_.disk->used_bytes);
}

TEST_F(StripeTest, ALostMemberLosesOnlyItsOwn) {
  Open({&a_, &b_});
  const std::vector<TestObject> objects = Objects(1, 40);
  Put(objects);
  RootRecord root;
  root.root = KeyOf(5);
  ASSERT_TRUE(backend_->PutRoot(root).ok());
  for (Device* left : {&a_, &b_}) {
    Open({left});
    const std::vector<bool> found = Found(objects);
    for (size_t i = 0; i < objects.size(); ++i) {
      EXPECT_EQ(found[i], left->disk->objects.contains(objects[i].id)) << i;
    }
    EXPECT_EQ(backend_->ScanRoots()->size(), 1u);
  }
  Open({&b_, &a_});
  EXPECT_EQ(Found(objects), std::vector<bool>(40, true)) << "whatever the order";
  EXPECT_EQ(backend_->ScanRoots()->size(), 1u);
}

TEST_F(StripeTest, WhatLiesElsewhereSinceAChangeIsFound) {
  Open({&a_, &b_});
  const std::vector<TestObject> objects = Objects(1, 60);
  Put(objects);
  Open({&a_, &b_, &c_});
  EXPECT_EQ(Found(objects), std::vector<bool>(60, true));
  for (const Status& status : Put(objects)) EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Scanned().size(), 60u);
  // Evicted and put again: in its owner now.
  std::vector<ObjectId> ids;
  for (const TestObject& object : objects) ids.push_back(object.id);
  for (const Status& status : Erase(ids, EraseMode::kEvict)) EXPECT_TRUE(status.ok());
  EXPECT_EQ(Found(objects), std::vector<bool>(60, false));
  for (const Status& status : Put(objects)) EXPECT_TRUE(status.ok());
  EXPECT_GT(c_.disk->objects.size(), 8u);
  EXPECT_EQ(a_.disk->objects.size() + b_.disk->objects.size() + c_.disk->objects.size(), 60u);
  EXPECT_EQ(Found(objects), std::vector<bool>(60, true));
}

TEST_F(StripeTest, OfTwoCopiesOneStaysAndAnEraseTakesBoth) {
  const std::vector<TestObject> objects = Objects(1, 40);
  Open({&a_});
  Put(objects);
  Open({&b_});  // the other one was missing
  Put(objects);
  Open({&a_, &b_});
  EXPECT_EQ(Found(objects), std::vector<bool>(40, true));
  EXPECT_TRUE(backend_->Close().ok()) << "which waits for the second copies to be gone";
  EXPECT_EQ(a_.disk->objects.size() + b_.disk->objects.size(), 40u);
  // A crash may bring an evicted copy back: erased is erased in both.
  a_.disk->objects.clear();
  b_.disk->objects.clear();
  Open({&a_});
  Put(objects);
  Open({&b_});
  Put(objects);
  std::vector<ObjectId> ids;
  for (const TestObject& object : objects) ids.push_back(object.id);
  ids.push_back(MakeNvmeObject(999, 8 * kKiB).id);
  Open({&a_, &b_});
  const std::vector<Status> erased = Erase(ids, EraseMode::kErase);
  for (size_t i = 0; i < 40; ++i) EXPECT_TRUE(erased[i].ok()) << i;
  EXPECT_EQ(erased[40].code(), StatusCode::kNotFound);
  EXPECT_TRUE(a_.disk->objects.empty());
  EXPECT_TRUE(b_.disk->objects.empty());
}

TEST_F(StripeTest, ClearAndFlushReachEveryMember) {
  Open({&a_, &b_});
  Put(Objects(1, 20));
  Answers<Status> flushed;
  backend_->Flush([callback = flushed.Callback()](const Status& status) { callback({&status, 1}); });
  EXPECT_TRUE(flushed.Wait()[0].ok());
  Answers<Status> cleared;
  backend_->Clear([callback = cleared.Callback()](const Status& status) { callback({&status, 1}); });
  EXPECT_TRUE(cleared.Wait()[0].ok());
  EXPECT_TRUE(a_.disk->objects.empty());
  EXPECT_TRUE(b_.disk->objects.empty());
  EXPECT_EQ(backend_->Scan("\x07", 5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(backend_->Close().ok());
}

}  // namespace
}  // namespace terrace
