// shapes_of over the operators' table: the specs of a real run, gradients too, and nothing runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

/// The result, and the gradients of what wants one.
Arrays forward_and_backward(const OperatorCase& c, const Arrays& x) {
  Arrays all{c.call(x)};
  if (!c.gradient || !all[0].requires_grad()) return all;
  for (const NDArray& g : grad(sum(all[0]), x, {.create_graph = c.second_order})) {
    if (!g.defined()) continue;
    all.push_back(g);
    if (!c.second_order || !g.requires_grad()) continue;
    for (const NDArray& second : grad(sum(square(g)), x, {.retain = true})) {
      if (second.defined()) all.push_back(second);
    }
  }
  return all;
}

TEST(ShapesOfOperators, AreThoseOfARealRun) {
  int compared = 0, waiting = 0;
  for (const OperatorCase& c : operator_cases()) {
    SCOPED_TRACE(c.name);
    Arrays x;
    for (const NDArray& input : make_inputs(c, c.by_lapack ? DType::f64 : DType::f32)) {
      x.push_back(c.gradient ? input.with_grad() : input);
    }
    std::vector<Spec> wanted;
    for (const NDArray& y : forward_and_backward(c, x)) wanted.push_back(y.spec());
    std::vector<std::vector<std::byte>> before;
    for (const NDArray& input : x) before.push_back(input.to_bytes());
    try {
      EXPECT_EQ(shapes_of([&] { return forward_and_backward(c, x); }).results, wanted);
      ++compared;
    } catch (const ArrayError& error) {
      EXPECT_NE(std::string(error.what()).find("a function in shapes_of must not"), std::string::npos) << error.what();
      ++waiting;
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].to_bytes(), before[i]);
      EXPECT_FALSE(x[i].grad().defined());
    }
  }
  std::printf("%d cases, %d more wait\n", compared, waiting);
  EXPECT_GT(compared, 600);
  EXPECT_LT(waiting, 10);
}

}  // namespace
}  // namespace sluice::testing
