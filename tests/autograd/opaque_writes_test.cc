// Writes that no operator makes: push_op and borrow. What they write is nobody's function.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Write = std::function<void(const NDArray&)>;

Floats floats(const NDArray& x) { return x.to_vector<float>(); }

void overwrite(const NDArray& x) { push_value({x}, 7); }

/// push_op, and borrow where the host reaches the array.
std::vector<Write> writes() {
  std::vector<Write> list{overwrite};
  if (!test::on_streams()) {
    list.push_back([](const NDArray& x) {
      const auto elements = x.borrow<float>();
      std::fill(elements.begin(), elements.end(), 7.0F);
    });
  }
  return list;
}

TEST(OpaqueWrites, AWholeOverwriteIsAConstant) {
  TestEngine test(2);
  for (const Write& write : writes()) {
    const NDArray a = ones({2, 2}).with_grad(), x = a * 3, kept = sum(x);
    write(x);
    EXPECT_FALSE(x.requires_grad());
    EXPECT_EQ(floats(x), Floats(4, 7.0F));
    EXPECT_THROW(sum(square(x)).backward(), ArrayError);  // nothing here wants a gradient
    (sum(square(x)) + sum(a * 0)).backward();
    EXPECT_EQ(floats(a.grad()), Floats(4, 0.0F));
    kept.backward();  // what was computed before is as it was
    EXPECT_EQ(floats(a.grad()), Floats(4, 3.0F));
    const NDArray y = a * 3;
    {
      const NoGrad scope;  // as operators do there
      write(y);
    }
    EXPECT_TRUE(y.requires_grad());
  }
}

TEST(OpaqueWrites, LeavesAreWrittenInNoGradOnly) {
  TestEngine test(2);
  for (const Write& write : writes()) {
    const NDArray w = ones({2, 2}).with_grad();
    EXPECT_THROW(write(w), ArrayError);
    EXPECT_THROW(write(w(0)), ArrayError);
    EXPECT_EQ(floats(w), Floats(4, 1.0F));
    {
      const NoGrad scope;
      write(w(0));
    }
    EXPECT_EQ(floats(w), (Floats{7, 7, 1, 1}));
    EXPECT_TRUE(w.requires_grad());
    sum(square(w)).backward();
    EXPECT_EQ(floats(w.grad()), (Floats{14, 14, 2, 2}));
  }
}

TEST(OpaqueWrites, APartOfARecordedArrayIsRefused) {
  TestEngine test(2);
  for (const Write& write : writes()) {
    const NDArray a = ones({2, 2}).with_grad(), x = a * 3;
    EXPECT_THROW(write(x(0)), ArrayError);
    sum(square(x)).backward();
    EXPECT_EQ(floats(a.grad()), Floats(4, 18.0F));
    const NDArray free = x.detach();
    write(free(0));
    EXPECT_EQ(floats(free), (Floats{7, 7, 3, 3}));
  }
}

}  // namespace
}  // namespace sluice::testing
