// Rows and pushes with more operands than a word has bits: what gradients keep, what bodies update, and optimiser steps
// over many tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "sluice/ndarray/push.h"
#include "sluice/operators/attributes.h"
#include "sluice/sluice.h"

namespace sluice {
namespace {

constexpr int kMany = 40;
using Arrays = std::vector<NDArray>;

std::size_t at(int i) { return static_cast<std::size_t>((i + kMany) % kMany); }

std::vector<const NDArray*> pointers(const Arrays& arrays) {
  std::vector<const NDArray*> list;
  for (const NDArray& x : arrays) list.push_back(&x);
  return list;
}

Arrays leaves() {
  Arrays list;
  for (int i = 0; i < kMany; ++i) list.push_back(full({3}, i + 1, DType::f64).with_grad());
  return list;
}

/// A row of any number of f64 inputs; its output is made by `run`. (A pointer, because of a reference GCC 14 believes
/// that it is to one of the arguments.)
const Operator* add_row(const char* name, std::vector<Needs> needs, Operator::Gradient gradient, KernelFunction run) {
  const Operator& row = add_operator(name, [&](Operator& op) {
    op.max_inputs = Operator::kAnyNumber;
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.needs = std::move(needs);
    op.gradient = gradient;
  });
  row.add_kernel({.name = "test"}, {DType::f64}, {.run = run, .dense_inputs = true, .dense_outputs = true});
  return &row;
}

/// Overwrites all inputs: what a gradient still finds was kept.
void spoil(const Arrays& inputs) {
  const NoGrad scope;
  for (const NDArray& x : inputs) x.fill(-1000);
}

// y = the sum over i of x[i] x[i + 1], in a ring: the gradient of input i needs its two neighbours, and not itself.
TEST(ManyOperands, EachOfFortyGradientsKeepsOtherInputs) {
  std::vector<Needs> neighbours;
  for (int i = 0; i < kMany; ++i) neighbours.push_back(needs::input(at(i - 1)) | needs::input(at(i + 1)));
  const Operator* const row = add_row(
      "test_ring", neighbours,
      [](GradientContext& c) {
        for (int i = 0; i < c.inputs(); ++i) {
          const int before = static_cast<int>(at(i - 1)), after = static_cast<int>(at(i + 1));
          if (c.wanted(i)) c.set(i, c.gradient() * (c.input(before) + c.input(after)));
        }
      },
      [](ArrayContext& c) {
        for (std::int64_t e = 0; e < c.output().count(); ++e) {
          double total = 0;
          for (int i = 0; i < kMany; ++i) {
            total += c.input(i).as<double>()[e] * c.input(static_cast<int>(at(i + 1))).as<double>()[e];
          }
          c.output().as<double>()[e] = total;
        }
      });
  const Arrays x = leaves();
  const NDArray y = apply_all(*row, pointers(x), {}, {})[0];
  spoil(x);
  sum(y).backward();
  for (int i = 0; i < kMany; ++i) {
    const auto wanted = static_cast<double>(at(i - 1) + 1 + at(i + 1) + 1);
    EXPECT_EQ(x[at(i)].grad().to_vector<double>(), std::vector<double>(3, wanted)) << i;
  }
}

void check_products(const Operator& row) {
  const Arrays x = leaves();
  const NDArray y = apply_all(row, pointers(x), {}, {})[0];
  spoil(x);
  sum(y).backward();
  for (int i = 0; i < kMany; ++i) {
    EXPECT_EQ(x[at(i)].grad().to_vector<double>(), std::vector<double>(3, 2.0 * (i + 1))) << row.name << i;
  }
}

void add_squares(ArrayContext& c) {
  for (std::int64_t e = 0; e < c.output().count(); ++e) {
    double total = 0;
    for (int i = 0; i < c.inputs(); ++i) total += c.input(i).as<double>()[e] * c.input(i).as<double>()[e];
    c.output().as<double>()[e] = total;
  }
}

// y = the sum of x[i] x[i], where the row says what is kept for all inputs at once.
TEST(ManyOperands, ARuleOfNeedsHoldsForAnyNumberOfInputs) {
  const auto gradient = [](GradientContext& c) {
    for (int i = 0; i < c.inputs(); ++i) {
      if (c.wanted(i)) c.set(i, 2 * c.gradient() * c.input(i));
    }
  };
  check_products(*add_row("test_squares_own", {needs::own_input()}, gradient, add_squares));
  check_products(*add_row("test_squares_every", {needs::every_input()}, gradient, add_squares));
}

// 40 outputs, of which the body reads number 35 alone. Their values are held, so that each goes to a new version; and
// they are columns, so that the kernel works on packed copies.
TEST(ManyOperands, OneOfFortyOutputsIsUpdated) {
  const auto add = [](ArrayContext& c) {
    for (int i = 0; i < c.outputs(); ++i) {
      for (std::int64_t e = 0; e < c.output(i).count(); ++e) {
        double& y = c.output(i).as<double>()[e];
        y = i == 35 ? y + 1 : i;
      }
    }
  };
  for (const bool held : {false, true}) {
    Arrays whole, columns, before;
    for (int i = 0; i < kMany; ++i) {
      whole.push_back(full({2, 3}, 100 + i, DType::f64));
      columns.push_back(whole.back().narrow(1, 1, 2));
      if (held) before.push_back(whole.back().detach());
    }
    ArrayPush push;
    push.body = add;
    push.outputs = columns;
    push.updates = Updates::only(35);
    push.dense_outputs = true;
    push.where = std::source_location::current();
    push_arrays(push);
    for (int i = 0; i < kMany; ++i) {
      const double old = 100 + i, now = i == 35 ? old + 1 : i;
      EXPECT_EQ(whole[at(i)].to_vector<double>(), (std::vector<double>{old, now, old, old, now, old})) << i;
      if (held) {
        EXPECT_EQ(before[at(i)].to_vector<double>(), std::vector<double>(6, old)) << i;
      }
    }
  }
}

TEST(ManyOperands, SetsOfUpdatedOutputs) {
  EXPECT_FALSE(Updates().any());
  EXPECT_FALSE(Updates().contains(0));
  EXPECT_TRUE(Updates::all().contains(1000000));
  EXPECT_FALSE(Updates::only(35).contains(3));
  const std::uint32_t list[] = {1, 70};
  EXPECT_TRUE(Updates::listed(list).any());
  EXPECT_TRUE(Updates::listed(list).contains(70));
  EXPECT_FALSE(Updates::listed(list).contains(69));
}

/// 20 tensors of different sizes with their gradients, stepped by one op or each by itself; then all values.
Arrays adam(bool together, std::uint8_t gate_value, int max_rank) {
  const KernelRankLimit limit(max_rank);
  const NoGrad scope;
  RandomStream stream(5);
  Arrays gradients, values;
  for (int i = 0; i < 20; ++i) {
    gradients.push_back(uniform({i + 1}, stream, -1, 1, DType::f64));
    values.push_back(uniform({i + 1}, stream, -1, 1, DType::f64));
    values.push_back(uniform({i + 1}, stream, -1, 1, DType::f64));
    values.push_back(uniform({i + 1}, stream, 0, 1, DType::f64));
    values.push_back(full({}, i, DType::i64));
  }
  const AdamStep attributes{.lr = 0.1, .step = 0};
  const Operator& row = Registry::instance().get("adam_step");
  const NDArray gate = full({1}, gate_value, DType::u8);
  if (together) {
    Arrays inputs = gradients;
    inputs.push_back(gate);
    apply_into(row, pointers(inputs), attributes, {.into = values, .updates = Updates::all()});
  } else {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      apply_into(row, {&gradients[i]}, attributes,
                 {.into = std::span(values).subspan(4 * i, 4), .updates = Updates::all()});
    }
  }
  return values;
}

TEST(ManyOperands, AStepTakesManyTensorsBehindOneGate) {
  for (const int rank : {0, Operator::kAnyRank}) {
    const Arrays one = adam(true, 1, rank), alone = adam(false, 1, rank);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].to_bytes(), alone[i].to_bytes()) << i;
    EXPECT_EQ(one[4 * 7 + 3].item<std::int64_t>(), 8) << "it counts steps";
    const Arrays shut = adam(true, 0, rank);
    for (const NDArray& x : shut) {
      EXPECT_THROW(x.wait(), Error);
      x.engine().recover(x);
    }
    EXPECT_EQ(shut[4 * 7 + 3].item<std::int64_t>(), 7) << "nothing was written";
  }
  const NDArray a = ones({2}), b = ones({3});
  const Operator& gate = Registry::instance().get("gate");
  EXPECT_EQ(apply(gate, {&a, &b}, Attributes()).item<std::uint8_t>(), 1);
  const NDArray two = ones({2}, DType::u8), other = ones({2}, DType::f64);
  const Operator& step = Registry::instance().get("sgd_step");
  EXPECT_THROW(apply(step, {&a, &two}, SgdAttributes{}), ArrayError) << "a gate of two elements";
  EXPECT_THROW(apply(step, {&a, &other}, SgdAttributes{}), ArrayError) << "two dtypes";
}

}  // namespace
}  // namespace sluice
