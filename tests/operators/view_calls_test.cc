// Views as calls: what interpreters see of them.
#include "sluice/ndarray/view_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Does what the test says with a view.
class Looks final : public Interpreter {
 public:
  explicit Looks(std::function<void(const ViewCall&)> what) : what_(std::move(what)) {}
  void view(const ViewCall& call) override { what_(call); }

 private:
  std::function<void(const ViewCall&)> what_;
};

std::shared_ptr<Interpreter> looks(std::function<void(const ViewCall&)> what) {
  return std::make_shared<Looks>(std::move(what));
}

std::string in_words(const ViewCall& call) {
  std::string text = std::string(call.name()) + " " + to_string(call.input().shape()) + " " + to_string(call.shape());
  if (call.kind() == ViewKind::permute) text += " axes " + to_string(call.axes());
  for (const Cut& cut : call.cuts()) text += " " + std::to_string(cut.begin) + ":" + std::to_string(cut.step);
  return text;
}

TEST(ViewCalls, EachFunctionIsOneOfFiveKinds) {
  std::vector<std::string> seen;
  const auto of = [&](const std::function<NDArray(const NDArray&)>& f) {
    const NDArray x = ones({2, 3, 4});
    seen.clear();
    const InterpreterScope scope(looks([&](const ViewCall& call) { seen.push_back(in_words(call)); }));
    (void)f(x);
    return seen;
  };
  EXPECT_THAT(of([](const NDArray& x) { return x.reshape({6, -1}); }), ElementsAre("reshape (2, 3, 4) (6, 4)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.flatten(); }), ElementsAre("reshape (2, 3, 4) (24,)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.unsqueeze(-1); }), ElementsAre("reshape (2, 3, 4) (2, 3, 4, 1)"));
  EXPECT_THAT(of([](const NDArray& x) {
                return x.permute({-1, 0, 1});
              }),
              ElementsAre("permute (2, 3, 4) (4, 2, 3) axes (2, 0, 1)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.transpose(); }),
              ElementsAre("permute (2, 3, 4) (4, 3, 2) axes (2, 1, 0)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.swapaxes(0, 1); }),
              ElementsAre("permute (2, 3, 4) (3, 2, 4) axes (1, 0, 2)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.movedim(0, 2); }),
              ElementsAre("permute (2, 3, 4) (3, 2, 4) axes (1, 0, 2)", "permute (3, 2, 4) (3, 4, 2) axes (0, 2, 1)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.narrow(1, 1, 3); }),
              ElementsAre("slice (2, 3, 4) (2, 2, 4) 0:1 1:1 0:1"));
  EXPECT_THAT(of([](const NDArray& x) { return x.flip(2); }), ElementsAre("slice (2, 3, 4) (2, 3, 4) 0:1 0:1 3:-1"));
  EXPECT_THAT(of([](const NDArray& x) { return x(1, slice(2, 0, -1), newaxis, slice(0, 4, 3)); }),
              ElementsAre("slice (2, 3, 4) (1, 2, 2) 1:1 2:-1 0:3", "reshape (1, 2, 2) (2, 1, 2)"));
  EXPECT_THAT(of([](const NDArray& x) { return x(newaxis, ellipsis); }), ElementsAre("reshape (2, 3, 4) (1, 2, 3, 4)"));
  EXPECT_THAT(of([](const NDArray& x) { return x(all, slice(5, 9)); }),
              ElementsAre("slice (2, 3, 4) (2, 0, 4) 0:1 0:1 0:1"));
  EXPECT_THAT(of([](const NDArray& x) {
                return x.broadcast_to({5, 2, 3, 4});
              }),
              ElementsAre("broadcast_to (2, 3, 4) (5, 2, 3, 4)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.unfold(2, 2, 2); }), ElementsAre("window (2, 3, 4) (2, 3, 2, 2)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.diagonal(); }), ElementsAre("window (2, 3, 4) (4, 2)"));
  EXPECT_THAT(of([](const NDArray& x) { return x.strided({2}, {1}, 0); }), ElementsAre("window (2, 3, 4) (2,)"));
}

/// call.of() makes the same view of another array: of a twin it has the same elements, wherever they lie.
TEST(ViewCalls, OfAnotherArrayIsTheSameView) {
  const NDArray x = arange(0, 120, 1, DType::f64).reshape({4, 5, 6});
  const NDArray twin = x.permute({2, 0, 1}).copy().permute({1, 2, 0}) * 1;  // other strides
  int seen = 0;
  const InterpreterScope scope(looks([&](const ViewCall& call) {
    ++seen;
    EXPECT_EQ(call.input().shape(), (Dims{4, 5, 6}));
    const NDArray same = call.of(twin);
    EXPECT_EQ(same.shape(), call.shape());
    EXPECT_EQ(same.to_vector<double>(), call.result().to_vector<double>());
    EXPECT_TRUE(same.same_array(twin) || call.kind() == ViewKind::reshape);
  }));
  (void)x.narrow(1, 2, 2);
  (void)x.narrow(1, 2, 4);
  (void)x.flip({0, 2});
  (void)x(all, slice(4, 1, -2), Slice{4, {}, -3});
  (void)x(all, Slice{0, {}, -1});
  (void)x(all, slice(1, 5, 3), all);
  (void)x.transpose();
  (void)x.reshape({20, 6});
  (void)x.unsqueeze(0);
  (void)x.broadcast_to({2, 4, 5, 6});
  EXPECT_EQ(seen, 10);
}

TEST(ViewCalls, GoToEachInterpreterAndToTheirOwnOutwards) {
  std::vector<std::string> order;
  const NDArray x = ones({2, 3});
  const InterpreterScope outer(looks([&](const ViewCall& call) {
    order.push_back("outer " + std::string(call.name()));
    EXPECT_THAT(call.where().file_name(), HasSubstr("view_calls_test.cc"));
    EXPECT_STREQ(call.layer(), "encoder");
  }));
  const InterpreterScope inner(looks([&](const ViewCall& call) {
    order.push_back("inner " + std::string(call.name()));
    (void)call.input().flatten();
  }));
  const LayerScope layer("encoder");
  const NDArray y = x.transpose();
  EXPECT_THAT(order, ElementsAre("inner permute", "outer reshape", "outer permute"));
  EXPECT_TRUE(y.same_array(x));  // a write to it is a write to x
}

TEST(ViewCalls, AreNotTheirsWhoseScopeIsOver) {
  int seen = 0;
  const NDArray x = ones({2, 3});
  {
    const InterpreterScope scope(looks([&](const ViewCall&) { ++seen; }));
    (void)x.transpose();
  }
  (void)x.transpose();
  EXPECT_EQ(seen, 1);
}

TEST(ViewCalls, WhatAnInterpreterThrowsTheCallerGets) {
  const NDArray x = ones({2, 3});
  const InterpreterScope scope(looks([&](const ViewCall& call) {
    if (call.kind() == ViewKind::window) (void)call.of(x);
    (void)call.of(ones({7}));
  }));
  const auto words = [&](const std::function<void()>& f) {
    try {
      f();
    } catch (const ArrayError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(words([&] { (void)x.transpose(); }), AllOf(HasSubstr("[ViewCall::of] "), HasSubstr("view_calls_test.cc:"),
                                                         HasSubstr("a permute of (2, 3) for an array of (7,)")));
  EXPECT_THAT(words([&] { (void)x.diagonal(); }), HasSubstr("a window of (2, 3) for an array of (2, 3)"));
  EXPECT_THAT(words([&] { (void)x.narrow(5, 0, 1); }), HasSubstr("[narrow] "));  // refused before it is seen
}

}  // namespace
}  // namespace sluice::testing
