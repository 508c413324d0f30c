// Fibers: stacks that one OS thread switches between, for the schedule explorer. A switch costs some nanoseconds.
#pragma once

#include <cstddef>

namespace sluice::detail {

/// One flow of control. Made without an entry it stands for the calling OS thread's own stack.
class Fiber {
 public:
  using Entry = void (*)(void* argument);

  Fiber() = default;
  Fiber(Entry entry, void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves `from`, which must be running, and goes on where `to` was left, or begins it. Returns when somebody
  /// switches back; with `for_ever`, never: `from` is then only to be destroyed. An entry never returns.
  static void switch_to(Fiber& from, Fiber& to, bool for_ever = false);

 private:
  static void begin();

  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  void* stack_ = nullptr;                    ///< its lowest address; null for an OS thread's own
  void* saved_ = nullptr;                    ///< the stack pointer, or the ucontext_t
  [[maybe_unused]] void* shadow_ = nullptr;  ///< what a sanitizer keeps for it
  const void* bottom_ = nullptr;             ///< as a sanitizer wants to be told
  std::size_t size_ = 0;
};

}  // namespace sluice::detail
