// Errors name the line of the program that was wrong, not one of the library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

void named(int line, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "line " << line << " does not throw";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("places_test.cc:" + std::to_string(line)));
  }
}
#define NAMED(...) named(__LINE__, [&] { (void)(__VA_ARGS__); })

TEST(Places, OfAssignmentsAndIndices) {
  TestEngine test(2);
  const NDArray x = zeros({2, 2}), wide = ones({3}), empty_handle;
  named(__LINE__, [&] { x(0) = wide; });
  named(__LINE__, [&] { x(0) = wide + 1; });
  named(__LINE__, [&] { x(0) = empty_handle; });
  named(__LINE__, [&] { x(0) = x.to(DType::i64); });
  NAMED(x(5));
  NAMED(x(0, std::int64_t{7}));
  NAMED(x(all, 0, 0));
  NAMED(x(slice(0, 1, 0)));
  x(0) = ones({2});
  x(1, 0) = 4;
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 1, 4, 0}));
}

TEST(Places, OfEmptyHandles) {
  TestEngine test(2);
  const NDArray none, x = ones({2});
  NAMED(none.dtype());
  NAMED(none.device());
  NAMED(none.engine());
  NAMED(none.bytes());
  NAMED(none.size(0));
  NAMED(len(none));
  NAMED(none(0));
  NAMED(none.transpose());
  NAMED(none.permute({}));
  NAMED(none.reshape({1}));
  NAMED(none.copy());
  NAMED(none.contiguous());
  NAMED(none.to(DType::f64));
  NAMED(none.assign(x));
  NAMED(x.assign(none));
  NAMED(none.fill(1));
  NAMED(none.wait());
  NAMED(none.item<float>());
  NAMED(none.to_vector<float>());
  NAMED(none.to_bytes());
  NAMED(none.to_string());
  NAMED(none.borrow<float>());
  NAMED(none.with_grad());
  NAMED(none.requires_grad());
  NAMED(none.grad());
  NAMED(none.set_grad(x));
  NAMED(none.zero_grad());
  NAMED(none.backward());
  NAMED(none.detach());
  NAMED(none + x);
  NAMED(x * none);
  NAMED(2 - none);
  NAMED(sum(none));
  NAMED(softmax(none));
  NAMED(zeros_like(none));
  NAMED(ones_like(none));
  NAMED(where(none, x, x));
  NAMED(test.engine.wait(none));
  NAMED(test.engine.recover(none));
  NAMED(test.engine.push([] {}, {read(none)}));
  NAMED(push_op([](ArrayContext&) {}, {none}, {x}));
}

/// A function of the library that is made of operators, one of which throws.
TEST(Places, OfFunctionsThatAreMadeOfOperators) {
  TestEngine test(2);
  const NDArray x = zeros({2, 2}), wide = ones({3});
  NAMED(lerp(x, x, wide));
  NAMED(addcmul(x, x, wide));
}

}  // namespace
}  // namespace sluice::testing
