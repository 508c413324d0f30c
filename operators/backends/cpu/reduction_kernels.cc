// Reductions and softmax of the CPU backend. Pieces and trees depend on shapes alone.
#include <cmath>

#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fast_math.h"
#include "sluice/operators/backends/cpu/grouped_axes.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/functors.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
TotalOf<T> row_sum(const T* x, std::int64_t n) {
  TotalOf<T> total{};
  for (std::int64_t at = 0; at < n; at += kSumBlock) {
    TotalOf<T> part{};
    dispatch(detail::BlockSum{}, x + at, std::min(kSumBlock, n - at), &part);
    total += part;
  }
  return total;
}

template <class T>
struct Sum {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ReduceAttributes>();
    const GroupedAxes g(c, c.input(0), a.axes);
    const T* x = reinterpret_cast<const T*>(g.data);
    T* y = c.output().as<T>();
    const auto scaled = [&](auto total) {
      if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(total * static_cast<decltype(total)>(a.scale));
      else
        return static_cast<T>(total);
    };
    if (g.inner == 1) {
      if (g.outer == 1) {
        *y = scaled(sum<TotalOf<T>>(x, g.reduced));
        return;
      }
      const std::int64_t grain = std::max<std::int64_t>(1, kElementwiseGrain / std::max<std::int64_t>(1, g.reduced));
      parallel_for(g.outer, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t o = begin; o < end; ++o) y[o] = scaled(row_sum(x + o * g.reduced, g.reduced));
      });
      return;
    }
    sum_middle(x, g.outer, g.reduced, g.inner, [&](std::int64_t first, const TotalOf<T>* totals, std::int64_t n) {
      for (std::int64_t j = 0; j < n; ++j) y[first + j] = scaled(totals[j]);
    });
  }
};

/// F over n > 0 elements side by side, in 64 running results, so that the steps overlap and vectorise.
template <class F>
struct FoldBlock {
  template <class T, class A>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t n, A* out) const {
    constexpr int lanes = 64;
    A totals[lanes] = {};
    const int used = static_cast<int>(std::min<std::int64_t>(lanes, n));
    for (int l = 0; l < used; ++l) totals[l] = static_cast<A>(x[l]);
    std::int64_t i = lanes;
    for (; i + lanes <= n; i += lanes) {
      detail::prefetch_ahead(x + i, lanes);
      for (int l = 0; l < lanes; ++l) totals[l] = F{}(totals[l], static_cast<A>(x[i + l]));
    }
    for (int l = 0; i < n; ++i, ++l) totals[l] = F{}(totals[l], static_cast<A>(x[i]));
    for (int l = 1; l < used; ++l) totals[0] = F{}(totals[0], totals[l]);
    *out = totals[0];
  }
};

/// y[j] = F(y[j], x[i, j]) for all rows i in order; rows are `step` elements apart.
template <class F>
struct FoldRows {
  template <class T, class A>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t rows, std::int64_t step, std::int64_t columns,
                                     A* y) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) y[j] = F{}(y[j], static_cast<A>(x[i * step + j]));
    }
  }
};

/// A reduction by its functor alone. sum has a kernel of its own.
template <class F>
struct Fold {
  template <class T>
  struct Make {
    // Max and min choose elements, and so need no wider sums.
    static constexpr bool kChooses = std::is_same_v<F, functors::Max> || std::is_same_v<F, functors::Min>;
    using A = std::conditional_t<kChooses, T, TotalOf<T>>;
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<ReduceAttributes>();
      const GroupedAxes g(c, c.input(0), a.axes);
      const T* x = reinterpret_cast<const T*>(g.data);
      T* y = c.output().as<T>();
      const std::int64_t block = g.reduced * g.inner;
      if (block == 0) {
        for (std::int64_t i = 0; i < g.outer * g.inner; ++i) y[i] = scaled(F::template empty<A>(), a);
      } else if (g.outer == 1 && g.inner == 1) {
        const std::int64_t blocks = (g.reduced + kSumBlock - 1) / kSumBlock;
        std::vector<A> parts(static_cast<std::size_t>(blocks));
        parallel_for(blocks, kElementwiseGrain / kSumBlock, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t b = begin; b < end; ++b) {
            dispatch(FoldBlock<F>{}, x + b * kSumBlock, std::min(kSumBlock, g.reduced - b * kSumBlock),
                     parts.data() + b);
          }
        });
        A total = parts[0];
        for (std::size_t b = 1; b < parts.size(); ++b) total = F{}(total, parts[b]);
        *y = scaled(total, a);
      } else if (g.inner == 1) {
        parallel_for(g.outer, std::max<std::int64_t>(1, kElementwiseGrain / block),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t o = begin; o < end; ++o) {
                         A total;
                         dispatch(FoldBlock<F>{}, x + o * block, g.reduced, &total);
                         y[o] = scaled(total, a);
                       }
                     });
      } else {
        constexpr std::int64_t width = 1024;  // columns of one piece
        const std::int64_t pieces = (g.inner + width - 1) / width;
        const std::int64_t work = std::max<std::int64_t>(1, g.reduced * std::min(width, g.inner));
        parallel_for(g.outer * pieces, std::max<std::int64_t>(1, kElementwiseGrain / work),
                     [&](std::int64_t begin, std::int64_t end) {
                       std::vector<A> totals(static_cast<std::size_t>(width));
                       for (std::int64_t i = begin; i < end; ++i) {
                         const std::int64_t o = i / pieces, first = i % pieces * width;
                         const std::int64_t columns = std::min(width, g.inner - first);
                         const T* from = x + o * block + first;
                         std::copy(from, from + columns, totals.begin());
                         dispatch(FoldRows<F>{}, from + g.inner, g.reduced - 1, g.inner, columns, totals.data());
                         T* out = y + o * g.inner + first;
                         for (std::int64_t j = 0; j < columns; ++j) {
                           out[j] = scaled(totals[static_cast<std::size_t>(j)], a);
                         }
                       }
                     });
      }
    }
    static T scaled(A total, const ReduceAttributes& a) {
      if constexpr (std::is_floating_point_v<T>) total *= static_cast<A>(a.scale);
      return static_cast<T>(total);
    }
  };
};

/// The first of n > 0 elements that is equal to `wanted`, which is there; a NaN is equal to NaN.
struct FindFirst {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t n, T wanted, std::int64_t* place) const {
    constexpr std::int64_t block = 256;
    const bool nan = wanted != wanted;
    std::int64_t i = 0;
    for (; i + block <= n; i += block) {
      int found = 0;
      for (std::int64_t k = i; k < i + block; ++k) {
        found |= static_cast<int>(x[k] == wanted) | (static_cast<int>(nan) & static_cast<int>(x[k] != x[k]));
      }
      if (found != 0) break;
    }
    while (x[i] != wanted && !(nan && x[i] != x[i])) ++i;
    *place = i;
  }
};

/// The first largest, or smallest, of n elements `step` apart; NaN counts as such.
template <bool smallest, class T>
std::int64_t largest(const T* x, std::int64_t n, std::int64_t step) {
  if (step == 1) {
    T best;
    std::int64_t place = 0;
    dispatch(FoldBlock<std::conditional_t<smallest, functors::Min, functors::Max>>{}, x, n, &best);
    dispatch(FindFirst{}, x, n, best, &place);
    return place;
  }
  std::int64_t best = 0;
  T value = x[0];
  for (std::int64_t i = 1; i < n && value == value; ++i) {
    const T next = x[i * step];
    if ((smallest ? next < value : next > value) || next != next) {
      best = i;
      value = next;
    }
  }
  return best;
}

template <class T, bool smallest = false, class Visit>
void each_largest(const GroupedAxes& g, Visit visit) {
  const T* x = reinterpret_cast<const T*>(g.data);
  const std::int64_t grain = std::max<std::int64_t>(1, kElementwiseGrain / std::max<std::int64_t>(1, g.reduced));
  parallel_for(g.outer * g.inner, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* first = x + i / g.inner * g.reduced * g.inner + i % g.inner;
      const std::int64_t place = largest<smallest>(first, g.reduced, g.inner);
      visit(i, place, first[place * g.inner]);
    }
  });
}

template <bool smallest>
struct BestPlace {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const GroupedAxes g(c, c.input(0), c.attributes<ReduceAttributes>().axes);
      auto* y = c.output().as<std::int64_t>();
      each_largest<T, smallest>(g, [&](std::int64_t i, std::int64_t place, T) { y[i] = place; });
    }
  };
};

template <class T>
struct FirstMax {
  static void run(ArrayContext& c) {
    const TensorView& x = c.input(0);
    if (x.count() == 0) return;
    const std::uint32_t axes = c.attributes<ReduceAttributes>().axes;
    Dims kept, gone;
    for (int i = 0; i < x.shape.rank(); ++i) ((axes >> i & 1U) != 0 ? gone : kept).push_back(i);
    const GroupedAxes g(c, x, axes);
    T* out = c.output().as<T>();
    std::fill(out, out + x.count(), T(0));
    each_largest<T>(g, [&](std::int64_t i, std::int64_t place, T) {
      std::int64_t at = 0, rest = i;
      for (int k = kept.rank() - 1; k >= 0; --k) {
        const int axis = static_cast<int>(kept[k]);
        at += rest % x.shape[axis] * c.output().strides[axis];
        rest /= x.shape[axis];
      }
      rest = place;
      for (int k = gone.rank() - 1; k >= 0; --k) {
        const int axis = static_cast<int>(gone[k]);
        at += rest % x.shape[axis] * c.output().strides[axis];
        rest /= x.shape[axis];
      }
      out[at] = T(1);
    });
  }
};

/// Softmax of rows, with sums in double; with `logarithm` its logarithm.
template <bool logarithm>
struct SoftmaxRows {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, T* y, std::int64_t rows, std::int64_t n) const {
    for (std::int64_t r = 0; r < rows; ++r, x += n, y += n) {
      const T top = detail::row_largest(x, n, -std::numeric_limits<T>::infinity());
      for (std::int64_t i = 0; i < n; ++i) y[i] = fast_exp(x[i] - top);
      const auto total = detail::row_total<double>(static_cast<const T*>(y), n);
      if constexpr (logarithm) {
        const T log_total = static_cast<T>(std::log(total));
        for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - top - log_total;
      } else {
        const T inverse = static_cast<T>(1 / total);
        for (std::int64_t i = 0; i < n; ++i) y[i] *= inverse;
      }
    }
  }
};

template <bool logarithm>
struct Softmax {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const std::int64_t n = c.input(0).shape.back();
      if (n == 0) return;
      const T* x = c.input(0).as<T>();
      T* y = c.output().as<T>();
      parallel_for(c.input(0).count() / n, std::max<std::int64_t>(1, kElementwiseGrain / 4 / n),
                   [&](std::int64_t begin, std::int64_t end) {
                     dispatch(SoftmaxRows<logarithm>{}, x + begin * n, y + begin * n, end - begin, n);
                   });
    }
  };
};

/// The kernel of a reduction.
template <class F>
struct KernelOf : Fold<F> {};
template <>
struct KernelOf<functors::Sum> {
  template <class T>
  using Make = Sum<T>;
};

}  // namespace

void add_reduction_kernels(Registry& registry) {
  functors::Reduction::each([&]<class F>() {
    using List = std::conditional_t<F::integers, Arithmetic, Floating>;
    add<KernelOf<F>::template Make>(registry.get(F::name), kCpu, Direct<List>{}, kDenseOutputs);
  });
  add<BestPlace<false>::Make>(registry.get("argmax"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  add<BestPlace<true>::Make>(registry.get("argmin"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  const auto of_bool = [&]<class F>(F) {
    Kernel kernel = kDenseOutputs;
    kernel.run = Fold<F>::template Make<std::uint8_t>::run;
    registry.get(F::name).add_kernel(kCpu, {DType::boolean}, kernel);
  };
  of_bool(functors::Any{});
  of_bool(functors::Every{});
  add<FirstMax>(registry.get("first_max"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  add<Softmax<false>::Make>(registry.get("softmax"), kCpu, Direct<Floating>{}, kDense);
  add<Softmax<true>::Make>(registry.get("log_softmax"), kCpu, Direct<Floating>{}, kDense);
}

}  // namespace sluice::cpu_backend
