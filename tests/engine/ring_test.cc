// Ring and Batch: under the explorer, every schedule with a few deviations; on threads, many items.
#include "sluice/engine/detail/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "explore_search.h"
#include "sluice/engine/detail/policy.h"
#include "sluice/engine/detail/slot.h"

namespace sluice {
namespace {

using detail::ExplorePolicy;
using detail::Explorer;

struct alignas(64) Item {
  int value = 0;
  ExplorePolicy::Atomic<int> written{0};
};

/// Each of `items` once, each consumer's in order, and what the producer wrote before is seen.
struct Consumers {
  std::array<std::vector<int>, 2> got;
  bool saw_all = true;
  void took(std::size_t who, Item* const* items, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      got[who].push_back(items[i]->value);
      saw_all = saw_all && items[i]->written.load(std::memory_order_relaxed) == 1;
    }
  }
  bool good(int last) const {
    std::vector<int> all = got[0];
    all.insert(all.end(), got[1].begin(), got[1].end());
    std::sort(all.begin(), all.end());
    bool once = static_cast<int>(all.size()) == last;
    for (int i = 0; once && i < last; ++i) once = all[static_cast<std::size_t>(i)] == i + 1;
    return once && saw_all && std::is_sorted(got[0].begin(), got[0].end()) &&
           std::is_sorted(got[1].begin(), got[1].end());
  }
};

TEST(Ring, EveryScheduleOfAProducerAndTwoConsumersOverSomeLaps) {
  constexpr int kItems = 5;  // two laps and a half
  const testing::Search search = testing::every_schedule(3, [&] {
    detail::Ring<ExplorePolicy, Item, 2> ring;
    std::array<Item, kItems> items;
    Consumers consumers;
    const auto consume = [&](std::size_t who) {
      Item* out[2];
      for (int i = 0; i < 2; ++i) consumers.took(who, out, ring.take(out, 2, who == 0 ? 1 : 2));
    };
    EXPECT_TRUE(Explorer::get().run({[&] {
                                       for (int i = 0; i < kItems; ++i) {
                                         Item& item = items[static_cast<std::size_t>(i)];
                                         item.value = i + 1;
                                         item.written.store(1, std::memory_order_relaxed);
                                         if (ring.put(&item)) continue;
                                         Item* mine = &item;  // full: it does it itself
                                         consumers.took(0, &mine, 1);
                                         std::sort(consumers.got[0].begin(), consumers.got[0].end());
                                       }
                                     },
                                     [&] { consume(1); }, [&] { consume(0); }}));
    Item* out[2];
    while (const std::size_t count = ring.take(out, 2, 1)) {
      EXPECT_FALSE(consumers.got[0].size() > kItems);
      consumers.took(0, out, count);
    }
    EXPECT_TRUE(ring.empty());
    std::sort(consumers.got[0].begin(), consumers.got[0].end());
    return consumers.good(kItems);
  });
  EXPECT_EQ(search.bad, 0u) << search.first_bad;
  EXPECT_FALSE(search.unsteady);
  EXPECT_GT(search.distinct, 100u);
}

TEST(Ring, WhatWasPutBeforeAHeavyFenceIsSeenAfterIt) {
  // As a drainer that leaves and a pusher: one of the two sees the other.
  const testing::Search search = testing::every_schedule(4, [&] {
    detail::Ring<ExplorePolicy, Item, 2> ring;
    Item item;
    ExplorePolicy::Atomic<int> here{1};
    bool pusher_saw = false, worker_saw = false;
    EXPECT_TRUE(Explorer::get().run({[&] {
                                       ring.put(&item);
                                       ExplorePolicy::light_fence();
                                       pusher_saw = here.load(std::memory_order_relaxed) == 0;
                                     },
                                     [&] {
                                       here.store(0, std::memory_order_relaxed);
                                       ExplorePolicy::heavy_fence();
                                       worker_saw = !ring.empty();
                                     }}));
    return pusher_saw || worker_saw;
  });
  EXPECT_EQ(search.bad, 0u) << search.first_bad;
}

TEST(Batch, EveryScheduleOfItsOwnerAndAThief) {
  using Run = detail::Runnable<ExplorePolicy>;
  const testing::Search search = testing::every_schedule(3, [&] {
    detail::Batch<ExplorePolicy> batch;
    batch.begin_at(~std::uint32_t{0});
    std::array<Run, 4> ops;
    std::array<int, 4> taken{};
    const auto take = [&] {
      Run* const op = batch.take();
      if (op) ++taken[static_cast<std::size_t>(op - ops.data())];
      return op != nullptr;
    };
    EXPECT_TRUE(Explorer::get().run({[&] {
                                       Run* const two[] = {&ops[0], &ops[1]};
                                       batch.put(two, 2);
                                       take();
                                       batch.append(&ops[2]);
                                       batch.append(&ops[3]);
                                       while (take()) {
                                       }
                                     },
                                     [&] { take(), take(); }}));
    return taken == std::array<int, 4>{1, 1, 1, 1};
  });
  EXPECT_EQ(search.bad, 0u) << search.first_bad;
}

/// A full batch of which a thief takes the first op: the owner may fill that place at once, and the thief has read it.
TEST(Batch, APlaceIsFilledAgainBehindTheThief) {
  using Run = detail::Runnable<ExplorePolicy>;
  constexpr std::size_t kSize = detail::Batch<ExplorePolicy>::kSize;
  const testing::Search search = testing::every_schedule(2, [&] {
    detail::Batch<ExplorePolicy> batch;
    batch.begin_at(0);
    std::array<Run, kSize + 1> ops;
    std::array<Run*, kSize> full{};
    for (std::size_t i = 0; i < kSize; ++i) full[i] = &ops[i];
    batch.put(full.data(), kSize);
    const Run* stolen = nullptr;
    bool filled = false;
    EXPECT_TRUE(Explorer::get().run({[&] { filled = batch.append(&ops[kSize]); }, [&] { stolen = batch.take(); }}));
    return stolen == &ops[0] && batch.take() == &ops[1] && (filled || batch.append(&ops[kSize]));
  });
  EXPECT_EQ(search.bad, 0u) << search.first_bad;
}

TEST(Ring, ManyItemsThroughManyConsumers) {
  struct alignas(64) Plain {
    std::uint32_t value = 0;
  };
  constexpr std::uint32_t kItems = 200'000;
  std::vector<Plain> items(kItems);
  detail::Ring<detail::SystemPolicy, Plain, 64> ring;
  std::vector<std::atomic<int>> taken(kItems);
  std::atomic<bool> over{false};
  const auto consume = [&](std::size_t share) {
    Plain* out[16];
    for (;;) {
      const bool last = over.load();
      const std::size_t count = ring.take(out, 16, share);
      for (std::size_t i = 0; i < count; ++i) taken[out[i]->value].fetch_add(1);
      if (count == 0 && last) return;
      if (count == 0) std::this_thread::yield();
    }
  };
  std::vector<std::thread> consumers;
  for (std::size_t share : {1u, 2u, 4u}) consumers.emplace_back(consume, share);
  for (std::uint32_t i = 0; i < kItems; ++i) {
    items[i].value = i;
    while (!ring.put(&items[i])) std::this_thread::yield();
  }
  over = true;
  for (auto& t : consumers) t.join();
  for (std::uint32_t i = 0; i < kItems; ++i) ASSERT_EQ(taken[i].load(), 1) << i;
}

// ---- the fences that the protocol's hot path relies on

TEST(AsymmetricFences, OneOfTwoSeesTheOtherAndTwoLightOnesDoNothing) {
  const auto both_blind = [](bool heavy) {
    bool blind = false;
    testing::every_schedule(4, [&] {
      ExplorePolicy::Atomic<int> x{0}, y{0};
      int r1 = -1, r2 = -1;
      EXPECT_TRUE(Explorer::get().run({[&] {
                                         x.store(1, std::memory_order_relaxed);
                                         ExplorePolicy::light_fence();
                                         r1 = y.load(std::memory_order_relaxed);
                                       },
                                       [&] {
                                         y.store(1, std::memory_order_relaxed);
                                         heavy ? ExplorePolicy::heavy_fence() : ExplorePolicy::light_fence();
                                         r2 = x.load(std::memory_order_relaxed);
                                       }}));
      blind = blind || (r1 == 0 && r2 == 0);
      return true;
    });
    return blind;
  };
  EXPECT_FALSE(both_blind(true));
  EXPECT_TRUE(both_blind(false));
}

TEST(AsymmetricFences, OnThreads) {
  // A machine's own reordering: thousands of rounds of the same.
  detail::SystemPolicy::prepare_fences();
  std::atomic<int> round{0}, x{0}, y{0}, r1{0}, done{0};
  constexpr int kRounds = 2'000;
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round.load() < i) detail::SystemPolicy::pause();
      x.store(i, std::memory_order_relaxed);
      detail::SystemPolicy::light_fence();
      r1.store(y.load(std::memory_order_relaxed), std::memory_order_relaxed);
      done.store(i);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    round.store(i);
    y.store(i, std::memory_order_relaxed);
    detail::SystemPolicy::heavy_fence();
    const int r2 = x.load(std::memory_order_relaxed);
    while (done.load() < i) std::this_thread::yield();
    EXPECT_TRUE(r1.load() == i || r2 == i) << "round " << i;
  }
  other.join();
}

}  // namespace
}  // namespace sluice
