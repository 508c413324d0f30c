// Every operator of the table with operands that it may not take: it gives the reference's result, or one clear line.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "operand_layouts.h"

namespace sluice::testing {
namespace {

enum class Answer { result, refused };

/// Calls the case, and its gradient. What is thrown must be one line that names operator and place.
Answer ask(const OperatorCase& c, const std::function<Arrays()>& operands, const std::string& what,
           Arrays* results = nullptr) {
  try {
    const Arrays x = operands();
    const NDArray y = c.call(x);
    Arrays all{y.detach()};
    if (c.gradient && is_floating(y.dtype()) && y.requires_grad()) {
      Arrays leaves;
      for (const NDArray& one : x) {
        if (one.defined() && one.requires_grad()) leaves.push_back(one);
      }
      for (NDArray& g : grad(sum(y), leaves)) {
        if (g.defined()) all.push_back(std::move(g));
      }
    }
    for (const NDArray& one : all) one.wait();
    if (results) *results = all;
    return Answer::result;
  } catch (const ArrayError& e) {
    expect_clear_line(e.what(), what);
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(text.find('\n'), text.npos) << what << ": " << text;
    EXPECT_NE(text.find("ops_table"), text.npos) << what << ": " << text;
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << " throws no error of arrays: " << e.what();
  }
  return Answer::refused;
}

NDArray leaf(const NDArray& x) { return is_floating(x.dtype()) ? x.copy().with_grad() : x; }

/// The case with one operand changed.
Answer ask_with(const OperatorCase& c, std::size_t at, const std::function<NDArray(const NDArray&)>& change,
                const std::string& what) {
  return ask(
      c,
      [&] {
        Arrays x = make_inputs(c, DType::f32);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i == at ? change(x[i]) : leaf(x[i]);
        return x;
      },
      c.name + ", input " + std::to_string(at) + " " + what);
}

TEST(Refusals, OfEmptyHandlesAreClear) {
  for (const OperatorCase& c : operator_cases()) {
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      const Answer answer = ask_with(
          c, i, [](const NDArray&) { return NDArray(); }, "undefined");
      // What may be left out: the handles of biases and scales.
      EXPECT_TRUE(i > 0 || answer == Answer::refused) << c.name;
    }
  }
}

TEST(Refusals, OfOtherRanksAreClear) {
  for (const OperatorCase& c : operator_cases()) {
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      ask_with(
          c, i, [](const NDArray& x) { return leaf(x.rank() < kMaxRank ? x.unsqueeze(0) : x(0)); },
          "with an axis more");
      ask_with(
          c, i, [](const NDArray& x) { return leaf(x.flatten()); }, "flat");
      ask_with(
          c, i, [](const NDArray& x) { return leaf(x.count() > 0 ? x.reshape({-1})(0) : zeros({}, x.dtype())); },
          "0-dimensional");
      ask_with(
          c, i,
          [](const NDArray& x) {
            return leaf(x.reshape({1, 1, 1, 1, 1, 1, 1, -1}));
          },
          "of rank 8");
      ask_with(
          c, i,
          [](const NDArray& x) {
            return leaf(concat({x.flatten(), x.flatten()}));
          },
          "of another size");
    }
  }
}

TEST(Refusals, OfOtherDtypesAreClear) {
  for (const OperatorCase& c : operator_cases()) {
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      for (const DType dtype : {DType::boolean, DType::u8, DType::i32, DType::f16, DType::f64}) {
        ask_with(
            c, i, [&](const NDArray& x) { return leaf(x.to(dtype)); }, "in " + std::string(name_of(dtype)));
      }
    }
    if (c.shapes.size() < 2) continue;
    ask(
        c,
        [&] {
          Arrays x = make_inputs(c, DType::f16);
          x[1] = x[1].to(DType::bf16);
          return x;
        },
        c.name + " in f16 and bf16");
  }
}

TEST(Refusals, OfTwoDevicesAreClear) {
  test::DefaultEngine engine({.logical_cpus = 2});
  for (const OperatorCase& c : operator_cases()) {
    if (c.shapes.size() < 2) continue;
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      // Of a case's inputs some are used alone, or not at all: those may have any shape. A write by indices brings its
      // values to the array.
      const bool unused = ask_with(
                              c, i,
                              [](const NDArray&) {
                                return zeros({11, 13});
                              },
                              "of (11, 13)") == Answer::result;
      if (unused || c.name.starts_with("x(")) continue;
      EXPECT_EQ(ask_with(
                    c, i, [](const NDArray& x) { return leaf(x.to(test::device(1))); }, "on another device"),
                Answer::refused)
          << c.name << " takes input " << i << " from another device";
    }
  }
}

/// The shapes of a case, with other sizes.
using Shapes = std::vector<Dims>;

/// True if the case takes these shapes; then cpu and reference agree, gradients included.
bool agrees(const OperatorCase& c, const Shapes& shapes, const std::string& what) {
  OperatorCase changed = c;
  changed.shapes = shapes;
  const auto run = [&](Arrays& results) {
    return ask(
        changed,
        [&] {
          Arrays x = make_inputs(changed, DType::f32);
          for (NDArray& one : x) one = leaf(one);
          return x;
        },
        c.name + " " + what, &results);
  };
  Arrays fast, plain;
  if (run(fast) == Answer::refused) return false;
  {
    const KernelRankLimit reference_only(0);
    EXPECT_EQ(run(plain), Answer::result) << c.name << " " << what;
  }
  EXPECT_EQ(fast.size(), plain.size()) << c.name << " " << what;
  for (std::size_t k = 0; k < std::min(fast.size(), plain.size()); ++k) {
    EXPECT_EQ(fast[k].shape(), plain[k].shape()) << c.name << " " << what;
    const std::vector<double> a = values_of(fast[k]), b = values_of(plain[k]);
    double largest = 1e-30;
    for (double v : b) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      EXPECT_LE(std::abs(a[i] - b[i]), c.tolerance * largest) << c.name << " " << what << ", element " << i;
      if (!(std::abs(a[i] - b[i]) <= c.tolerance * largest)) break;
    }
  }
  return true;
}

TEST(Sizes, OfNothingOneAndRankEightAgreeWithTheReferenceOrAreRefused) {
  int nothing = 0, scalars = 0, deep = 0;
  for (const OperatorCase& c : operator_cases()) {
    std::set<std::int64_t> sizes;
    for (const Dims& shape : c.shapes) sizes.insert(shape.begin(), shape.end());
    // Equal sizes are taken for the same axis.
    for (const std::int64_t size : sizes) {
      Shapes shapes = c.shapes;
      for (Dims& shape : shapes) {
        for (int i = 0; i < shape.rank(); ++i) shape[i] = shape[i] == size ? 0 : shape[i];
      }
      nothing += agrees(c, shapes, "with 0 for " + std::to_string(size));
    }
    const bool scalar = agrees(c, Shapes(c.shapes.size()), "of 0-dimensional arrays");
    scalars += scalar;
    Shapes in_front = c.shapes, behind = c.shapes;
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      Dims front, back = c.shapes[i];
      for (int k = c.shapes[i].rank(); k < kMaxRank; ++k) {
        front.push_back(1 + k % 2);
        back.push_back(1 + k % 2);
      }
      for (const std::int64_t size : c.shapes[i]) front.push_back(size);
      in_front[i] = front;
      behind[i] = back;
    }
    const bool front = agrees(c, in_front, "of rank 8, axes in front");
    const bool back = agrees(c, behind, "of rank 8, axes behind");
    deep += front + back;
    EXPECT_TRUE(!c.formula || (scalar && front && back)) << c.name << " is elementwise and takes any shape";
    EXPECT_TRUE(!c.fold || (scalar && front)) << c.name << " is a reduction and takes any shape";
  }
  std::cout << nothing << " calls on nothing, " << scalars << " on scalars, " << deep << " of rank 8\n";
  EXPECT_GT(nothing, 600);
  EXPECT_GT(scalars, 200);
  EXPECT_GT(deep, 400);
}

}  // namespace
}  // namespace sluice::testing
