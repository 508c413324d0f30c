// parallel_for: the loop inside an operation, on the threads of the lane that runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice {

/// A non-owning reference to a callable, for arguments that are called before the callee returns.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
      FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): made to be passed as an argument
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(static_cast<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, static_cast<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// Calls body(begin, end) for the chunks [0, grain), [grain, 2 grain) ... of [0, n), possibly at once and in any order,
/// and returns when all are done. The chunks depend on n and grain alone, never on the number of threads, so a
/// reduction that sums its chunks in chunk order has the same bits everywhere. Runs on the threads of the lane whose op
/// calls it: lanes and loops share one number of threads, SLUICE_THREADS. A waiting thread that runs the op
/// (WaitOptions::help) is one more. Outside of any op it runs on the calling thread alone. While it waits the caller
/// runs no other op. Blocking. The first exception of a body is rethrown. n <= 0 calls nothing; grain < 1 counts as 1.
void parallel_for(std::int64_t n, std::int64_t grain, FunctionRef<void(std::int64_t, std::int64_t)> body);

/// How many threads parallel_for may use here. Use it for scheduling only: if the sizes of chunks depended on it, the
/// bits of results would too.
int parallel_width();

}  // namespace sluice
