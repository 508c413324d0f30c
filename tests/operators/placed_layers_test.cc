// Functions with a weight and a bias on meshes of 2, 3 and 2 x 2 places: x, the weight and the bias in every layout.
// Each call has the values and gradients of plain arrays, or is refused by a line that says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "placement_support.h"

namespace sluice::testing {
namespace {

using Arrays = std::vector<NDArray>;
using Layouts = std::vector<sluice::Placement>;

struct Function {
  std::string name;
  std::vector<Dims> shapes;
  std::function<NDArray(const Arrays&)> call;
  /// Along an axis of the mesh: x, weight, bias -> the result, then g where all want gradients, b where only the bias.
  std::string passes;
};

/// By columns of the weight the bias is cut as the rows are; by rows of it a bias that is no term is refused.
constexpr const char* kProduct = "RRR->Rg RRS0->S1b RS0R->S1 RS0S0->S1g S0RR->S0g";

/// A recurrent layer's first state, laid out as the steps are.
NDArray state_of(const NDArray& x) { return x(0).narrow(1, 0, 2); }

std::vector<Function> functions() {
  const std::vector<Dims> of_linear{{5, 7}, {5, 7}, {5}}, of_conv{{3, 4, 5, 4}, {5, 4, 3, 3}, {5}};
  const std::vector<Dims> of_norm{{5, 3, 7}, {7}, {7}}, of_batch{{4, 5, 3, 2}, {5}, {5}};
  return {
      {"linear", of_linear, [](const Arrays& x) { return linear(x[0], x[1], x[2]); }, kProduct},
      {"linear of rows in two axes",
       {{2, 5, 7}, {5, 7}, {5}},
       [](const Arrays& x) { return linear(x[0], x[1], x[2], {.relu = true}); },
       "RRR->Rg RRS0->S2b RS0R->S2 RS0S0->S2g S0RR->S0g S1RR->S1g"},
      {"matmul of rows in two axes",
       {{2, 5, 7}, {7, 3}, {3}},
       [](const Arrays& x) { return matmul(x[0], x[1]) * x[2]; },
       "RRR->Rg RRP->Pg RRS0->S2b RPR->Pg RS0R->Pb RS1R->S2 RS1S0->S2g PRR->Pg S0RR->S0g S1RR->S1g S2RR->Pb S2S0R->Pg"},
      {"lstm",
       {{3, 5, 4}, {8, 4}, {8, 2}},
       [](const Arrays& x) {
         return lstm(x[0], {state_of(x[0]), state_of(x[0])}, {x[1], x[2]}).outputs;
       },
       "RRR->Rg S1RR->S1g"},
      {"gru",
       {{3, 5, 4}, {6, 4}, {6, 2}},
       [](const Arrays& x) {
         return gru(x[0], state_of(x[0]), {x[1], x[2]}).outputs;
       },
       "RRR->Rg S1RR->S1g"},
      {"linear, relu", of_linear, [](const Arrays& x) { return linear(x[0], x[1], x[2], {.relu = true}); }, kProduct},
      {"linear + bias", of_linear, [](const Arrays& x) { return linear(x[0], x[1]) + x[2]; },
       "RRR->Rg RRS0->S1b RPP->Pg RS0R->S1 RS0S0->S1g RS1P->Pb PRP->Pg S0RR->S0g S1RP->Pb S1S1P->Pg"},
      {"conv2d", of_conv, [](const Arrays& x) { return conv2d(x[0], x[1], x[2], {.padding = 1}); }, kProduct},
      {"conv2d, relu", of_conv, [](const Arrays& x) { return conv2d(x[0], x[1], x[2], {.relu = true}); }, kProduct},
      {"layer_norm", of_norm, [](const Arrays& x) { return layer_norm(x[0], x[1], x[2]); },
       "RRR->Rg S0RR->S0g S1RR->S1g"},
      {"batch_norm", of_batch, [](const Arrays& x) { return batch_norm(x[0], {}, x[1], x[2]); },
       "RRR->Rg RRS0->S1b RS0R->S1 RS0S0->S1b S0RR->S0g S1RR->S1 S1R"
       "S0->S1b S1S0R->S1 S1S0S0->S1g S2RR->S2g"},
  };
}

class PlacedLayers : public ::testing::Test {
 protected:
  struct Plain {
    Arrays inputs;
    std::vector<double> y;
    std::vector<std::vector<double>> gradients;
    NDArray weight;  ///< of the result
  };
  static Plain plain(const Function& f) {
    Plain made;
    for (std::size_t i = 0; i < f.shapes.size(); ++i) made.inputs.push_back(drawn(f.shapes[i], i + 1));
    Arrays leaves;
    for (const NDArray& x : made.inputs) leaves.push_back(x.detach().with_grad());
    const NDArray y = f.call(leaves);
    made.weight = drawn(y.shape(), 9);
    backward({y}, {made.weight});
    made.y = doubles_of(y);
    for (const NDArray& x : leaves) made.gradients.push_back(doubles_of(x.grad()));
    return made;
  }

  /// How the result lies; empty if the call was refused. `wants`: the bits of inputs that want gradients.
  static std::string run(const Function& f, const Plain& plain, const std::vector<Layout>& layouts, unsigned wants) {
    Arrays inputs;
    std::string what = f.name;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      inputs.push_back(placed_as(plain.inputs[i], layouts[i]));
      if (wants >> i & 1U) inputs.back().with_grad();
      what += " " + letters_of(layouts[i]);
    }
    SCOPED_TRACE(what + " of " + to_string(layouts[0].mesh()));
    NDArray y;
    try {
      y = f.call(inputs);
    } catch (const ArrayError& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.find('\n'), text.npos) << text;
      return {};
    }
    const std::string lies = letters_of(layout_of(y));
    EXPECT_LE(distance(put_together(y, "result"), plain.y), 1e-12);
    if (wants == 0) return lies;
    backward({y}, {place(plain.weight, layouts[0].mesh())});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if ((wants >> i & 1U) == 0) continue;
      EXPECT_EQ(layout_of(inputs[i].grad()), builtin::added_up(layouts[i])) << "gradient " << i;
      EXPECT_LE(distance(put_together(inputs[i].grad(), "gradient"), plain.gradients[i]), 1e-12) << "gradient " << i;
    }
    return lies;
  }

  static std::vector<Layouts> choices(const Function& f) {
    std::vector<Layouts> list{{}};
    for (const Dims& shape : f.shapes) {
      std::vector<Layouts> longer;
      for (const Layouts& before : list) {
        Layouts each{replicate, partial()};
        for (int axis = 0; axis < std::min(shape.rank(), 3); ++axis) each.push_back(shard(axis));
        for (const sluice::Placement& p : each) {
          longer.push_back(before);
          longer.back().push_back(p);
        }
      }
      list = std::move(longer);
    }
    return list;
  }

  test::DefaultEngine engine_{{.threads = 2, .logical_cpus = 4}};
};

TEST_F(PlacedLayers, WeightsAndBiasesInEveryLayout) {
  const Mesh two({{"x", 2}}, test::device_kind()), three({{"x", 3}}, test::device_kind());
  const Mesh square({{"x", 2}, {"y", 2}}, test::device_kind());
  int runs = 0;
  for (const Function& f : functions()) {
    const Plain wanted = plain(f);
    const auto on = [&](const Mesh& mesh, const Layouts& x, const Layouts* y) {
      std::vector<Layout> layouts;
      for (std::size_t i = 0; i < x.size(); ++i) {
        Placements list{{"x", x[i]}};
        if (y) list.emplace_back("y", (*y)[i]);
        layouts.emplace_back(mesh, f.shapes[i], list);
      }
      return layouts;
    };
    std::string passes;
    std::vector<Layouts> with_gradients;
    for (const Layouts& choice : choices(f)) {
      const std::vector<Layout> layouts = on(two, choice, nullptr);
      const std::string constant = run(f, wanted, layouts, 0), wants = run(f, wanted, layouts, 7);
      const std::string alone = run(f, wanted, layouts, 4);  // the bias alone is trained
      EXPECT_TRUE(wants.empty() || wants == constant);
      runs += !constant.empty() + !wants.empty() + !alone.empty();
      if (constant.empty()) continue;
      passes += passes.empty() ? "" : " ";
      for (const Layout& layout : layouts) passes += letters_of(layout);
      passes += "->" + constant + (wants.empty() ? alone.empty() ? "" : "b" : "g");
      run(f, wanted, on(three, choice, nullptr), 0);
      if (wants.empty()) continue;
      EXPECT_EQ(run(f, wanted, on(three, choice, nullptr), 7), wants);
      with_gradients.push_back(choice);
    }
    EXPECT_EQ(passes, f.passes) << f.name;
    for (const Layouts& x : with_gradients) {
      for (const Layouts& y : with_gradients) runs += !run(f, wanted, on(square, x, &y), 7).empty();
    }
  }
  EXPECT_EQ(runs, 346);
}

}  // namespace
}  // namespace sluice::testing
