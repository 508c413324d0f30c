// Gradients of many views of one array: the numbers of adding them one after another, at the cost of what they show.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using View = std::function<NDArray(const NDArray&)>;

class Programs {
 public:
  explicit Programs(unsigned seed) : random_(seed) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  Dims shape() {
    Dims s;
    const std::int64_t rank = pick(1, 3);
    for (std::int64_t i = 0; i < rank; ++i) s.push_back(pick(1, 5));
    return s;
  }
  /// One step of a view of an array of this shape.
  View step(const Dims& s) {
    const int axis = static_cast<int>(s.rank() == 0 ? 0 : pick(0, s.rank() - 1));
    switch (s.rank() == 0 ? 6 : pick(0, 8)) {
      case 0:
        return [](const NDArray& x) { return x; };
      case 1: {
        const std::int64_t at = pick(0, s[0] - 1);
        return [at](const NDArray& x) { return x(at); };
      }
      case 2:
      case 3: {
        const std::int64_t begin = pick(0, s[axis] - 1), end = pick(begin, s[axis]);
        return [=](const NDArray& x) { return x.narrow(axis, begin, end); };
      }
      case 4: {
        const std::int64_t by = pick(2, 3), first = pick(0, s[0] - 1);
        return [=](const NDArray& x) { return x(slice(first, x.shape()[0], by)); };
      }
      case 5: {
        std::vector<std::int64_t> order;
        for (int i = 0; i < s.rank(); ++i) order.push_back(s.rank() - 1 - i);
        return [order](const NDArray& x) { return x.permute(Dims(order)); };
      }
      case 6:
        return [](const NDArray& x) {
          Dims wide{2};
          for (int i = 0; i < x.rank(); ++i) wide.push_back(x.shape()[i]);
          return x.unsqueeze(0).broadcast_to(wide);
        };
      case 7: {  // rows, or parts of rows, that lie one after the other
        const std::int64_t begin = pick(0, s.count()), end = pick(begin, s.count());
        return [=](const NDArray& x) { return x.reshape({x.count()}).narrow(0, begin, end); };
      }
      default: {  // windows that share elements
        const std::int64_t size = pick(1, s[0]);
        return [=](const NDArray& x) { return x.unfold(0, size, 1); };
      }
    }
  }
  View view(const Dims& of) {
    std::vector<View> steps;
    NDArray shown = zeros(of);
    for (std::int64_t n = pick(0, 3); n > 0 && shown.count() > 0; --n) {
      steps.push_back(step(shown.shape()));
      shown = steps.back()(shown);
    }
    return [steps](const NDArray& x) {
      NDArray y = x;
      for (const View& step : steps) y = step(y);
      return y;
    };
  }

 private:
  std::mt19937 random_;
};

/// The sum of terms, given from the last use of the program to the first, by the tree of gradients.h.
Floats sum_by_the_tree(const std::vector<Floats>& youngest_first) {
  std::vector<Floats> terms;
  const auto sum_of_terms = [&] {
    Floats value = terms.back();
    for (std::size_t k = terms.size() - 1; k-- > 0;) {
      for (std::size_t i = 0; i < value.size(); ++i) value[i] += terms[k][i];
    }
    return value;
  };
  for (const Floats& term : youngest_first) {
    terms.push_back(term);
    if (terms.size() == 16) terms = {sum_of_terms()};
  }
  return sum_of_terms();
}

TEST(GradientWindows, HaveTheNumbersOfTheTree) {
  TestEngine test(2);
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Programs programs(seed);
    RandomStream stream(seed);
    const Dims shape = programs.shape();
    const NDArray values = normal(shape, stream), x = values.copy().with_grad();
    const bool rows = seed % 3 == 0;  // in every third program, views of single rows alone
    std::vector<View> views;
    for (std::int64_t n = programs.pick(1, 40); n > 0; --n) {
      const std::int64_t at = programs.pick(0, shape[0] - 1);
      views.push_back(rows ? View([at](const NDArray& of) { return of(at); }) : programs.view(shape));
    }
    NDArray total = zeros({});
    std::vector<Floats> terms;
    for (const View& view : views) {
      // Some are -0.
      const NDArray drawn = normal(view(values).shape(), stream),
                    factors = where(drawn > 1, zeros_like(drawn) * -1.0, drawn), alone = values.copy().with_grad();
      total = total + sum(view(x) * factors);
      sum(view(alone) * factors).backward();
      terms.insert(terms.begin(), alone.grad().to_vector<float>());
    }
    total.backward();
    const Floats wanted = sum_by_the_tree(terms), got = x.grad().to_vector<float>();
    ASSERT_EQ(got, wanted);
    ASSERT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << "signs of zeros";
  }
}

/// Adds up the bytes that calls ask for.
class Bytes final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    sum += cost_of(call).bytes;
    next(call);
  }
  double sum = 0;
};

double bytes_of_backward(const std::function<NDArray(const NDArray&)>& f, std::int64_t rows) {
  const NDArray x = ones({rows, 64}).with_grad();
  const NDArray y = f(x);
  const auto bytes = std::make_shared<Bytes>();
  const InterpreterScope scope(bytes);
  y.backward();
  return bytes->sum;
}

/// Twice as many steps cost about twice as much, not four times.
TEST(GradientWindows, ALoopOverRowsIsLinear) {
  TestEngine test(2);
  const auto loop = [](const NDArray& x) {
    NDArray h = zeros({64});
    for (std::int64_t t = 0; t < x.shape()[0]; ++t) h = tanh(h + x(t));
    return sum(h);
  };
  const auto columns = [](const NDArray& rows) {  // whose windows lie between each other
    const NDArray x = rows.transpose() * 1;
    NDArray h = zeros({64});
    for (std::int64_t t = 0; t < x.shape()[1]; ++t) h = tanh(h + x(all, t));
    return sum(h);
  };
  const auto written = [](const NDArray& x) {
    NDArray y = zeros(x.shape());
    for (std::int64_t t = 0; t < x.shape()[0]; ++t) y(t).assign(x(t) * 2);
    return sum(square(y));
  };
  for (const auto& [name, f] : {std::pair<const char*, std::function<NDArray(const NDArray&)>>{"rows", loop},
                                {"columns", columns},
                                {"rows that are written", written}}) {
    const double once = bytes_of_backward(f, 100), twice = bytes_of_backward(f, 200);
    EXPECT_LE(twice, 2.2 * once) << name;
  }
}

/// The gradient behind a write to a part is written in place only where nobody else has it.
TEST(GradientWindows, WritesLeaveTheGradientsThatAProgramHas) {
  TestEngine test(2);
  const Floats given{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const NDArray of_whole = arange(12).to(DType::f32).reshape({3, 4});
  const auto written = [](const NDArray& y) {
    const NDArray whole = zeros({3, 4});
    whole(0).assign(y);
    whole(2).assign(y);
    return whole;
  };
  {
    const NDArray x = ones({4}).with_grad(), whole = written(x * 2);
    backward(std::vector<NDArray>{whole}, std::vector<NDArray>{of_whole});
    EXPECT_EQ(x.grad().to_vector<float>(), (Floats{16, 20, 24, 28}));
    EXPECT_EQ(of_whole.to_vector<float>(), given);
  }
  {
    const NDArray x = ones({4}).with_grad(), whole = written(x * 2);
    std::vector<NDArray> kept;
    const auto hook = on_gradient(whole, [&](const NDArray& g) {
      kept.push_back(g);
      return NDArray();
    });
    backward(std::vector<NDArray>{whole * 1}, std::vector<NDArray>{of_whole});
    ASSERT_EQ(kept.size(), 1U);
    EXPECT_EQ(kept[0].to_vector<float>(), given);
    EXPECT_EQ(x.grad().to_vector<float>(), (Floats{16, 20, 24, 28}));
  }
  {
    const NDArray x = ones({4}).with_grad(), y = x * 2, whole = written(y);
    const std::vector<NDArray> gradients =
        grad(std::vector<NDArray>{whole * 1}, std::vector<NDArray>{of_whole}, std::vector<NDArray>{whole, y});
    EXPECT_EQ(gradients[0].to_vector<float>(), given);
    EXPECT_EQ(gradients[1].to_vector<float>(), (Floats{8, 10, 12, 14}));
  }
}

}  // namespace
}  // namespace sluice::testing
