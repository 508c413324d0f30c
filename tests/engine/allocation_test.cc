// A push on the steady path takes nothing from the heap. Counted with operator new, so not under the sanitizers.
#ifndef SLUICE_SANITIZED
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t size, std::size_t align) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = align > alignof(std::max_align_t) ? std::aligned_alloc(align, (size + align - 1) / align * align)
                                              : std::malloc(size);
  if (!p) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t size) { return counted(size, 0); }
void* operator new(std::size_t size, std::align_val_t align) { return counted(size, static_cast<std::size_t>(align)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace sluice {
namespace {

/// Allocations per op of 10,000 pushes, after as many to warm up. The threads that run them count too.
template <class Push>
double per_push(int threads, const Push& push) {
  testing::QuietEngine engine({.threads = threads, .max_ops = 1024});
  std::vector<Variable> v;
  for (int i = 0; i < 16; ++i) v.push_back(engine.variable());
  double least = 1e9;
  for (int round = 0; round < 4; ++round) {  // what another thread needs once, late, is not the steady path
    const long before = allocations.load();
    for (std::size_t i = 0; i < 10'000; ++i) push(engine, v, i);
    const long after = allocations.load();
    engine.wait_all();
    if (round > 0) least = std::min(least, static_cast<double>(after - before) / 10'000);
  }
  return least;
}

struct Bytes48 {
  std::int64_t* counter;
  char rest[40];
  void operator()() const { ++*counter; }
};

TEST(Allocation, PushAndRunTakeNothingFromTheHeap) {
  static_assert(sizeof(Bytes48) == 48);
  for (int threads : {1, 2}) {
    std::int64_t counter = 0, other[16] = {};
    // One chain; one variable of sixteen; four accesses. A wake-up of an idle lane allocates, and is rare.
    EXPECT_LT(per_push(threads,
                       [&](Engine& e, auto& v, std::size_t) {
                         e.push(Bytes48{&counter, {}}, {update(v[0])});
                       }),
              0.05);
    EXPECT_LT(per_push(threads,
                       [&](Engine& e, auto& v, std::size_t i) {
                         e.push(Bytes48{&other[i % 16], {}}, {update(v[i % 16])});
                       }),
              0.05);
    EXPECT_LT(
        per_push(
            threads,
            [&](Engine& e, auto& v, std::size_t i) {
              e.push([] {}, {update(v[i % 16]), read(v[(i + 1) % 16]), read(v[(i + 5) % 16]), order(v[(i + 7) % 16])});
            }),
        0.05);
    EXPECT_LT(per_push(threads, [&](Engine& e, auto&, std::size_t) { e.push([] {}, {}); }), 0.05);
  }
}

}  // namespace
}  // namespace sluice
#endif
