// Programs that write in place to a value that a gradient needs: each gives the loss and the gradients of a twin that
// writes to nothing. Programs whose values nobody needs any more copy nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../ndarray/ndarray_test_support.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice::testing {
namespace {

using Doubles = std::vector<double>;
using Arrays = std::vector<NDArray>;
/// Both arguments are (2, 3) f64, positive, and want gradients. The result has one element.
using Program = NDArray (*)(const NDArray& x, const NDArray& w);
using Array2 = const NDArray&;

struct Row {
  const char* name;
  Program in_place, twin;
};

NDArray first_row(double zero, double other) { return from({zero, zero, zero, other, other, other}, {2, 3}); }

const Row kRefusedElsewhere[] = {
    {"the result of exp",
     [](Array2 x, Array2 w) {
       NDArray y = exp(x);
       y += w;
       return sum(y);
     },
     [](Array2 x, Array2 w) { return sum(exp(x) + w); }},
    {"the result of sigmoid",
     [](Array2 x, Array2 w) {
       NDArray y = sigmoid(x);
       y *= w;
       return sum(y);
     },
     [](Array2 x, Array2 w) { return sum(sigmoid(x) * w); }},
    {"a row of the result of tanh",
     [](Array2 x, Array2 w) {
       const NDArray y = tanh(x);
       y(0).fill(0);
       return sum(y * w);
     },
     [](Array2 x, Array2 w) { return sum(tanh(x) * first_row(0, 1) * w); }},
    {"the result of sqrt",
     [](Array2 x, Array2 w) {
       NDArray y = sqrt(x);
       y -= 1.0;
       return sum(y * w);
     },
     [](Array2 x, Array2 w) { return sum((sqrt(x) - 1.0) * w); }},
    {"both factors of a square",
     [](Array2 x, Array2 w) {
       NDArray y = x * 1.0;
       const NDArray z = y * y;
       y += w;
       return sum(z) + sum(y * y);
     },
     [](Array2 x, Array2 w) { return sum(x * x) + sum((x + w) * (x + w)); }},
    {"one factor, filled",
     [](Array2 x, Array2 w) {
       const NDArray v = w * 1.0;
       const NDArray z = x * v;
       v.fill(0);
       return sum(z + v);
     },
     [](Array2 x, Array2 w) { return sum(x * w); }},
    {"the result of softmax",
     [](Array2 x, Array2 w) {
       NDArray y = softmax(x, 1);
       y *= w;
       return sum(y);
     },
     [](Array2 x, Array2 w) { return sum(softmax(x, 1) * w); }},
    {"an operand of matmul",
     [](Array2 x, Array2 w) {
       NDArray a = x * 1.0;
       const NDArray z = matmul(a, w.transpose());
       a *= 0.0;
       return sum(z * z) + sum(a);
     },
     [](Array2 x, Array2 w) { return sum(square(matmul(x, w.transpose()))); }},
    {"a divisor",
     [](Array2 x, Array2 w) {
       NDArray y = x * 1.0;
       const NDArray z = w / y;
       y += 1.0;
       return sum(z * y);
     },
     [](Array2 x, Array2 w) { return sum(w / x * (x + 1.0)); }},
    {"what was squared",
     [](Array2 x, Array2 w) {
       NDArray y = x * w;
       const NDArray z = square(y);
       y *= 3.0;
       return sum(z + y);
     },
     [](Array2 x, Array2 w) { return sum(square(x * w) + x * w * 3.0); }},
    {"the argument of sin, filled",
     [](Array2 x, Array2 w) {
       const NDArray y = x * w;
       const NDArray z = sin(y);
       y.fill(0);
       return sum(z);
     },
     [](Array2 x, Array2 w) { return sum(sin(x * w)); }},
    {"a view of the result of exp",
     [](Array2 x, Array2 w) {
       const NDArray z = exp(x);
       NDArray v = z(all, 1);
       v *= w(all, 0);
       return sum(z);
     },
     [](Array2 x, Array2 w) {
       const NDArray z = exp(x);
       return sum(z(all, 0)) + sum(z(all, 1) * w(all, 0)) + sum(z(all, 2));
     }},
    {"a transposed view of what a product keeps",
     [](Array2 x, Array2 w) {
       const NDArray y = x * 1.0;
       const NDArray z = y * w;
       NDArray t = y.transpose();
       t += t;
       return sum(z * y);
     },
     [](Array2 x, Array2 w) { return sum(x * w * (x * 2.0)); }},
    {"the result of reciprocal",
     [](Array2 x, Array2 w) {
       NDArray y = reciprocal(x);
       y += w;
       return sum(y * y);
     },
     [](Array2 x, Array2 w) { return sum(square(reciprocal(x) + w)); }},
    {"a state that a loop multiplies by a function of itself",
     [](Array2 x, Array2 w) {
       NDArray h = x * 1.0;
       for (int i = 0; i < 3; ++i) {
         h *= sin(h);
         h += w;
       }
       return sum(h);
     },
     [](Array2 x, Array2 w) {
       NDArray h = x * 1.0;
       for (int i = 0; i < 3; ++i) h = h * sin(h) + w;
       return sum(h);
     }},
    {"the argument of log",
     [](Array2 x, Array2 w) {
       NDArray y = x * w;
       const NDArray z = log(y);
       y -= y;
       return sum(z) + sum(y);
     },
     [](Array2 x, Array2 w) { return sum(log(x * w)); }},
    {"where a mask says",
     [](Array2 x, Array2 w) {
       const NDArray y = x * w;
       const NDArray z = y * y;
       y(y > 0.5) = 0.0;
       return sum(z + y);
     },
     [](Array2 x, Array2 w) {
       const NDArray y = x * w;
       return sum(y * y + where(y > 0.5, y * 0.0, y));
     }},
    {"rows by their numbers",
     [](Array2 x, Array2 w) {
       const NDArray y = x * w;
       const NDArray z = y * y;
       y(from<std::int64_t>({1}, {1})) = w(slice(0, 1));
       return sum(z * y);
     },
     [](Array2 x, Array2 w) {
       const NDArray y = x * w;
       return sum(y * y * concat(Arrays{y(slice(0, 1)), w(slice(0, 1))}, 0));
     }},
    {"the argument of logsumexp",
     [](Array2 x, Array2 w) {
       NDArray y = x * w;
       const NDArray z = logsumexp(y, 1);
       y += z.unsqueeze(1);
       return sum(z) + sum(y * y);
     },
     [](Array2 x, Array2 w) {
       const NDArray z = logsumexp(x * w, 1);
       return sum(z) + sum(square(x * w + z.unsqueeze(1)));
     }},
    {"operands of maximum",
     [](Array2 x, Array2 w) {
       NDArray y = x * 2.0;
       const NDArray z = maximum(y, w);
       y.assign(w);
       return sum(z * y);
     },
     [](Array2 x, Array2 w) { return sum(maximum(x * 2.0, w) * w); }},
    {"the argument of prod",
     [](Array2 x, Array2 w) {
       NDArray y = x * w;
       const NDArray z = prod(y);
       y *= 2.0;
       return z * sum(y);
     },
     [](Array2 x, Array2 w) { return prod(x * w) * sum(x * w * 2.0); }},
    {"a value that another takes over",
     [](Array2 x, Array2 w) {
       NDArray y = exp(x);
       const NDArray z = y * w;
       y.assign(z);
       y *= y;
       return sum(y + z);
     },
     [](Array2 x, Array2 w) {
       const NDArray z = exp(x) * w;
       return sum(z * z + z);
     }},
};

std::size_t copies(const RecordScope& scope) {
  std::size_t n = 0;
  for (const OperationRecord& r : scope.records()) n += r.kind() == "copy on write";
  return n;
}

/// The loss, both gradients, and both gradients of the sum of their squares.
std::vector<Doubles> derivatives(Program program, std::size_t* copied) {
  const NDArray x = from({0.3, 0.7, 1.1, 0.9, 0.4, 1.3}, {2, 3}).with_grad();
  const NDArray w = from({0.8, 1.2, 0.5, 0.6, 1.4, 0.2}, {2, 3}).with_grad();
  NDArray loss;
  {
    const RecordScope scope;
    loss = program(x, w);
    if (copied) *copied = copies(scope);
  }
  const Arrays xs{x, w};
  const Arrays first = grad(loss, xs, {.create_graph = true});
  const Arrays second = grad(sum(square(first[0])) + sum(square(first[1])), xs, {.retain = true});
  loss.backward();
  std::vector<Doubles> out{loss.to_vector<double>()};
  for (const NDArray& g : {first[0], first[1], second[0], second[1], x.grad(), w.grad()}) {
    out.push_back(g.defined() ? g.to_vector<double>() : Doubles(6, 0.0));
  }
  return out;
}

TEST(InPlacePrograms, HaveTheGradientsOfTheirTwins) {
  static_assert(std::size(kRefusedElsewhere) >= 20);
  TestEngine test(2);
  for (const Row& row : kRefusedElsewhere) {
    SCOPED_TRACE(row.name);
    std::size_t copied = 0, none = 0;
    const auto got = derivatives(row.in_place, &copied), want = derivatives(row.twin, &none);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_THAT(got[i], ::testing::Pointwise(::testing::DoubleNear(1e-10), want[i])) << i;
    }
    EXPECT_GE(copied, 1U);  // the old value was needed
    EXPECT_EQ(none, 0U);
  }
}

TEST(InPlacePrograms, CopyNothingThatNobodyNeeds) {
  TestEngine test(2);
  const NDArray x = from({0.3, 0.7, 1.1, 0.9, 0.4, 1.3}, {2, 3}).with_grad();
  const NDArray w = from({0.8, 1.2, 0.5, 0.6, 1.4, 0.2}, {2, 3}).with_grad();
  const RecordScope scope;
  NDArray y = x + w;
  y += w;
  y -= x;
  y *= 3.0;
  y(0).fill(0);
  NDArray column = y(all, 1);
  column += w(all, 0);
  y.transpose().assign(w.transpose());
  y(from<std::int64_t>({1, 1}, {2})) += x;
  sum(y).backward();
  {
    const NoGrad update;
    for (NDArray p : {x, w}) p -= p.grad() * 0.1;
  }
  // A second backward adds to the gradients where they are.
  NDArray z = x * 2.0;
  z += w;
  sum(z).backward();
  EXPECT_EQ(copies(scope), 0U);
}

}  // namespace
}  // namespace sluice::testing
