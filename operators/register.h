// Helpers to add kernels for several dtypes at once: for the library's backends, and for those of programs.
#pragma once

#include <type_traits>

#include "sluice/operators/functors.h"
#include "sluice/operators/registry.h"

namespace sluice::backends {

/// A list of C++ element types.
template <class... T>
struct Types {};

namespace detail {
template <class First, class... T>
struct WithoutFirst {
  using type = Types<T...>;
};
template <class... Lists>
struct Joined;
template <class... T>
struct Joined<Types<T...>> {
  using type = Types<T...>;
};
template <class... A, class... B, class... Rest>
struct Joined<Types<A...>, Types<B...>, Rest...> : Joined<Types<A..., B...>, Rest...> {};
template <bool (*wanted)(DType), class List>
struct Filtered;
template <bool (*wanted)(DType), class... T>
struct Filtered<wanted, Types<T...>> : Joined<std::conditional_t<wanted(dtype_of<T>), Types<T>, Types<>>...> {};
}  // namespace detail

// Lists from the table of dtypes.
#define SLUICE_DTYPE_TYPE(name, type, ...) , type
using AllTypes = detail::WithoutFirst<void SLUICE_DTYPES(SLUICE_DTYPE_TYPE)>::type;
#undef SLUICE_DTYPE_TYPE
using Floating = detail::Filtered<is_floating, AllTypes>::type;
using Arithmetic = detail::Filtered<has_arithmetic, AllTypes>::type;
/// Integers and bool.
using Bits = detail::Filtered<has_bits, AllTypes>::type;
/// Those that hold sums: without i8 and u8.
using Sums = detail::Filtered<has_sums, AllTypes>::type;
namespace detail {
constexpr bool is_direct(DType t) { return computes_in_itself(t) && has_sums(t); }
}  // namespace detail
/// Of a list those types for which a fast kernel is worth its size: f32 f64 i32 i64. They compute without converting
/// elements.
template <class List>
using Direct = typename detail::Filtered<detail::is_direct, List>::type;

/// The types that an elementwise functor takes (functors.h), and of them those for which a fast kernel is worth its
/// size.
template <class F>
using TypesOf = std::conditional_t<F::takes == functors::DTypes::bits, Bits,
                                   std::conditional_t<F::takes == functors::DTypes::arithmetic, Arithmetic, Floating>>;
template <class F>
using DirectTypesOf = std::conditional_t<F::takes == functors::DTypes::bits, Bits, Direct<TypesOf<F>>>;

/// Adds Make<T>::run for each T, under its dtype. `kernel` says what else holds for them.
template <template <class> class Make, class... T>
void add(const Operator& row, const Backend& backend, Types<T...>, Kernel kernel = {}) {
  ((kernel.run = Make<T>::run, row.add_kernel(backend, {dtype_of<T>}, kernel)), ...);
}

/// Adds one function for all dtypes.
inline void add(const Operator& row, const Backend& backend, KernelFunction run, Kernel kernel = {}) {
  kernel.run = run;
  for (int t = 0; t < kDTypeCount; ++t) row.add_kernel(backend, {static_cast<DType>(t)}, kernel);
}

/// The library's own backends. The reference has plain loops for every operator, and is the oracle for others.
inline constexpr Backend kReference{.name = "reference", .device = DeviceKind::cpu, .rank = 0};
inline constexpr Backend kCpu{.name = "cpu", .device = DeviceKind::cpu, .rank = 10};

/// What kernels want of their operands.
inline constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};
inline constexpr Kernel kDenseOutputs{.dense_outputs = true};

}  // namespace sluice::backends
