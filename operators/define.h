// Operators of a program's own. This header has what their rows and kernels need: the registry, add() for several
// dtypes (register.h), parallel_for (engine/loops.h), the attributes of the library's rows; and one macro each for
// unary operators and reductions. docs/adding-an-operator.md shows all of it.
//
//   namespace mine {
//   SLUICE_DEFINE_UNARY(Softsign, softsign, floating, x / (1 + abs(x)), g / square(1 + abs(x)))
//   SLUICE_DEFINE_REDUCTION(SumSquares, sum_squares, floating, T(0), a + b, ...)
//   }
//
// The fields are those of an entry of elementwise_table.inc and reduction_table.inc, which say what each is and what
// expressions may use: numbers, + - * /, and the library's unary and binary operators. A definition makes
//
//   struct mine::Softsign;                              // row() is the operator's row, for kernels of other backends
//   NDArray mine::softsign(const Operand& x);           // as the library's functions (elementwise.h)
//   NDArray mine::sum_squares(const Operand& x, const Axes& axes = all, const ReduceOptions& = {});  // (reduction.h)
//
// with the gradient, the gradient's gradient, and kernels for the CPU in all dtypes, which simulated devices use too.
// The kernels have rank 0, use all threads, and are compiled for the instruction set of the program; f16 and bf16
// compute in f32, and a reduction of floating elements folds each result in double, in the order of the elements. So
// results have the same bits on any number of threads.
//
// The row is made at the first call of row(), or of the function: it throws UsageError if an operator of that name is
// there already. A row lives as long as the program (docs/adding-an-operator.md says what that means for a library
// that is loaded). A definition may stand in a header; all its uses make one row. Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/loops.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/register.h"
#include "sluice/operators/rows.h"

#define SLUICE_DEFINE_UNARY(Name, function, dtypes, value, gradient)                       \
  SLUICE_UNARY_FUNCTOR(Name##Functor, function, dtypes, value, gradient)                   \
  struct Name : Name##Functor {                                                            \
    static const ::sluice::Operator& row() {                                               \
      return ::sluice::detail::first_use([] { return &::sluice::define::unary<Name>(); }); \
    }                                                                                      \
  };                                                                                       \
  inline ::sluice::NDArray function(const ::sluice::Operand& x) {                          \
    return ::sluice::apply(Name::row(), {&x.array}, {}, {.where = x.where});               \
  }

#define SLUICE_DEFINE_REDUCTION(Name, function, dtypes, empty_value, fold, gradient)                        \
  SLUICE_REDUCTION_FUNCTOR(Name##Functor, function, dtypes, empty_value, fold)                              \
  struct Name : Name##Functor {                                                                             \
    SLUICE_REDUCTION_RULE(gradient)                                                                         \
    static const ::sluice::Operator& row() {                                                                \
      return ::sluice::detail::first_use([] { return &::sluice::define::reduction<Name>(); });              \
    }                                                                                                       \
  };                                                                                                        \
  inline ::sluice::NDArray function(const ::sluice::Operand& x, const ::sluice::Axes& axes = ::sluice::all, \
                                    const ::sluice::ReduceOptions& options = {}) {                          \
    return ::sluice::rows::reduce(Name::row(), x, axes, options);                                           \
  }

/// What the macros are made of.
namespace sluice::define {

/// Elements that one piece of a loop has at least.
inline constexpr std::int64_t kGrain = 32768;
inline constexpr Backend kBackend{.name = "defined", .device = DeviceKind::cpu, .rank = 0};

/// y[i] = F(x[i], ...), over contiguous arrays.
template <class F, int inputs>
struct Elementwise {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using Number = compute_of<T>;
      std::array<const T*, static_cast<std::size_t>(inputs)> x;
      for (int i = 0; i < inputs; ++i) x[static_cast<std::size_t>(i)] = c.input(i).as<T>();
      T* const y = c.output().as<T>();
      parallel_for(c.output().count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if constexpr (inputs == 1) {
            y[i] = static_cast<T>(F{}(static_cast<Number>(x[0][i])));
          } else {
            y[i] = static_cast<T>(F{}(static_cast<Number>(x[0][i]), static_cast<Number>(x[1][i])));
          }
        }
      });
    }
  };
};

/// Each result is folded from its elements in their order.
template <class F>
struct Fold {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using Total = std::conditional_t<is_floating(dtype_of<T>), double, T>;
      const auto value = [](T element) { return static_cast<Total>(static_cast<compute_of<T>>(element)); };
      const auto& attributes = c.attributes<ReduceAttributes>();
      const TensorView& view = c.input(0);
      Dims kept, kept_strides, folded, folded_strides;
      for (int i = 0; i < view.shape.rank(); ++i) {
        const bool reduced = (attributes.axes >> i & 1U) != 0;
        (reduced ? folded : kept).push_back(view.shape[i]);
        (reduced ? folded_strides : kept_strides).push_back(view.strides[i]);
      }
      const std::int64_t n = folded.count();
      T* const y = c.output().as<T>();
      parallel_for(kept.count(), std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t result = begin; result < end; ++result) {
                       const T* x = view.as<T>();
                       std::int64_t rest = result;
                       for (int i = kept.rank() - 1; i >= 0; --i) {
                         x += rest % kept[i] * kept_strides[i];
                         rest /= kept[i];
                       }
                       Total total = n == 0 ? F::template empty<Total>() : value(*x);
                       std::array<std::int64_t, kMaxRank> index{};
                       for (std::int64_t k = 1; k < n; ++k) {
                         for (int i = folded.rank() - 1; i >= 0; --i) {
                           std::int64_t& at = index[static_cast<std::size_t>(i)];
                           x += folded_strides[i];
                           if (++at < folded[i]) break;
                           x -= at * folded_strides[i];
                           at = 0;
                         }
                         total = F{}(total, value(*x));
                       }
                       y[result] = static_cast<T>(static_cast<compute_of<T>>(total));
                     }
                   });
    }
  };
};

template <class F>
const Operator& unary() {
  const Operator& row = rows::add_unary<F>(Registry::instance());
  backends::add<Elementwise<F, 1>::template Make>(row, kBackend, backends::TypesOf<F>{}, backends::kDense);
  if constexpr (rows::has_gradient_row<F>) {
    backends::add<Elementwise<functors::Derivative<F>, 2>::template Make>(
        Registry::instance().get(F::grad_name), kBackend, backends::Floating{}, backends::kDense);
  }
  return row;
}

template <class F>
const Operator& reduction() {
  const Operator& row = rows::add_reduction<F, F>(Registry::instance());
  using Types = std::conditional_t<F::integers, backends::Arithmetic, backends::Floating>;
  backends::add<Fold<F>::template Make>(row, kBackend, Types{}, backends::kDenseOutputs);
  return row;
}

}  // namespace sluice::define
