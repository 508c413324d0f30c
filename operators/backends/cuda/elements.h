// Kernels of elementwise operators: each element of the result from one element of each operand.
#pragma once

#include <cstdint>
#include <utility>

#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/backends/cuda/walk.h"

namespace sluice::cuda {

/// One operation f: y = f(x...), with elements of type T... in and R out. The pointers may be equal (in place).
template <class F, class R, class... T>
struct Elements {
  static constexpr int kInputs = static_cast<int>(sizeof...(T));
  F f;
  R* y;
  const void* x[kInputs > 0 ? kInputs : 1];
  Walk<kInputs + 1> walk;

  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    for (int k = 0; k < kInputs; ++k) visit(x[k]);
  }
  template <std::size_t... I>
  __device__ void at(const std::int64_t (&place)[kInputs + 1], std::index_sequence<I...>) const {
    y[place[0]] = f(static_cast<const T*>(x[I])[place[I + 1]]...);
  }
  template <std::size_t... I>
  __device__ R value(std::int64_t i, std::index_sequence<I...>) const {
    return f(static_cast<const T*>(x[I])[i]...);
  }
};

/// So many elements that the widest operand fills 16 bytes: one access of memory for a thread.
template <class R, class... T>
inline constexpr int kPerAccess = static_cast<int>(16 / std::max({sizeof(R), sizeof(T)...}));
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

template <class F, class R, class... T, std::size_t... I>
__device__ void packed(const Elements<F, R, T...>& e, std::int64_t i, std::index_sequence<I...>) {
  constexpr int kN = kPerAccess<R, T...>;
  const std::tuple<Pack<T, kN>...> in{static_cast<const Pack<T, kN>*>(e.x[I])[i]...};
  Pack<R, kN> out;
  for (int k = 0; k < kN; ++k) out.v[k] = e.f(std::get<I>(in).v[k]...);
  reinterpret_cast<Pack<R, kN>*>(e.y)[i] = out;
}

/// For contiguous operands that are aligned to 16 bytes.
template <class F, class R, class... T>
__global__ void packed_elements(Elements<F, R, T...> e) {
  constexpr int kN = kPerAccess<R, T...>;
  constexpr auto kAll = std::index_sequence_for<T...>{};
  const std::int64_t packs = e.walk.count / kN;
  for (std::int64_t i = thread_number(); i < packs; i += thread_count()) packed(e, i, kAll);
  for (std::int64_t i = packs * kN + thread_number(); i < e.walk.count; i += thread_count()) e.y[i] = e.value(i, kAll);
}

template <class F, class R, class... T>
__global__ void strided_elements(Elements<F, R, T...> e) {
  for (std::int64_t i = thread_number(); i < e.walk.count; i += thread_count()) {
    std::int64_t place[sizeof...(T) + 1];
    e.walk.find(i, place);
    e.at(place, std::index_sequence_for<T...>{});
  }
}

/// Issues y = f(x...) for windows of any strides.
template <class R, class... T, class F, class... View>
void for_elements(const Issue& issue, F f, const TensorView& y, const View&... x) {
  static_assert(sizeof...(T) == sizeof...(View));
  const TensorView* const views[] = {&y, &x...};
  Elements<F, R, T...> e{f, y.as<R>(), {x.data...}, Walk<static_cast<int>(sizeof...(T)) + 1>(views)};
  if (e.walk.count == 0) return;
  bool dense = e.walk.contiguous;
  for (const TensorView* view : views) dense = dense && reinterpret_cast<std::uintptr_t>(view->data) % 16 == 0;
  if (dense) {
    issue.launch(packed_elements<F, R, T...>, grid_for(e.walk.count / kPerAccess<R, T...>), e);
  } else {
    issue.launch(strided_elements<F, R, T...>, grid_for(e.walk.count), e);
  }
}

}  // namespace sluice::cuda
