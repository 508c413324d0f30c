// AnomalyScope: which push is told, and what of it. Each test runs on the kinds of devices that arrays live on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "../ndarray/ndarray_test_support.h"
#include "sluice/tests/support/net_of.h"

namespace sluice::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using Pass = Anomaly::Pass;

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Anomaly, NamesOperatorLineElementAndLayer) {
  TestEngine test(2);
  const NDArray x = from({1.0F, 2.0F, 0.0F, 4.0F, 5.0F, 0.0F}, {2, 3});
  AnomalyScope anomaly;
  const NDArray y = x + 1.0F;
  EXPECT_FALSE(anomaly.first().has_value());
  anomaly.check();
  std::uint_least32_t line = 0;
  {
    const LayerScope outer("encoder"), inner("2");
    const NDArray z = log(x), after = z * 2.0F;
    line = __LINE__ - 1;
  }
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->push, 1U);
  EXPECT_EQ(found->operation, "log");
  EXPECT_EQ(found->where.line(), line);
  EXPECT_STREQ(found->layer, "encoder.2");
  EXPECT_EQ(found->pass, Pass::forward);
  EXPECT_EQ(found->shape, Dims({2, 3}));
  EXPECT_EQ(found->index, Dims({0, 2}));
  EXPECT_EQ(found->value, -kInf);
  EXPECT_TRUE(found->is_origin());
  EXPECT_EQ(found->device, test::device());
  const std::string text = found->to_string();
  EXPECT_THAT(text, HasSubstr("[log] anomaly_test.cc:" + std::to_string(line) + " in encoder.2"));
  EXPECT_THAT(text, EndsWith(": -inf at (0, 2) of the result (2, 3) f32; all that it read was finite"));
  try {
    anomaly.check();
    ADD_FAILURE() << "check() threw nothing";
  } catch (const AnomalyError& e) {
    EXPECT_EQ(e.what(), text);
    EXPECT_EQ(e.anomaly().operation, "log");
  }
  anomaly.clear();
  EXPECT_FALSE(anomaly.first().has_value());
}

TEST(Anomaly, IsTheFirstInTheOrderOfPushesWhateverRanFirst) {
  for (const int threads : {1, 2, 4}) {
    TestEngine test(threads, 2);
    const NDArray slow = zeros({4}), quick = zeros({4});
    const NDArray other = zeros({4}).to(test::device(1));
    AnomalyScope anomaly;
    {
      Gate gate(slow);
      NDArray held = slow;
      held -= 1.0F;                  // waits for the gate
      const NDArray a = sqrt(held);  // NaN, but not yet
      const NDArray b = log(other), c = log(quick);
      gate.open();
    }
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value()) << threads;
    EXPECT_EQ(found->operation, "sqrt") << threads << " threads: " << found->to_string();
    EXPECT_TRUE(std::isnan(found->value));
  }
}

TEST(Anomaly, TellsAnInputThatHadTheNumberAlready) {
  TestEngine test(2);
  const NDArray data = from({1.0F, NAN}, {2});
  AnomalyScope anomaly;
  const NDArray y = ones({2}) * data;
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->operation, "mul");
  EXPECT_EQ(found->input, 1);
  EXPECT_FALSE(found->is_origin());
  EXPECT_THAT(found->to_string(), EndsWith("; input 1 had nan already"));
}

TEST(Anomaly, OfAGradientNamesTheForwardLine) {
  TestEngine test(2);
  const NDArray x = from({4.0F, 0.0F}, {2}).with_grad();
  AnomalyScope anomaly;
  const LayerScope layer("head");
  const NDArray y = sqrt(x);
  const std::uint_least32_t line = __LINE__ - 1;
  sum(y).backward();
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->pass, Pass::backward);
  EXPECT_EQ(found->gradient_of, "sqrt");
  EXPECT_EQ(found->where.line(), line);
  EXPECT_STREQ(found->layer, "head");
  EXPECT_EQ(found->value, kInf);
  EXPECT_TRUE(found->is_origin());
  EXPECT_THAT(found->to_string(), HasSubstr(", for the gradient of [sqrt]: inf at (1,) of the result (2,) f32;"));
}

TEST(Anomaly, OfAWriteInPlaceLooksAtTheOldValueBefore) {
  TestEngine test(2);
  {
    NDArray x = from({1.0F, 0.0F}, {2});
    AnomalyScope anomaly;
    x /= zeros({2});
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->operation, "div");
    EXPECT_TRUE(found->is_origin()) << found->to_string();
    EXPECT_EQ(found->index, Dims({0}));
    EXPECT_EQ(found->value, kInf);
  }
  {
    NDArray x = from({1.0F, NAN}, {2});
    AnomalyScope anomaly;
    x += 1.0F;
    x.fill(3);
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->operation, "add");
    EXPECT_FALSE(found->is_origin()) << found->to_string();
    EXPECT_TRUE(std::isnan(found->input_value));
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{3, 3}));
  }
}

TEST(Anomaly, IsFoundInEveryFloatingDtypeAndInViews) {
  TestEngine test(2);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const NDArray x = ones({3, 4, 2}).to(dtype);
    x(2, slice(1, 2), 1).fill(0);
    AnomalyScope anomaly;
    const NDArray y = log(x);
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value()) << name_of(dtype);
    EXPECT_EQ(found->dtype, dtype);
    EXPECT_EQ(found->index, Dims({2, 1, 1}));
    anomaly.clear();
    const NDArray target = zeros({4, 3}).to(dtype);
    target.transpose()(slice(0, 3, 2)).assign(log(x(2)(all, 1)));  // the log is told
    const std::optional<Anomaly> second = anomaly.first();
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(second->operation, "log");
    EXPECT_EQ(second->index, Dims({1}));
    anomaly.clear();
    target.transpose()(reversed()).fill(-INFINITY);
    const std::optional<Anomaly> third = anomaly.first();
    ASSERT_TRUE(third.has_value());
    EXPECT_EQ(third->operation, "fill");
    EXPECT_EQ(third->index, Dims({0, 0}));
    EXPECT_TRUE(third->is_origin());
  }
}

TEST(Anomaly, LooksAtNoIntegersAndAtNothingEmpty) {
  TestEngine test(2);
  const NDArray x = from({NAN}, {1});
  AnomalyScope anomaly;
  const NDArray a = full({3}, 7, DType::i32) * 3, b = isnan(x), c = log(zeros({0, 3}));
  EXPECT_FALSE(anomaly.first().has_value());
}

TEST(Anomaly, OfACopyBetweenDevicesIsTold) {
  TestEngine test(2, 2);
  const NDArray x = from({1.0F, NAN}, {2}).to(test::device(1));
  AnomalyScope anomaly;
  const NDArray y = x.to(test::device(0)).to(DType::f64);
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->device.kind, test::device_kind());
  EXPECT_EQ(found->index, Dims({1}));
  EXPECT_EQ(found->input, 0);
}

TEST(Anomaly, AllowsWhatAProgramMeans) {
  TestEngine test(2);
  const NDArray mask = from({true, false}, {2});
  AnomalyScope anomaly({.inf = false});
  const NDArray masked = where(mask, -INFINITY, zeros({2}));
  const NDArray p = softmax(masked, 0);
  EXPECT_FALSE(anomaly.first().has_value());
  {
    AnomalyScope quiet({.nan = false, .inf = false});
    const NDArray q = sqrt(from({-1.0F}, {1}));
    EXPECT_FALSE(quiet.first().has_value());
  }
  EXPECT_FALSE(anomaly.first().has_value());
  const NDArray r = masked - masked;
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->operation, "sub");
  EXPECT_EQ(found->input, 0);
  EXPECT_EQ(found->input_value, -kInf);
}

TEST(Anomaly, OfACheckpointTellsTheFirstRunAndTheSecond) {
  TestEngine test(2);
  const NDArray x = from({1.0F, 0.0F}, {2}).with_grad();
  const auto f = [](const NDArray& a) { return square(log(a)); };
  {
    AnomalyScope anomaly;
    const NDArray y = checkpoint(f, x);
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->operation, "log");
    EXPECT_EQ(found->pass, Pass::forward);
  }
  {
    const NDArray y = checkpoint(f, x);
    AnomalyScope anomaly;
    sum(y).backward();
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->operation, "sum");
  }
  {
    const NDArray y = sum(checkpoint(f, x));
    AnomalyScope anomaly;
    y.backward();
    const std::optional<Anomaly> found = anomaly.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->operation, "log");
    EXPECT_EQ(found->pass, Pass::computed_again);
    EXPECT_TRUE(found->is_origin());
    EXPECT_THAT(found->to_string(), HasSubstr(", computed again: -inf at (1,)"));
  }
}

TEST(Anomaly, OfAnOptimisersStepNamesTheStep) {
  TestEngine test(2);
  const NDArray w = ones({3}).with_grad(), v = ones({2}).with_grad();
  const auto net = test::net_of({v, w});
  nn::Optimizer sgd(net, nn::Sgd{.lr = 2});
  (sum(w * 3e38F) + sum(v)).backward();
  AnomalyScope anomaly;
  sgd.step();
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->operation, HasSubstr("sgd"));
  EXPECT_EQ(found->value, -kInf);
  EXPECT_TRUE(found->is_origin()) << found->to_string();
}

TEST(Anomaly, OfAnOpOfTheProgramsOwnHasItsName) {
  if (test::device_kind() == DeviceKind::gpu) return;  // the body below is the host's
  TestEngine test(2);
  const NDArray x = ones({2}), y = zeros({2});
  AnomalyScope anomaly;
  push_op([](ArrayContext& c) { c.output().as<float>()[0] = 1, c.output().as<float>()[1] = NAN; }, {x}, {y},
          {.name = "mine"});
  const std::optional<Anomaly> found = anomaly.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->operation, "mine");
  EXPECT_EQ(found->index, Dims({1}));
}

TEST(Anomaly, IsWrittenWhereNobodyAsks) {
  TestEngine test(2);
  ::testing::internal::CaptureStderr();
  {
    AnomalyScope anomaly;
    const NDArray y = log(zeros({2}));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("sluice: anomaly: [log] anomaly_test.cc:"));
  ::testing::internal::CaptureStderr();
  {
    AnomalyScope anomaly;
    const NDArray y = log(zeros({2}));
    EXPECT_TRUE(anomaly.first().has_value());
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Anomaly, ChangesNoValueAndLeavesFailedOpsToWaits) {
  TestEngine test(2);
  const auto program = [] {
    const NDArray x = from({1.0F, 0.0F, 3.0F}, {3}).with_grad();
    NDArray y = x * 2.0F;
    const NDArray z = log(y);
    y += 1.0F;
    (sum(z) + sum(sqrt(y))).backward();
    return x.grad().to_vector<float>();
  };
  const std::vector<float> plain = program();
  {
    AnomalyScope anomaly;
    EXPECT_EQ(program(), plain);
    EXPECT_EQ(anomaly.first()->operation, "log");
  }
  if (test::on_streams()) return;  // a stream computes on before its device reports the failure
  AnomalyScope anomaly;
  const NDArray x = zeros({2});
  push_op([](ArrayContext&) { throw std::runtime_error("no value"); }, {}, {x}, {.name = "broken"});
  const NDArray y = log(x);
  EXPECT_FALSE(anomaly.first().has_value());
  EXPECT_THROW(y.to_vector<float>(), Error);
}

// Without a scope a push is one op; the test of its path is that of the scope's flags, which was there before.
TEST(Anomaly, PushesNothingOutsideOfAScope) {
  if (test::on_streams()) return;  // the gate below is no op there
  TestEngine test(2);
  const NDArray x = zeros({2});
  x.wait();
  Gate gate(x);
  NDArray held = x;
  const std::uint64_t before = test.engine.in_flight();
  held += 1.0F;
  EXPECT_EQ(test.engine.in_flight(), before + 1);
  {
    AnomalyScope anomaly;
    held += 1.0F;
    EXPECT_EQ(test.engine.in_flight(), before + 4) << "a look before, the write, and a look after";
    gate.open();
  }
  held -= 1.0F;
  EXPECT_EQ(held.to_vector<float>(), (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace sluice::testing
