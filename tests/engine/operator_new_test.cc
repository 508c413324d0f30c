// operator new of the engine's test program: it counts, and fails where a test says so.
#include <gtest/gtest.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "faults.h"

namespace {
using sluice::testing::Allocations;

struct Range {
  std::uintptr_t first = 0, last = 0;
};

/// Where oneTBB's library lies: what it allocates is its own affair.
Range one_tbb() {
  Range found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        if (!std::strstr(info->dlpi_name, "libtbb.so")) return 0;
        Range& range = *static_cast<Range*>(to);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
          range.first = info->dlpi_addr + part.p_vaddr;
          range.last = range.first + part.p_memsz;
        }
        return 1;
      },
      &found);
  return found;
}
const Range tbb_code = one_tbb();

void* take(std::size_t size, std::size_t align, const void* caller) {
  const auto from = reinterpret_cast<std::uintptr_t>(caller);
  const bool tbb = from >= tbb_code.first && from < tbb_code.last;
  if (!tbb && Allocations::faults.passes()) throw std::bad_alloc();
  void* p = align > alignof(std::max_align_t) ? std::aligned_alloc(align, (size + align - 1) / align * align)
                                              : std::malloc(size ? size : 1);
  if (!p) throw std::bad_alloc();
  Allocations::made.fetch_add(1, std::memory_order_relaxed);
  Allocations::live.fetch_add(1, std::memory_order_relaxed);
  return p;
}
void give(void* p) {
  if (p) Allocations::live.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}
}  // namespace

// All of them: a sanitizer would else keep its own of those that are left out.
void* operator new(std::size_t size) { return take(size, 0, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return take(size, 0, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::align_val_t align) {
  return take(size, static_cast<std::size_t>(align), __builtin_return_address(0));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return take(size, static_cast<std::size_t>(align), __builtin_return_address(0));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
  return take(size, 0, __builtin_return_address(0));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept try {
  return take(size, 0, __builtin_return_address(0));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new(std::size_t size, std::align_val_t align, const std::nothrow_t&) noexcept try {
  return take(size, static_cast<std::size_t>(align), __builtin_return_address(0));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t size, std::align_val_t align, const std::nothrow_t&) noexcept try {
  return take(size, static_cast<std::size_t>(align), __builtin_return_address(0));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* p) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete(void* p, std::size_t) noexcept { give(p); }
void operator delete[](void* p, std::size_t) noexcept { give(p); }
void operator delete(void* p, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { give(p); }

namespace sluice {
namespace {

TEST(Allocation, FailsWhenTold) {
  for (const bool from_then_on : {false, true}) {
    Allocations::faults.arm(2, from_then_on);
    bool failed[4];
    for (bool& f : failed) {
      f = false;
      try {
        ::operator delete(::operator new(100));
      } catch (const std::bad_alloc&) {
        f = true;
      }
    }
    EXPECT_EQ(Allocations::faults.disarm(), 4);
    EXPECT_FALSE(failed[0]);
    EXPECT_TRUE(failed[1]);
    EXPECT_EQ(failed[2], from_then_on);
    EXPECT_EQ(failed[3], from_then_on);
  }
}

}  // namespace
}  // namespace sluice
