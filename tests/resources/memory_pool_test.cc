#include "sluice/resources/memory_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <latch>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/engine/errors.h"
#include "sluice/resources/object_pool.h"
#include "sluice/resources/scratch.h"

namespace sluice {
namespace {

TEST(MemoryPool, ClassesHoldTheirSizesAndWasteAtMostAQuarter) {
  std::size_t last = 0;
  for (std::size_t bytes = 1; bytes < (1U << 20); bytes += 1 + bytes / 37) {
    const std::size_t size = MemoryPool::class_size(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_GE(size, last);
    EXPECT_EQ(size % MemoryPool::kAlignment, 0U);
    if (bytes > 1024) {
      EXPECT_LE(static_cast<double>(size), 1.26 * static_cast<double>(bytes));
    }
    last = size;
  }
  EXPECT_EQ(MemoryPool::class_size(1 << 20), 1U << 20);
  EXPECT_EQ(MemoryPool::class_size((1 << 20) + 1), (5U << 20) / 4);
}

TEST(MemoryPool, BlocksComeBack) {
  MemoryPool pool;
  void* a = pool.allocate(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % MemoryPool::kAlignment, 0U);
  pool.deallocate(a, 1000);
  EXPECT_EQ(pool.stats().in_use, 0U);
  EXPECT_EQ(pool.stats().cached, 1024U);
  EXPECT_EQ(pool.allocate(900), a);
  EXPECT_EQ(pool.stats().hits, 1U);
  EXPECT_EQ(pool.stats().peak, 1024U);
  pool.deallocate(a, 900);
  EXPECT_EQ(pool.trim(), 1024U);
  EXPECT_EQ(pool.stats().cached, 0U);
}

TEST(MemoryPool, EmptiesItsCacheBeforeItGivesUp) {
  MemoryPool pool(4096);
  void* a = pool.allocate(4096);
  EXPECT_THROW(pool.allocate(64), std::bad_alloc);
  pool.deallocate(a, 4096);
  void* b = pool.allocate(64);  // another class: the cached block goes back to the system first
  EXPECT_EQ(pool.stats().cached, 0U);
  pool.deallocate(b, 64);
  EXPECT_THROW(pool.allocate(~std::size_t{0} / 2), std::bad_alloc);
  EXPECT_EQ(pool.stats().in_use, 0U);
}

TEST(MemoryPool, ManyThreads) {
  MemoryPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (std::size_t i = 0; i < 2000; ++i) {
        const std::size_t bytes = 1 + i * 37 % 5000;
        void* block = pool.allocate(bytes);
        std::memset(block, t, bytes);
        pool.deallocate(block, bytes);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().in_use, 0U);
}

TEST(MemoryPool, DevicesHaveTheirOwn) {
  EXPECT_NE(&memory_pool(cpu(0)), &memory_pool(cpu(1)));
  EXPECT_THROW(memory_pool(sim(0)), UsageError);  // an engine's (device_pool.h)
  EXPECT_THROW(memory_pool(gpu(0)), UsageError);
  EXPECT_THROW(memory_pool(cpu(-1)), UsageError);
  EXPECT_THROW(memory_pool(cpu(1000)), UsageError);
  const std::size_t before = memory_pool(cpu(7)).stats().in_use;
  {
    Scratch a(cpu(7), 100), b(std::move(a));
    EXPECT_EQ(a.data(), nullptr);
    EXPECT_NE(b.as<float>(), nullptr);
    EXPECT_GT(memory_pool(cpu(7)).stats().in_use, before);
  }
  EXPECT_EQ(memory_pool(cpu(7)).stats().in_use, before);
}

TEST(ObjectPool, ObjectsMadeHereAndDestroyedThere) {
  struct Item : Pooled<Item> {
    explicit Item(int v) : value(v) {}
    int value;
    char rest[100] = {};
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<Item*> items;
    for (int i = 0; i < 1000; ++i) items.push_back(new Item(i));
    std::thread other([&items] {
      for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(items[static_cast<std::size_t>(i)]->value, i);
        delete items[static_cast<std::size_t>(i)];
      }
    });
    other.join();
  }
}

#ifndef SLUICE_SANITIZED  // whose pool is new and delete
TEST(ObjectPool, AThreadTakesABatchAndLeavesTheRestToOthers) {
  using Pool = ObjectPool<1000>;
  std::set<void*> known;
  std::thread([&] {
    for (int i = 0; i < 5000; ++i) known.insert(Pool::allocate());
    for (void* block : known) Pool::deallocate(block);
  }).join();  // all are in the shared list
  std::latch taken(1), enough(1);
  std::thread other([&] {
    void* const one = Pool::allocate();
    EXPECT_TRUE(known.contains(one));
    taken.count_down();
    enough.wait();
    Pool::deallocate(one);
  });
  taken.wait();
  std::vector<void*> mine;
  for (int i = 0; i < 4000; ++i) mine.push_back(Pool::allocate());
  EXPECT_TRUE(std::ranges::all_of(mine, [&](void* block) { return known.contains(block); }));
  for (void* block : mine) Pool::deallocate(block);
  enough.count_down();
  other.join();
}

TEST(ObjectPool, BlocksAreNeitherLostNorGivenTwice) {
  struct Item : Pooled<Item> {
    explicit Item(std::uint64_t t) { std::ranges::fill(token, t); }
    std::uint64_t token[130];
  };
  std::atomic<int> wrong{0};
  std::mutex mutex;
  using Items = std::vector<std::pair<Item*, std::uint64_t>>;
  Items between;  // from thread to thread
  std::set<Item*> seen;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (std::uint64_t number = 0; number < 8; ++number) {
      threads.emplace_back([&, number] {
        std::mt19937_64 random(number);
        Items mine;
        const auto free_one = [&] {
          const auto [item, token] = mine.back();
          mine.pop_back();
          for (const std::uint64_t t : item->token) wrong += t != token;
          delete item;
        };
        for (int i = 0; i < 3000; ++i) {
          if (random() % 3 != 0 && mine.size() < 200) {
            const std::uint64_t token = random();
            mine.emplace_back(new Item(token), token);
          } else if (!mine.empty()) {
            free_one();
          }
          if (random() % 50 == 0) {
            const std::lock_guard lock(mutex);
            for (const auto& [item, token] : mine) seen.insert(item);
            std::swap(mine, between);
          }
        }
        while (!mine.empty()) free_one();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& [item, token] : between) delete item;
  EXPECT_EQ(wrong.load(), 0);
  // At most 9 x 200 are in use at once, 8 x 128 more in threads' caches, and a few where lists were in others' hands.
  EXPECT_LT(seen.size(), 6000U);
}
#endif

}  // namespace
}  // namespace sluice
