// Reductions, and softmax.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/fold.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/functors.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDenseOutputs{.dense_outputs = true};
constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

template <class F, class T>
struct FoldOf {
  using Item = TotalOf<T>;
  __device__ Item load(T x, std::int64_t) const { return static_cast<Item>(number(x)); }
  __device__ static Item join(Item a, Item b) { return F{}(a, b); }
  __device__ static Item empty() { return F::template empty<Item>(); }
};
template <class T>
struct StoreScaled {
  T* y;
  double scale;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t group, TotalOf<T> total) const {
    if constexpr (is_floating(dtype_of<T>)) total = total * scale;
    y[group] = T(static_cast<compute_of<T>>(total));
  }
};
template <class F>
struct Reduce {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<ReduceAttributes>();
      fold(Issue(c), FoldOf<F, T>{}, c.input(0).template as<T>(), Groups::of(c.input(0), a.axes),
           StoreScaled<T>{c.output().template as<T>(), a.scale});
    }
  };
};

/// The first largest, or smallest, element; NaN counts as such.
template <class T, bool smallest = false>
struct Largest {
  using Value = std::conditional_t<is_floating(dtype_of<T>), compute_of<T>, std::int64_t>;
  struct alignas(16) Item {          // without gaps, so that copies of it copy nothing that was not written
    Value value[8 / sizeof(Value)];  ///< the first; others are 0
    std::int64_t place;
  };
  __device__ Item load(T x, std::int64_t place) const { return {{number(x)}, place}; }
  __device__ static Item join(const Item& a, const Item& b) {
    const Value x = a.value[0], y = b.value[0];
    const bool a_nan = x != x, b_nan = y != y;
    if (a_nan || b_nan) return a_nan && (!b_nan || a.place < b.place) ? a : b;
    if (x != y) return (smallest ? x < y : x > y) ? a : b;
    return a.place < b.place ? a : b;
  }
  __device__ static Item empty() { return {{0}, 0}; }
};
template <class T, bool smallest = false>
struct StorePlace {
  std::int64_t* y;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t group, typename Largest<T, smallest>::Item item) const {
    y[group] = item.place;
  }
};
template <bool smallest>
struct BestPlace {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      fold(Issue(c), Largest<T, smallest>{}, c.input(0).template as<T>(),
           Groups::of(c.input(0), c.attributes<ReduceAttributes>().axes),
           StorePlace<T, smallest>{c.output().template as<std::int64_t>()});
    }
  };
};

template <class T>
struct MarkFirst {
  T* y;
  const std::int64_t* places;
  Groups groups;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(places);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t n = groups.elements.count, group = i / n, element = i % n;
    y[groups.at(group, element)] = T(places[group] == element ? 1.0F : 0.0F);
  }
};
template <class T>
struct FirstMax {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const std::uint32_t axes = c.attributes<ReduceAttributes>().axes;
    const Groups from = Groups::of(c.input(0), axes);
    if (c.input(0).count() == 0) return;
    auto* const places = issue.scratch<std::int64_t>(from.groups.count);
    fold(issue, Largest<T>{}, c.input(0).template as<T>(), from, StorePlace<T>{places});
    for_index(issue, c.output().count(),
              MarkFirst<T>{c.output().template as<T>(), places, Groups::of(c.output(), axes)});
  }
};

/// Some threads of a block for each row: the largest element, the sum of the exponentials (in double), the results.
template <bool logarithm, class T>
struct SoftmaxRows {
  T* y;
  const T* x;
  std::int64_t rows, n;
  int lanes;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
  }
};
template <bool logarithm, class T>
__global__ void softmax_rows(SoftmaxRows<logarithm, T> s) {
  using C = compute_of<T>;
  __shared__ C shared[kFoldThreads];
  __shared__ double sums[kFoldThreads];
  const auto larger = [](C a, C b) { return a != a || a > b ? a : b; };
  const std::int64_t at_once = kFoldThreads / s.lanes;
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  for (std::int64_t first = blockIdx.x * at_once; first < s.rows; first += gridDim.x * at_once) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / s.lanes, n = row < s.rows ? s.n : 0;
    const T* const x = s.x + row * s.n;
    T* const y = s.y + row * s.n;
    C largest = n == 0 ? C(0) : number(x[0]);
    for (std::int64_t i = lane; i < n; i += s.lanes) largest = larger(largest, number(x[i]));
    largest = fold_lanes(shared, largest, s.lanes, larger);
    double total = 0;
    for (std::int64_t i = lane; i < n; i += s.lanes) total += static_cast<double>(std::exp(number(x[i]) - largest));
    total = fold_lanes(sums, total, s.lanes, [](double a, double b) { return a + b; });
    const C whole = static_cast<C>(total), log_total = static_cast<C>(std::log(total));
    for (std::int64_t i = lane; i < n; i += s.lanes) {
      const C shifted = number(x[i]) - largest;
      y[i] = T(logarithm ? shifted - log_total : std::exp(shifted) / whole);
    }
  }
}
template <bool logarithm>
struct Softmax {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const std::int64_t n = c.input(0).shape.back();
      if (c.input(0).count() == 0) return;
      const std::int64_t rows = c.input(0).count() / n;
      const int lanes = lanes_for(n);
      Grid grid = grid_for(rows * lanes);
      grid.barriers = lanes > 1;
      Issue(c).launch(
          softmax_rows<logarithm, T>, grid,
          SoftmaxRows<logarithm, T>{c.output().template as<T>(), c.input(0).template as<T>(), rows, n, lanes});
    }
  };
};

}  // namespace

void add_reduction_kernels(const Rows& rows) {
  functors::Reduction::each([&]<class F>() {
    if constexpr (F::integers) {
      rows.add<Reduce<F>::template Make>(F::name, backends::Arithmetic{}, kDenseOutputs);
    } else {
      rows.add<Reduce<F>::template Make>(F::name, backends::Floating{}, kDenseOutputs);
    }
  });
  rows.add<BestPlace<false>::Make>("argmax", backends::Arithmetic{}, kDenseOutputs);
  rows.add<BestPlace<true>::Make>("argmin", backends::Arithmetic{}, kDenseOutputs);
  rows.add("any", {DType::boolean}, Reduce<functors::Any>::Make<std::uint8_t>::run, kDenseOutputs);
  rows.add("all", {DType::boolean}, Reduce<functors::Every>::Make<std::uint8_t>::run, kDenseOutputs);
  rows.add<FirstMax>("first_max", backends::Arithmetic{});
  rows.add<Softmax<false>::Make>("softmax", backends::Floating{}, kDense);
  rows.add<Softmax<true>::Make>("log_softmax", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
