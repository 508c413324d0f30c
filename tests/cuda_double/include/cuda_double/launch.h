// The double's side of a launch: the one place where a kernel's arguments become addresses that can be touched.
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_double/types.h"

namespace cuda_double {
namespace detail {

/// An address among a kernel's arguments. Without uses that the op declared, a kernel writes through pointers to what
/// is not const, and reads through others.
struct Pointer {
  const void* address = nullptr;
  bool writes = false;
};

struct Launch {
  const void* kernel = nullptr;
  dim3 grid, block;
  std::size_t shared_bytes = 0, argument_bytes = 0;
  cudaStream_t stream = nullptr;
  bool barriers = false;
  std::vector<Pointer> pointers;
  std::shared_ptr<const void> arguments;  ///< with the kernel
  std::size_t stored_bytes = 0;
  /// Runs one thread of the kernel.
  void (*thread)(const void* arguments) = nullptr;
};

/// Checks the launch and enqueues it. Where a card would refuse it, the calling thread's last error says so.
void issue(Launch launch) noexcept;
/// The address by which a kernel on the stream touches what the argument names; what names no memory of a device stays.
void* resolve(const void* address) noexcept;

template <class T, class F>
void each_pointer(T& value, F& f) {
  if constexpr (std::is_pointer_v<T>) {
    if constexpr (!std::is_function_v<std::remove_pointer_t<T>>) f(value);
  } else if constexpr (std::is_class_v<T> || std::is_union_v<T>) {
    static_assert(std::is_trivially_copyable_v<T>, "a kernel's argument is copied to the device byte by byte");
    // A struct with pointers that does not name them cannot be told from one without: its kernel faults on a handle.
    if constexpr (requires { value.each_pointer(f); }) value.each_pointer(f);
  }
}

}  // namespace detail

/// Enqueues a kernel. A struct among the arguments that holds pointers must name each of them, as
/// `template <class F> void each_pointer(F&& f) { f(x); f(y); }`. `barriers` says whether the kernel's threads meet
/// (__syncthreads, __syncwarp, shuffles); such a kernel's threads run as fibers, others' as a loop. Memory that the
/// kernel touches is what current_memory_uses() names; where nobody set that, the blocks of its pointers. A kernel that
/// is given a pointer to no live memory is reported and not run.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, bool barriers,
            A... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "a kernel launched with another number of arguments than it takes");
  using Values = std::tuple<std::remove_cv_t<P>...>;
  using Stored = std::pair<void (*)(P...), Values>;
  Values values(static_cast<P>(arguments)...);
  detail::Launch made{.kernel = reinterpret_cast<const void*>(kernel),
                      .grid = grid,
                      .block = block,
                      .shared_bytes = shared_bytes,
                      .argument_bytes = (std::size_t{0} + ... + sizeof(P)),
                      .stream = stream,
                      .barriers = barriers,
                      .pointers = {},
                      .arguments = {},
                      .stored_bytes = sizeof(Stored),
                      .thread = [](const void* stored) {
                        const auto& [function, given] = *static_cast<const Stored*>(stored);
                        std::apply(function, given);
                      }};
  auto take = [&made](auto& pointer) {
    using T = std::remove_pointer_t<std::remove_reference_t<decltype(pointer)>>;
    if (!pointer) return;
    made.pointers.push_back({const_cast<const std::remove_cv_t<T>*>(pointer), !std::is_const_v<T>});
    pointer = const_cast<T*>(static_cast<const T*>(detail::resolve(pointer)));
  };
  std::apply([&](auto&... value) { (detail::each_pointer(value, take), ...); }, values);
  made.arguments = std::make_shared<const Stored>(kernel, values);
  detail::issue(std::move(made));
}

}  // namespace cuda_double
