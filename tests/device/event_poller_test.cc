#include "lib/device/event_poller.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/flag_event.h"
#include "tests/support/eventually.h"
#include "tests/support/simulated_device.h"

namespace terrace {
namespace {

TEST(EventPollerTest, EndsWithoutEvents) { EventPoller poller; }

TEST(EventPollerTest, TellsEachEventOnceWithItsStatus) {
  constexpr size_t kNumEvents = 200;
  std::vector<std::shared_ptr<FlagEvent>> events(kNumEvents);
  std::vector<std::atomic<int>> calls(kNumEvents), errors(kNumEvents);
  EventPoller poller;
  for (size_t i = 0; i < kNumEvents; ++i) {
    events[i] = std::make_shared<FlagEvent>();
    poller.Add(events[i], [&, i](const Status& status) {
      if (status.code() == StatusCode::kInternal) ++errors[i];
      ++calls[i];
    });
  }
  std::vector<size_t> order(kNumEvents);
  for (size_t i = 0; i < kNumEvents; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  for (size_t k = 0; k < kNumEvents; ++k) {
    const size_t i = order[k];
    // Those to come have been told of by nobody.
    if (k % 50 == 0) {
      for (size_t later = k; later < kNumEvents; ++later) ASSERT_EQ(calls[order[later]], 0);
    }
    (i % 5 == 0 ? events[i]->fails : events[i]->is_done) = true;
    if (k % 10 == 0) {
      ASSERT_TRUE(Eventually([&] { return calls[i] == 1; }));
    }
  }
  for (size_t i = 0; i < kNumEvents; ++i) {
    ASSERT_TRUE(Eventually([&] { return calls[i] >= 1; }));
    EXPECT_EQ(errors[i], i % 5 == 0 ? 1 : 0);
  }
  for (size_t i = 0; i < kNumEvents; ++i) EXPECT_EQ(calls[i], 1);
}

TEST(EventPollerTest, DoneRunsOnItsThreadAfterTheEventIsLetGo) {
  auto event = std::make_shared<FlagEvent>();
  const std::weak_ptr<FlagEvent> watched = event;
  event->is_done = true;
  std::string name;
  bool is_gone = false;
  {
    EventPoller poller;
    poller.Add(std::move(event), [&](const Status&) {
      char text[16] = "";
      pthread_getname_np(pthread_self(), text, sizeof(text));
      name = text;
      is_gone = watched.expired();
    });
  }
  EXPECT_EQ(name, "terrace-poll");
  EXPECT_TRUE(is_gone);
}

TEST(EventPollerTest, WhatDoneHoldsIsFreedAfterTheCall) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  EventPoller poller;
  auto event = std::make_shared<FlagEvent>();
  event->is_done = true;
  poller.Add(event, [held = std::move(held)](const Status&) {});
  EXPECT_TRUE(Eventually([&] { return watched.expired(); }));
}

TEST(EventPollerTest, DestructorWaitsForWhatIsPendingAndWhatDoneAdds) {
  auto first = std::make_shared<FlagEvent>();
  auto second = std::make_shared<FlagEvent>();
  std::vector<int> told;
  std::thread device;
  {
    EventPoller poller;
    poller.Add(first, [&](const Status&) {
      told.push_back(1);
      poller.Add(second, [&](const Status&) { told.push_back(2); });
    });
    device = std::thread([&] {
      for (const auto& event : {first, second}) {
        while (event->num_queries < 5) std::this_thread::yield();
        event->is_done = true;
      }
    });
  }
  EXPECT_EQ(told, (std::vector<int>{1, 2}));
  device.join();
}

// Every thread adds chains of events, each added by the `done` of the one before.
TEST(EventPollerTest, TakesEventsFromEveryThreadAndFromDone) {
  constexpr int kNumThreads = 3, kNumChains = 50, kChain = 10;
  std::atomic<int> num_added{0}, num_told{0};
  {
    std::function<void(int)> add;  // is called until the poller's end
    EventPoller poller;
    add = [&](int left) {
      auto event = std::make_shared<FlagEvent>();
      event->is_done = left % 2 == 0;
      ++num_added;
      poller.Add(event, [&, left](const Status& status) {
        EXPECT_TRUE(status.ok());
        ++num_told;
        if (left > 1) add(left - 1);
      });
      event->is_done = true;
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kNumThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kNumChains; ++i) add(kChain);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(num_added, kNumThreads * kNumChains * kChain);
  EXPECT_EQ(num_told, num_added);
}

TEST(EventPollerTest, TellsOfASimulatedDevicesWorkAfterItIsDone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedDeviceOptions options;
    options.seed = seed;
    const auto device = SimulatedDevice::Make(options);
    const std::shared_ptr<Stream> streams[] = {device->EngineStream(), device->MakeStream().value()};
    std::vector<int> done(30);
    std::atomic<int> num_early{0}, num_told{0};
    {
      EventPoller poller;
      for (size_t i = 0; i < done.size(); ++i) {
        Stream& stream = *streams[i % 2];
        device->Enqueue(stream, [&done, i] { done[i] = 1; });
        poller.Add(stream.Record().value(), [&, i](const Status& status) {
          if (!status.ok() || done[i] != 1) ++num_early;
          ++num_told;
        });
      }
    }
    EXPECT_EQ(num_told, 30) << "seed " << seed;
    EXPECT_EQ(num_early, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace terrace
