// Interpreters and gradients: backward is made of calls, and a checkpoint's second call has the interpreters of its
// first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

class Notes final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    names.emplace_back(call.name());
    next(call);
  }
  std::vector<std::string> names;
};

/// Every gelu in its tanh form.
class TanhGelu final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    if (call.name() != "gelu") return next(call);
    ++replaced;
    call.answer({gelu(call.input(), {.tanh = true})});
  }
  int replaced = 0;
};

using Numbers = std::vector<double>;

/// A result of two gelus, and the gradient of x.
std::pair<Numbers, Numbers> network(bool in_checkpoint, bool by_hand, const std::shared_ptr<Interpreter>& interpreter) {
  const NDArray x = from<double>({-1.5, -0.5, 0.25, 2}, {4}).with_grad();
  const auto f = [by_hand](const NDArray& a) {
    const auto one = [&](const NDArray& h) { return by_hand ? gelu(h, {.tanh = true}) : gelu(h); };
    return one(one(a) * 3);
  };
  std::unique_ptr<InterpreterScope> scope;
  if (interpreter) scope = std::make_unique<InterpreterScope>(interpreter);
  const NDArray y = in_checkpoint ? checkpoint(f, x) : f(x);
  scope.reset();  // backward and the second call run without it on this thread
  sum(y).backward();
  return {y.to_vector<double>(), x.grad().to_vector<double>()};
}

TEST(InterpretersAndGradients, AnAnswerHasItsOwnGradientThroughACheckpointToo) {
  const auto wanted = network(false, true, nullptr);
  EXPECT_NE(network(false, false, nullptr), wanted);
  for (const bool in_checkpoint : {false, true}) {
    const auto interpreter = std::make_shared<TanhGelu>();
    EXPECT_EQ(network(in_checkpoint, false, interpreter), wanted) << in_checkpoint;
    EXPECT_EQ(interpreter->replaced, in_checkpoint ? 4 : 2);
  }
}

TEST(InterpretersAndGradients, BackwardIsSeenByWhoeverLivesThen) {
  const auto notes = std::make_shared<Notes>();
  const NDArray x = ones({3}).with_grad();
  NDArray y = sum(exp(x));
  {
    const InterpreterScope scope(notes);
    y.backward();
  }
  EXPECT_THAT(notes->names, Contains("exp_grad"));
  EXPECT_THAT(notes->names, Not(Contains("exp")));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>(3, std::exp(1.F))));
}

TEST(InterpretersAndGradients, TheSecondCallOfACheckpointHasTheFirstOnesInterpretersAlone) {
  const auto first = std::make_shared<Notes>(), later = std::make_shared<Notes>();
  const NDArray x = ones({3}).with_grad();
  NDArray y;
  {
    const InterpreterScope scope(first);
    y = checkpoint([](const NDArray& a) { return exp(tanh(a)); }, x);
    EXPECT_THAT(first->names, ElementsAre("tanh", "exp"));
    first->names.clear();
  }
  const InterpreterScope scope(later);
  sum(y).backward();
  EXPECT_THAT(first->names, ElementsAre("tanh", "exp"));
  EXPECT_THAT(later->names, Contains("tanh_grad"));
  EXPECT_THAT(later->names, Not(Contains("tanh")));
}

TEST(InterpretersAndGradients, GradientsOfGradientsAndStepsInPlace) {
  const auto notes = std::make_shared<Notes>();
  NDArray w = from<double>({1, 2}, {2}).with_grad();
  const InterpreterScope scope(notes);
  const NDArray y = sum(w * w * w);
  const NDArray g = grad(y, {w}, {.create_graph = true})[0];
  const NDArray h = grad(sum(g), {w})[0];
  EXPECT_EQ(h.to_vector<double>(), (Numbers{6, 12}));
  notes->names.clear();
  {
    const NoGrad no_grad;
    w -= h * 0.5;
  }
  EXPECT_THAT(notes->names, ElementsAre("mul_scalar", "sub"));
  EXPECT_EQ(w.to_vector<double>(), (Numbers{-2, -4}));
}

}  // namespace
}  // namespace sluice
