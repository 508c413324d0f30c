// Every public function that takes arrays, with operands of an owner (two halves) in place of plain ones: it gives the
// same values, or refuses in one line.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "../support/halves.h"
#include "function_calls.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

/// The values, as numbers, of arrays after a call; of halves those of the whole.
std::vector<std::vector<double>> numbers_of(const Arrays& arrays) {
  std::vector<std::vector<double>> list;
  const NoGrad scope;
  for (const NDArray& x : arrays) {
    list.push_back(x.defined() ? Halves::join(x).to(cpu(0)).to(DType::f64).to_vector<double>() : std::vector<double>());
  }
  return list;
}

/// 0: equal; else the largest difference, to the scale of the values. NaN at one side alone is infinitely far.
double distance(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  if (a.size() != b.size()) return INFINITY;
  double far = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k].size() != b[k].size()) return INFINITY;
    double scale = 1;
    for (const double v : a[k]) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
    for (std::size_t i = 0; i < a[k].size(); ++i) {
      const double x = a[k][i], y = b[k][i];
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      far = std::max(far, std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) / scale : INFINITY);
    }
  }
  return far;
}

struct Outcome {
  std::vector<std::vector<double>> results, inputs;
};

Outcome outcome_of(const FunctionCall& call, const Arrays& inputs) {
  const Arrays results = call.call(inputs);
  return {numbers_of(results), numbers_of(inputs)};
}

TEST(OwnedCalls, GiveThePlainValuesOrOneLine) {
  test::DefaultEngine engine({.threads = 2});
  std::size_t number = 0, equal = 0, refused = 0;
  std::map<std::string, std::size_t> words;
  for (const FunctionCall& call : function_calls()) {
    const std::string name = "call " + std::to_string(number++) + ", " + call.name;
    if (call.name == "empty_like") continue;  // no values to compare
    Outcome plain;
    Arrays operands;
    try {
      plain = outcome_of(call, call.make());
      const Outcome again = outcome_of(call, call.make());
      if (distance(plain.results, again.results) > 0) continue;  // it draws
      operands = call.make();
    } catch (const UsageError&) {
      continue;  // not to be called twice
    }
    for (std::size_t which = 0; which < operands.size(); ++which) {
      if (operands[which].defined() && operands[which].requires_grad()) continue;  // halves would not be of that tape
      for (int axis = 0; operands[which].defined() && axis < operands[which].rank(); ++axis) {
        if (operands[which].shape()[axis] % 2 != 0 || operands[which].count() == 0) continue;
        const std::string what =
            name + ", operand " + std::to_string(which) + " in halves of axis " + std::to_string(axis);
        Arrays inputs = call.make();
        inputs[which] = Halves::split(inputs[which], axis);
        try {
          const Outcome owned = outcome_of(call, inputs);
          EXPECT_LE(distance(plain.results, owned.results), 1e-2) << what;
          EXPECT_LE(distance(plain.inputs, owned.inputs), 1e-2) << what << ": operands";
          ++equal;
        } catch (const UsageError& e) {
          EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << what << ": " << e.what();
          EXPECT_EQ(e.what()[0], '[') << what << ": " << e.what();
          ++refused;
          const std::string text = e.what();
          ++words[text.substr(text.rfind(": ") == std::string::npos ? 0 : text.rfind(": ") + 2)];
        } catch (const std::exception& e) {
          ADD_FAILURE() << what << ": " << e.what();
        }
      }
    }
  }
  std::cout << number << " calls, " << equal << " with halves gave the plain values, " << refused << " were refused\n";
  for (const auto& [text, count] : words) std::cout << "  " << count << " " << text << "\n";
  EXPECT_GT(equal, 400U);
}

/// The gradients of all inputs, of which one may be in halves.
Arrays gradients_of(const OperatorCase& c, int halves, int axis) {
  Arrays x = make_inputs(c, DType::f64);
  if (halves >= 0) {
    NDArray& one = x[static_cast<std::size_t>(halves)];
    one = Halves::split(one, axis);
  }
  for (const NDArray& input : x) {
    if (is_floating(input.dtype())) input.with_grad();
  }
  sum(c.call(x)).backward();
  Arrays result;
  for (const NDArray& input : x) result.push_back(input.grad());
  return result;
}

TEST(OwnedCalls, HaveThePlainGradientsOrOneLine) {
  test::DefaultEngine engine({.threads = 2});
  std::size_t number = 0, equal = 0, refused = 0;
  for (const OperatorCase& c : operator_cases()) {
    if (!c.gradient) continue;
    ++number;
    const std::vector<std::vector<double>> plain = numbers_of(gradients_of(c, -1, 0));
    const Arrays shapes = make_inputs(c, DType::f64);
    for (int i = 0; i < static_cast<int>(shapes.size()); ++i) {
      const NDArray& x = shapes[static_cast<std::size_t>(i)];
      for (int axis = 0; axis < x.rank(); ++axis) {
        if (x.shape()[axis] % 2 != 0 || x.count() == 0) continue;
        const std::string what = c.name + ", input " + std::to_string(i) + " in halves of axis " + std::to_string(axis);
        try {
          EXPECT_LE(distance(plain, numbers_of(gradients_of(c, i, axis))), 1e-9) << what;
          ++equal;
        } catch (const UsageError& e) {
          EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << what << ": " << e.what();
          const std::string text = e.what();
          const bool known = text.find("no such view") != text.npos || text.find("join(x) first") != text.npos ||
                             text.find("a recorded write to a view of an array of an owner") != text.npos;
          EXPECT_TRUE(known) << what << ": " << text;
          ++refused;
        }
      }
    }
  }
  std::cout << number << " rows, " << equal << " with halves had the plain gradients, " << refused << " were refused\n";
  EXPECT_GT(equal, 200U);
}

}  // namespace
}  // namespace sluice::testing
