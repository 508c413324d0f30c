#include "sluice/resources/memory_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
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

}  // namespace
}  // namespace sluice
