// Values that a result does not depend on: with NaN and infinities in their place it has the same bits, as have the
// gradients of all else, and their own gradients are 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

struct UnseenCase {
  std::string name;
  std::vector<Dims> shapes;
  std::function<NDArray(const Arrays&)> call;
  /// Whether the element of an input with this row-major number does not count.
  std::function<bool(int input, std::int64_t element)> unseen;
  bool second_order = true;
  bool symmetric_gradient = false;  ///< what is not read gets the gradient of what stands for it
};
void PrintTo(const UnseenCase& c, std::ostream* out) { *out << c.name; }

std::function<bool(int, std::int64_t)> elements(int of_input, std::vector<std::int64_t> list) {
  return [=](int input, std::int64_t at) {
    return input == of_input && std::find(list.begin(), list.end(), at) != list.end();
  };
}

/// bools: those that are not 0.
NDArray bools(const std::vector<std::int32_t>& list, const Dims& shape) { return from(list, shape) != 0; }

std::vector<UnseenCase> unseen_cases() {
  std::vector<UnseenCase> list;
  const NDArray some = bools({1, 0, 1, 0, 0, 1}, {2, 3});
  const auto not_chosen = [](int input, std::int64_t at) {
    const bool chosen = at == 0 || at == 2 || at == 5;
    return input == (chosen ? 1 : 0);
  };
  list.push_back({"where", {{2, 3}, {2, 3}}, [=](const Arrays& x) { return where(some, x[0], x[1]); }, not_chosen});
  list.push_back(
      {"masked_fill", {{2, 3}}, [=](const Arrays& x) { return masked_fill(x[0], some, 3); }, elements(0, {0, 2, 5})});
  list.push_back(
      {"masked_select", {{2, 3}}, [=](const Arrays& x) { return masked_select(x[0], some); }, elements(0, {1, 3, 4})});
  list.push_back({"tril", {{3, 3}}, [](const Arrays& x) { return tril(x[0]); }, elements(0, {1, 2, 5})});
  list.push_back({"triu", {{3, 3}}, [](const Arrays& x) { return triu(x[0], 1); }, elements(0, {0, 3, 4, 6, 7, 8})});
  list.push_back({"dropout",
                  {{64}},
                  [](const Arrays& x) {
                    RandomStream stream(3);
                    return dropout(x[0], 0.5, stream);
                  },
                  [](int, std::int64_t at) {
                    RandomStream stream(3);
                    return values_of(dropout(ones({64}), 0.5, stream))[static_cast<std::size_t>(at)] == 0;
                  }});
  list.push_back({"lerp of numbers at 0",
                  {{4}, {4}},
                  [](const Arrays& x) { return lerp(x[0], x[1], 0); },
                  [](int input, std::int64_t) { return input == 1; }});
  list.push_back({"lerp of numbers at 1",
                  {{4}, {4}},
                  [](const Arrays& x) { return lerp(x[0], x[1], 1); },
                  [](int input, std::int64_t) { return input == 0; }});
  list.push_back({"lerp",
                  {{4}, {4}},
                  [](const Arrays& x) {
                    return lerp(x[0], x[1], from({0.0, 1.0, 0.25, 0.75}, {4}).to(x[0].dtype()));
                  },
                  [](int input, std::int64_t at) { return at == (input == 1 ? 0 : 1); }});
  list.push_back({"take_rows",
                  {{4, 2}},
                  [](const Arrays& x) {
                    return take_rows(x[0], from({0, 3, 3}, {3}));
                  },
                  elements(0, {2, 3, 4, 5})});
  list.push_back({"index_select",
                  {{3, 4}},
                  [](const Arrays& x) {
                    return index_select(x[0], 1, from({2, 0}, {2}));
                  },
                  elements(0, {1, 3, 5, 7, 9, 11})});
  list.push_back({"take",
                  {{2, 3}},
                  [](const Arrays& x) {
                    return take(x[0], from({5, 0}, {2}));
                  },
                  elements(0, {1, 2, 3, 4})});
  list.push_back({"take_along_axis",
                  {{2, 3}},
                  [](const Arrays& x) {
                    return take_along_axis(x[0], from({1, 0}, {2, 1}), 1);
                  },
                  elements(0, {0, 2, 4, 5})});
  list.push_back({"scatter",
                  {{2, 3}, {2, 1}},
                  [](const Arrays& x) {
                    return scatter(x[0], 1, from({1, 0}, {2, 1}), x[1]);
                  },
                  elements(0, {1, 3})});
  list.push_back({"embedding",
                  {{4, 2}},
                  [](const Arrays& x) {
                    return embedding(x[0], from({1, 1}, {2}));
                  },
                  elements(0, {0, 1, 4, 5, 6, 7})});
  list.push_back({"slice", {{4}}, [](const Arrays& x) { return x[0](slice(1, 3)) * 2; }, elements(0, {0, 3})});
  list.push_back({"cholesky",
                  {{2, 2}},
                  [](const Arrays& x) {
                    return cholesky(x[0] + from({4.0, 0.0, 0.0, 4.0}, {2, 2}).to(x[0].dtype()));
                  },
                  elements(0, {1}),
                  true,
                  true});
  list.push_back({"eigh",
                  {{3, 3}},
                  [](const Arrays& x) { return square(eigh(x[0]).vectors); },
                  elements(0, {1, 2, 5}),
                  true,
                  true});
  const NDArray labels = from({1, -7, 2}, {3});
  const auto second_row = elements(0, {4, 5, 6, 7});
  for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const std::string of = r == Reduction::mean ? " mean" : r == Reduction::sum ? " sum" : " each";
    list.push_back({"cross_entropy" + of,
                    {{3, 4}},
                    [=](const Arrays& x) {
                      return cross_entropy(x[0], labels, CrossEntropyOptions{.reduction = r, .ignore_index = -7});
                    },
                    second_row});
    list.push_back({"smooth cross_entropy" + of,
                    {{3, 4}, {4}},
                    [=](const Arrays& x) {
                      return cross_entropy(x[0], labels,
                                           CrossEntropyOptions{.reduction = r,
                                                               .ignore_index = -7,
                                                               .weight = square(x[1]).detach(),
                                                               .label_smoothing = 0.1});
                    },
                    second_row});
    list.push_back({"nll_loss" + of,
                    {{3, 4}},
                    [=](const Arrays& x) { return nll_loss(x[0], labels, {.reduction = r, .ignore_index = -7}); },
                    [](int, std::int64_t at) { return at != 1 && at != 10; }});
    list.push_back(
        {"kl_div" + of,
         {{2, 3}},
         [=](const Arrays& x) {
           return kl_div(x[0], from({0.5, 0.5, 0.0, 0.0, 1.0, 0.0}, {2, 3}).to(x[0].dtype()), {.reduction = r});
         },
         elements(0, {2, 3, 5})});
  }
  list.push_back({"cross_entropy of images",
                  {{1, 4, 3}},
                  [=](const Arrays& x) {
                    return cross_entropy(x[0], labels.reshape({1, 3}), CrossEntropyOptions{.ignore_index = -7});
                  },
                  elements(0, {1, 4, 7, 10})});
  // Attention over blocks of keys and queries, whose last is not full. Keys from 70 on, and the 3rd, are for nobody.
  constexpr std::int64_t n = 40, m = 75, size = 3, width = 2;
  const auto hidden_key = [](std::int64_t key) { return key == 2 || key >= 70; };
  const NDArray places = arange(m), seen = logical_and(places != 2, places < 70);
  const auto of_keys = [=](int input, std::int64_t at) {
    return (input == 1 && hidden_key(at / size % m)) || (input == 2 && hidden_key(at / width % m));
  };
  const std::vector<Dims> sizes{{1, 2, n, size}, {1, 1, m, size}, {1, 1, m, width}};
  list.push_back({"attention with a mask of bools", sizes,
                  [=](const Arrays& x) { return attention(x[0], x[1], x[2], {.mask = seen}); }, of_keys});
  list.push_back({"attention with a mask to add", sizes,
                  [=](const Arrays& x) {
                    return attention(x[0], x[1], x[2], {.mask = where(seen, zeros({}, x[0].dtype()), -kInf)});
                  },
                  of_keys});
  // The queries see all keys but the last ones, which are for no query that is looked at.
  list.push_back({"causal attention", sizes,
                  [=](const Arrays& x) { return attention(x[0], x[1], x[2], {.causal = true})(all, all, slice(0, 3)); },
                  [=](int input, std::int64_t at) {
                    constexpr std::int64_t below = m - n + 3;
                    return (input == 1 && at / size % m >= below) || (input == 2 && at / width % m >= below) ||
                           (input == 0 && at / size % n >= 3);
                  },
                  /*second_order=*/false});
  // A query that sees nothing gives zeros whatever it is, and keys that no other query sees.
  list.push_back({"attention of a query that sees nothing", sizes,
                  [=](const Arrays& x) { return attention(x[0], x[1], x[2], {.mask = (arange(n) != 7).unsqueeze(1)}); },
                  [=](int input, std::int64_t at) { return input == 0 && at / size % n == 7; }});
  return list;
}

class Unseen : public ::testing::TestWithParam<UnseenCase> {};

/// The result, the gradients of the inputs, and, with second_order, the gradients of the sum of the gradients' squares.
std::vector<NDArray> outcome(const UnseenCase& c, DType dtype, double filler) {
  Arrays x;
  for (std::size_t i = 0; i < c.shapes.size(); ++i) {
    NDArray plain = drawn(c.shapes[i], 17 + i);
    std::vector<double> numbers = plain.to_vector<double>();
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      if (c.unseen(static_cast<int>(i), static_cast<std::int64_t>(at))) numbers[at] = filler;
    }
    x.push_back(from(numbers, c.shapes[i]).to(dtype).with_grad());
  }
  const NDArray y = c.call(x);
  std::vector<NDArray> all_of_it{y};
  const NDArray weights = drawn(y.shape(), 5, y.dtype());
  const auto add = [&](const std::vector<NDArray>& gradients) {
    for (std::size_t i = 0; i < x.size(); ++i)
      all_of_it.push_back(gradients[i].defined() ? gradients[i] : zeros(x[i].shape(), dtype));
  };
  add(grad({y}, {weights}, x, {.retain = true}));
  if (c.second_order) {
    const std::vector<NDArray> first = grad({y}, {weights}, x, {.create_graph = true});
    NDArray total = zeros({}, dtype);
    for (const NDArray& g : first) {
      if (g.defined() && g.requires_grad()) total = total + sum(square(g));
    }
    if (total.requires_grad()) add(grad(total, x));
  }
  return all_of_it;
}

TEST_P(Unseen, DoNotCount) {
  const UnseenCase& c = GetParam();
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<NDArray> wanted = outcome(c, dtype, 0.5);
    for (const double filler : {kNan, kInf, -kInf}) {
      const std::vector<NDArray> got = outcome(c, dtype, filler);
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t k = 0; k < got.size(); ++k) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", filler " + std::to_string(filler) + ", array " +
                     std::to_string(k));
        const std::vector<double> a = values_of(got[k]), b = values_of(wanted[k]);
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t at = 0; at < a.size(); ++at) {
          const bool own = k > 0 && !c.symmetric_gradient &&
                           c.unseen(static_cast<int>((k - 1) % c.shapes.size()), static_cast<std::int64_t>(at));
          ASSERT_EQ(a[at], own ? 0 : b[at]) << at;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Values, Unseen, ::testing::ValuesIn(unseen_cases()), [](const auto& of) {
  std::string name = of.param.name;
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  return name;
});

// What a query does see is not hidden: a key that is not finite is told to those who see it.
TEST(Unseen, WhatIsSeenIsTold) {
  const NDArray q = drawn({1, 2, 3}, 1), k = drawn({1, 2, 3}, 2);
  NDArray v = drawn({1, 2, 2}, 3);
  const std::vector<double> numbers = values_of(v);
  v = from({numbers[0], numbers[1], kInf, numbers[3]}, {1, 2, 2});
  const std::vector<double> y = values_of(attention(q, k, v, {.mask = bools({1, 0, 1, 1}, {2, 2})}));
  EXPECT_EQ(y[0], numbers[0]);
  EXPECT_EQ(y[1], numbers[1]);
  EXPECT_EQ(y[2], kInf);
  EXPECT_TRUE(std::isfinite(y[3]));
}

}  // namespace
}  // namespace sluice::testing
