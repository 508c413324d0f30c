// Results of operators take hooks, whether they are arrays of their own or views of whole ones: the hook is called
// once, with a gradient in the result's shape. Those of views of a part, or that repeat elements, are refused.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "../support/devices.h"
#include "function_calls.h"

namespace sluice::testing {
namespace {

TEST(Hooks, AreTakenByTheResultsOfAllOperators) {
  test::DefaultEngine engine({.threads = 2});
  std::size_t number = 0, hooked = 0, views = 0, refused = 0;
  for (const FunctionCall& call : function_calls()) {
    const std::string name = "call " + std::to_string(number++) + ", " + call.name;
    Arrays inputs = call.make();
    for (NDArray& x : inputs) {
      if (x.defined() && is_floating(x.dtype()) && !x.requires_grad()) x = x.copy().with_grad();
    }
    Arrays results;
    try {
      results = call.call(inputs);
    } catch (const ArrayError&) {
      continue;  // writes to its inputs, which may not be leaves
    } catch (const Error&) {
      continue;  // numbers that have become leaves, or were changed, and do not fit
    }
    for (const NDArray& y : results) {
      if (!y.defined() || !is_floating(y.dtype()) || !y.requires_grad()) continue;
      int calls = 0;
      const Dims& whole = y.array()->shape();
      bool repeats = false;
      for (int i = 0; i < y.rank(); ++i) repeats = repeats || (y.strides()[i] == 0 && y.shape()[i] > 1);
      if (repeats || y.count() != whole.count()) {
        EXPECT_TRUE(call.view) << name << " promises a copy";
        EXPECT_THROW(on_gradient(y, [](const NDArray& g) { return g; }), ArrayError) << name;
        ++refused;
        continue;
      }
      try {
        GradientHook hook = on_gradient(y, [&](const NDArray& g) {
          ++calls;
          EXPECT_EQ(g.shape(), y.shape()) << name;
          EXPECT_EQ(g.to(DType::f64).to_vector<double>(), std::vector<double>(static_cast<std::size_t>(y.count()), 2))
              << name;
          return NDArray();
        });
        backward({y}, {full_like(y, 2)}, {.retain = true});
        hook.remove();
      } catch (const std::exception& e) {
        ADD_FAILURE() << name << ": " << e.what();
        continue;
      }
      EXPECT_EQ(calls, 1) << name;
      ++hooked;
      views += !(y.is_contiguous() && y.shape() == whole);
    }
  }
  std::cout << number << " calls, " << hooked << " results with a hook, " << views << " of them views, " << refused
            << " views refused\n";
  EXPECT_GT(hooked, 400U);
  EXPECT_GT(views, 15U);
}

}  // namespace
}  // namespace sluice::testing
