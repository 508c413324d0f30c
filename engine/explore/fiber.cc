// Fibers: a few instructions on x86-64, ucontext elsewhere.
#include "sluice/engine/explore/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "sluice/engine/detail/sanitizers.h"

#ifdef SLUICE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#endif
#ifdef SLUICE_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__) && !defined(SLUICE_FIBER_UCONTEXT)
#define SLUICE_FIBER_ASM 1
extern "C" void sluice_fiber_switch(void** save, void* next) noexcept;
// What the calling convention lets a callee keep: six registers and the stack pointer.
asm(R"(
  .text
  .p2align 4
  .globl sluice_fiber_switch
  .hidden sluice_fiber_switch
  .type sluice_fiber_switch,@function
sluice_fiber_switch:
  .cfi_startproc
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
  .size sluice_fiber_switch,.-sluice_fiber_switch
)");
#else
#include <ucontext.h>
#endif

namespace sluice::detail {
namespace {

#ifdef SLUICE_ASAN
constexpr std::size_t kStackBytes = std::size_t{1} << 20;
#else
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
#endif

/// Stacks that are free; kept for the thread's life, because a run makes many fibers. Each has a page below it that
/// faults.
struct Stacks {
  std::vector<void*> free;
  ~Stacks() {
    for (void* stack : free) {
#ifdef SLUICE_ASAN
      __lsan_unregister_root_region(stack, kStackBytes);
#endif
      ::munmap(static_cast<char*>(stack) - page(), kStackBytes + page());
    }
  }
  static std::size_t page() { return static_cast<std::size_t>(::getpagesize()); }
  void* take() {
    if (!free.empty()) {
      void* const stack = free.back();
      free.pop_back();
      return stack;
    }
    void* const whole = ::mmap(nullptr, kStackBytes + page(), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) throw std::bad_alloc();
    ::mprotect(whole, page(), PROT_NONE);
    void* const stack = static_cast<char*>(whole) + page();
#ifdef SLUICE_ASAN
    __lsan_register_root_region(stack, kStackBytes);
#endif
    return stack;
  }
};
Stacks& stacks() {
  thread_local Stacks made;
  return made;
}

thread_local Fiber* arriving = nullptr;  // whom the switch in progress goes to
[[maybe_unused]] thread_local Fiber* leaving = nullptr;

}  // namespace

Fiber::Fiber(Entry entry, void* argument) : entry_(entry), argument_(argument), stack_(stacks().take()) {
  bottom_ = stack_;
  size_ = kStackBytes;
#ifdef SLUICE_FIBER_ASM
  // As the switch leaves a stack: six registers, then where to return to. A function begins 8 bytes off alignment.
  auto* top = reinterpret_cast<void**>(static_cast<char*>(stack_) + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::begin);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  saved_ = top;
#else
  auto* context = new ucontext_t;
  ::getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  ::makecontext(context, &Fiber::begin, 0);
  saved_ = context;
#endif
#ifdef SLUICE_TSAN
  shadow_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef SLUICE_TSAN
  if (stack_) __tsan_destroy_fiber(shadow_);
#endif
#ifndef SLUICE_FIBER_ASM
  delete static_cast<ucontext_t*>(saved_);
#endif
#ifdef SLUICE_ASAN
  if (stack_) __asan_unpoison_memory_region(stack_, kStackBytes);  // frames that were left for ever
#endif
  if (stack_) stacks().free.push_back(stack_);
}

void Fiber::begin() {
#ifdef SLUICE_ASAN
  __sanitizer_finish_switch_fiber(nullptr, leaving->stack_ ? nullptr : &leaving->bottom_,
                                  leaving->stack_ ? nullptr : &leaving->size_);
#endif
  Fiber* const me = arriving;
  me->entry_(me->argument_);
  std::abort();
}

void Fiber::switch_to(Fiber& from, Fiber& to, [[maybe_unused]] bool for_ever) {
  arriving = &to;
  leaving = &from;
#ifdef SLUICE_TSAN
  if (!from.stack_) from.shadow_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.shadow_, 0);
#endif
#ifdef SLUICE_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake, to.bottom_, to.size_);
#endif
#ifdef SLUICE_FIBER_ASM
  sluice_fiber_switch(&from.saved_, to.saved_);
#else
  if (!from.saved_) from.saved_ = new ucontext_t;
  ::swapcontext(static_cast<ucontext_t*>(from.saved_), static_cast<ucontext_t*>(to.saved_));
#endif
#ifdef SLUICE_ASAN
  __sanitizer_finish_switch_fiber(fake, leaving->stack_ ? nullptr : &leaving->bottom_,
                                  leaving->stack_ ? nullptr : &leaving->size_);
#endif
}

}  // namespace sluice::detail
