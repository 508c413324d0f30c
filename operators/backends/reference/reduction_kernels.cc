// Reductions and softmax of the reference backend.
#include <algorithm>
#include <optional>
#include <vector>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/each_element.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/functors.h"

namespace sluice::reference {
namespace {

using namespace backends;

// The output element that each input element of a reduction goes to: the output seen with the input's axes.
TensorView widened(const TensorView& y, const TensorView& x, const ReduceAttributes& a) {
  TensorView view = y;
  view.shape = x.shape;
  view.strides = Dims{};
  int at = 0;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const bool reduced = (a.axes >> i & 1U) != 0;
    view.strides.push_back(reduced ? 0 : y.strides[at]);
    if (!reduced || a.keep) ++at;
  }
  return view;
}

template <class F>
struct Fold {
  template <class T>
  struct Make {
    /// Floating results are kept in double, as sums are.
    using Total = std::conditional_t<is_floating(dtype_of<T>), double, T>;
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<ReduceAttributes>();
      const TensorView& x = c.input(0);
      const TensorView target = widened(c.output(), x, a);
      std::vector<std::optional<Total>> totals(static_cast<std::size_t>(c.output().count()));
      for_each_element<2>({&x, &target}, [&](auto at) {
        std::optional<Total>& total = totals[static_cast<std::size_t>(at[1])];
        const auto value = static_cast<Total>(number(x.as<T>()[at[0]]));
        total = total ? F{}(*total, value) : value;
      });
      for (std::size_t i = 0; i < totals.size(); ++i) {
        Total total = totals[i] ? *totals[i] : F::template empty<Total>();
        if constexpr (is_floating(dtype_of<T>)) total *= a.scale;
        c.output().as<T>()[i] = element<T>(total);
      }
    }
  };
};

// For each group: the place (row-major in the group) and offset of the first largest, or smallest, element; NaN counts
// as such.
template <class T, bool smallest = false, class Visit>
void each_largest(const TensorView& x, const TensorView& target, std::int64_t groups, Visit visit) {
  struct Best {
    std::int64_t place = 0, offset = 0, seen = 0;
  };
  std::vector<Best> best(static_cast<std::size_t>(groups));
  for_each_element<2>({&x, &target}, [&](auto at) {
    Best& b = best[static_cast<std::size_t>(at[1])];
    const auto value = number(x.as<T>()[at[0]]), largest = number(x.as<T>()[b.offset]);
    const bool better = smallest ? value < largest : value > largest;
    if (b.seen == 0 || better || (value != value && largest == largest)) {
      b.place = b.seen;
      b.offset = at[0];
    }
    ++b.seen;
  });
  for (std::size_t i = 0; i < best.size(); ++i) visit(static_cast<std::int64_t>(i), best[i].place, best[i].offset);
}

template <bool smallest>
struct BestPlace {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const TensorView target = widened(c.output(), c.input(0), c.attributes<ReduceAttributes>());
      each_largest<T, smallest>(
          c.input(0), target, c.output().count(),
          [&](std::int64_t i, std::int64_t place, std::int64_t) { c.output().as<std::int64_t>()[i] = place; });
    }
  };
};

template <class T>
struct FirstMax {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ReduceAttributes>();
    const TensorView& x = c.input(0);
    TensorView groups;
    for (int i = 0; i < x.shape.rank(); ++i) {
      if ((a.axes >> i & 1U) == 0) groups.shape.push_back(x.shape[i]);
    }
    groups.strides = row_major(groups.shape);
    const TensorView target = widened(groups, x, {a.axes, false, 1});
    for (std::int64_t i = 0; i < x.count(); ++i) c.output().as<T>()[i] = T(0);
    if (x.count() == 0) return;
    each_largest<T>(x, target, groups.count(),
                    [&](std::int64_t, std::int64_t, std::int64_t offset) { c.output().as<T>()[offset] = T(1); });
  }
};

template <bool logarithm>
struct Softmax {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const std::int64_t n = c.input(0).shape.back();
      if (n == 0) return;
      for (std::int64_t row = 0; row < c.input(0).count() / n; ++row) {
        const T* x = c.input(0).as<T>() + row * n;
        T* y = c.output().as<T>() + row * n;
        double largest = term(x[0]), total = 0;
        for (std::int64_t i = 1; i < n; ++i) largest = std::max(largest, term(x[i]));
        for (std::int64_t i = 0; i < n; ++i) total += std::exp(term(x[i]) - largest);
        for (std::int64_t i = 0; i < n; ++i) {
          const double shifted = term(x[i]) - largest;
          y[i] = element<T>(logarithm ? shifted - std::log(total) : std::exp(shifted) / total);
        }
      }
    }
  };
};

}  // namespace

void add_reduction_kernels(Registry& registry) {
  functors::Reduction::each([&]<class F>() {
    using List = std::conditional_t<F::integers, Arithmetic, Floating>;
    add<Fold<F>::template Make>(registry.get(F::name), kReference, List{}, kDense);
  });
  add<BestPlace<false>::Make>(registry.get("argmax"), kReference, Arithmetic{}, kDense);
  add<BestPlace<true>::Make>(registry.get("argmin"), kReference, Arithmetic{}, kDense);
  const auto of_bool = [&]<class F>(F) {
    Kernel kernel = kDense;
    kernel.run = Fold<F>::template Make<std::uint8_t>::run;
    registry.get(F::name).add_kernel(kReference, {DType::boolean}, kernel);
  };
  of_bool(functors::Any{});
  of_bool(functors::Every{});
  add<FirstMax>(registry.get("first_max"), kReference, Arithmetic{}, kDense);
  add<Softmax<false>::Make>(registry.get("softmax"), kReference, Floating{}, kDense);
  add<Softmax<true>::Make>(registry.get("log_softmax"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
