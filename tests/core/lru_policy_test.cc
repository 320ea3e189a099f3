// The built-in policy: order of eviction, what is not allowed, heat.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "terrace/eviction_policy.h"

namespace terrace {
namespace {

ObjectId Id(uint64_t n, uint16_t group = 0, uint16_t shard = 0) {
  ObjectId id;
  std::memcpy(id.key.bytes.data(), &n, sizeof(n));
  id.part = {group, shard};
  return id;
}

bool Any(const ObjectId&) { return true; }

TEST(LruPolicyTest, TheLeastRecentlyUsedGoesFirst) {
  const auto policy = MakeLruPolicy();
  EXPECT_EQ(policy->Victim(Any), std::nullopt);
  for (uint64_t n = 1; n <= 3; ++n) policy->Insert(Id(n), 1);
  policy->Touch(Id(1));
  policy->Touch(Id(9));  // unknown
  policy->Remove(Id(9));
  EXPECT_EQ(policy->Victim(Any), Id(2));
  EXPECT_EQ(policy->Victim(Any), Id(2)) << "it stays until Remove";
  policy->Remove(Id(2));
  EXPECT_EQ(policy->Victim(Any), Id(3));
  policy->Insert(Id(3), 1);  // again: as a use
  EXPECT_EQ(policy->Victim(Any), Id(1));
}

TEST(LruPolicyTest, PartsOfAChunkAreObjectsOfTheirOwn) {
  const auto policy = MakeLruPolicy();
  for (uint16_t group = 0; group < 3; ++group) {
    for (uint16_t shard = 0; shard < 3; ++shard) policy->Insert(Id(1, group, shard), 1);
  }
  policy->Remove(Id(1, 0, 0));
  EXPECT_EQ(policy->Victim(Any), Id(1, 0, 1));
}

TEST(LruPolicyTest, WhatIsNotAllowedIsMetOnceAndThenHot) {
  const auto policy = MakeLruPolicy();
  for (uint64_t n = 0; n < 100; ++n) policy->Insert(Id(n), 1);
  int asked = 0;
  const auto from_50 = [&](const ObjectId& id) {
    ++asked;
    return id.key.Prefix64() >= 50;
  };
  for (uint64_t n = 50; n < 100; ++n) {
    const auto victim = policy->Victim(from_50);
    ASSERT_EQ(victim, Id(n));
    policy->Remove(*victim);
  }
  EXPECT_EQ(asked, 100) << "the fifty that are in use are asked for once, not for every victim";
  asked = 0;
  EXPECT_EQ(policy->Victim(from_50), std::nullopt);
  EXPECT_EQ(asked, 50) << "one round";
  EXPECT_EQ(policy->Victim(Any), Id(0)) << "in their old order";
}

TEST(LruPolicyTest, HeatIsTheOrderOfTheLastUses) {
  const auto policy = MakeLruPolicy();
  for (uint64_t n = 1; n <= 3; ++n) policy->Insert(Id(n), 1);
  policy->Touch(Id(1));
  EXPECT_LT(policy->Heat(Id(2)), policy->Heat(Id(3)));
  EXPECT_LT(policy->Heat(Id(3)), policy->Heat(Id(1)));
  EXPECT_GT(policy->Heat(Id(2)), 0u);
  EXPECT_EQ(policy->Heat(Id(4)), 0u);
}

TEST(LruPolicyTest, BehavesAsAPlainList) {
  std::mt19937 random(3);
  const auto policy = MakeLruPolicy();
  std::deque<ObjectId> plain;  // coldest first
  for (int step = 0; step < 20000; ++step) {
    const ObjectId id = Id(random() % 300, random() % 2);
    const auto at = std::find(plain.begin(), plain.end(), id);
    const bool is_known = at != plain.end();
    switch (random() % 4) {
      case 0:
        if (is_known) plain.erase(at);
        plain.push_back(id);
        policy->Insert(id, 1);
        break;
      case 1:
        if (is_known) {
          plain.erase(at);
          plain.push_back(id);
        }
        policy->Touch(id);
        break;
      case 2:
        if (is_known) plain.erase(at);
        policy->Remove(id);
        break;
      default: {
        const uint16_t group = random() % 2;
        const auto allowed = [&](const ObjectId& asked) { return asked.part.group == group; };
        std::optional<ObjectId> victim;
        for (size_t left = plain.size(); left > 0 && !victim; --left) {
          if (allowed(plain.front())) {
            victim = plain.front();
          } else {
            plain.push_back(plain.front());
            plain.pop_front();
          }
        }
        ASSERT_EQ(policy->Victim(allowed), victim) << step;
      }
    }
    if (plain.size() > 1) {
      const size_t i = random() % (plain.size() - 1);
      ASSERT_LT(policy->Heat(plain[i]), policy->Heat(plain[i + 1])) << step;
    }
  }
}

// A policy of an outsider that knows nothing of heat.
class AnyOrder : public EvictionPolicy {
 public:
  void Insert(const ObjectId&, uint64_t) override {}
  void Touch(const ObjectId&) override {}
  void Remove(const ObjectId&) override {}
  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>&) override { return {}; }
};

TEST(LruPolicyTest, APolicyMayLackHeat) { EXPECT_EQ(AnyOrder().Heat(Id(1)), 0u); }

}  // namespace
}  // namespace terrace
