// A result of an operator is an array of its own, unless its comment says that it is a view: who writes to it does not
// change what it was made from.
#include <gtest/gtest.h>

#include <cstddef>
#include <iostream>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "function_calls.h"

namespace sluice::testing {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> bytes_of(const Arrays& arrays) {
  std::vector<Bytes> list;
  for (const NDArray& x : arrays) list.push_back(x.to_bytes());
  return list;
}

TEST(Copies, AResultIsWrittenAndTheInputsAndOtherResultsStay) {
  test::DefaultEngine engine({.threads = 2});
  std::size_t number = 0, written = 0;
  for (const FunctionCall& call : function_calls()) {
    const std::string name = "call " + std::to_string(number++) + ", " + call.name;
    if (call.view) continue;
    const Arrays inputs = call.make(), results = call.call(inputs);
    const NoGrad leaves_may_be_written;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string what = name + ", result " + std::to_string(i);
      EXPECT_TRUE(results[i].defined()) << what;
      for (const NDArray& x : inputs) EXPECT_FALSE(results[i].same_array(x)) << what << " is an input";
      Arrays others = inputs;
      for (std::size_t k = 0; k < results.size(); ++k) {
        if (k != i) others.push_back(results[k]);
      }
      const std::vector<Bytes> before = bytes_of(others);
      Bytes own;
      try {
        const NDArray& y = results[i];
        for (const int value : {0, 1}) {
          own = y.to_bytes();
          y.assign(full_like(y, value));
        }
      } catch (const std::exception& e) {
        ADD_FAILURE() << what << " cannot be written: " << e.what();
        continue;
      }
      EXPECT_EQ(bytes_of(others), before) << what;
      EXPECT_TRUE(own.empty() || results[i].to_bytes() != own) << what;
      ++written;
    }
  }
  std::cout << number << " calls, " << written << " results written\n";
  EXPECT_GT(written, 400U);
}

TEST(Copies, OfRepeatsAndTilesOfOneElementHaveTheRightValues) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = from({1.0F, 2.0F, 3.0F}, {1, 3});
  const NDArray y = repeat(x, 2), z = tile(x, {2, 1});
  for (const NDArray& copy : {y, z}) {
    EXPECT_TRUE(copy.is_contiguous());
    copy(0, 0) = 7;
    EXPECT_EQ(copy.to_vector<float>(), (std::vector<float>{7, 2, 3, 1, 2, 3}));
  }
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  NDArray same = diff(x, 0), t = einsum("ij->ji", {x});
  same += 1;
  t += 1;
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  const NDArray none = diff(x, 2147483647, 1);  // the axis has no elements after three steps
  EXPECT_EQ(none.shape(), (Dims{1, 0}));
}

}  // namespace
}  // namespace sluice::testing
