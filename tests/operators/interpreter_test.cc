// Interpreters: what they see, what they may do, and twenty ways to misuse them.
#include "sluice/ndarray/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sluice/operators/attributes.h"

#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

/// Does what the test says.
class Does final : public Interpreter {
 public:
  explicit Does(std::function<void(Call&, const Next&)> what) : what_(std::move(what)) {}
  void apply(Call& call, Next next) override { what_(call, next); }

 private:
  std::function<void(Call&, const Next&)> what_;
};

std::shared_ptr<Interpreter> does(std::function<void(Call&, const Next&)> what) {
  return std::make_shared<Does>(std::move(what));
}

std::shared_ptr<Interpreter> notes(std::vector<std::string>& names) {
  return does([&names](Call& call, const Next& next) {
    names.emplace_back(call.name());
    next(call);
  });
}

template <class E>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

TEST(Interpreters, SeeTheCallsOfTheirThread) {
  std::vector<std::string> names;
  const NDArray x = ones({2, 3}), y = ones({3, 2});
  {
    const InterpreterScope scope(notes(names));
    const NDArray z = matmul(x, y) + 1;
    (void)z.transpose().reshape({2, 2});
    std::thread([&] { (void)exp(x); }).join();
    EXPECT_EQ(z.to_vector<float>(), (std::vector<float>{4, 4, 4, 4}));
  }
  (void)exp(x);
  EXPECT_THAT(names, ElementsAre("matmul", "add_scalar"));
}

TEST(Interpreters, SeeWhatTheCallIs) {
  const LayerScope layer("encoder");
  const NDArray x = ones({2, 3}), y = zeros({2, 3});
  int seen = 0;
  const InterpreterScope scope(does([&](Call& call, const Next& next) {
    ++seen;
    EXPECT_EQ(call.name(), "sum");
    EXPECT_TRUE(call.input().same_array(x));
    EXPECT_EQ(call.attributes().get<ReduceAttributes>().keep, true);
    EXPECT_THAT(call.specs(), ElementsAre(Spec{{1, 3}, DType::f32, cpu(0)}));
    EXPECT_STREQ(call.layer(), "encoder");
    EXPECT_THAT(call.where().file_name(), HasSubstr("interpreter_test.cc"));
    EXPECT_TRUE(call.targets().empty());
    EXPECT_TRUE(call.results().empty());
    next(call);
    ASSERT_EQ(call.results().size(), 1U);
    EXPECT_EQ(call.results()[0].shape(), (Dims{1, 3}));
  }));
  (void)sum(x, 0, {.keep = true});
  EXPECT_EQ(seen, 1);
  (void)y;
}

/// What it sees, as values.
class Values final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    list.push_back(call.value());
    next(call);
  }
  std::vector<CallValue> list;
};

TEST(Interpreters, ACallIsAValueThatLivesLonger) {
  const auto values = std::make_shared<Values>();
  {
    const InterpreterScope scope(values);
    NDArray x = ones({2, 3});
    for (int i = 0; i < 2; ++i) x = x.transpose() * 2.5;
    const LayerScope layer("head");
    x(0) += 1;
    for (int i = 0; i < 2; ++i) x = matmul(x, x, {.transpose_b = true});
  }
  const std::vector<CallValue>& all = values->list;
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(all[1], CallValue(all[1]));
  EXPECT_NE(all[1], all[2]);  // other shapes
  CallValue moved = all[2];
  moved.inputs = all[1].inputs;
  moved.results = all[1].results;
  EXPECT_EQ(moved, all[1]);
  moved.layer = "elsewhere";
  EXPECT_NE(moved, all[1]);
  moved = all[1];
  moved.attributes = all[3].attributes;
  EXPECT_NE(moved, all[1]);
  EXPECT_EQ(all[5].inputs, all[5].inputs);
  EXPECT_NE(all[4], all[5]);
  EXPECT_THAT(to_string(all[1]), MatchesRegex("mul_scalar\\(value=2.5 left=false\\) of \\(3, 2\\) f32 strides "
                                              "\\(1, 3\\) gives \\(3, 2\\) f32 on cpu\\(0\\); "
                                              ".*interpreter_test.cc:[0-9]+"));
  EXPECT_THAT(to_string(all[3]), MatchesRegex("add_scalar\\(.*\\) of \\(3,\\) f32 into \\(3,\\) f32 on "
                                              "cpu\\(0\\); .*interpreter_test.cc:[0-9]+ in head"));
  EXPECT_THAT(to_string(all[5]), HasSubstr("of (2, 2) f32, (2, 2) f32 gives (2, 2) f32"));
}

TEST(Interpreters, InnermostFirstAndWhatTheyPushGoesOutwards) {
  std::vector<std::string> order;
  const auto named = [&](const std::string& name, bool pushes) {
    return does([&order, name, pushes](Call& call, const Next& next) {
      order.push_back(name + " " + std::string(call.name()));
      if (pushes) (void)tanh(call.input());
      next(call);
      order.push_back(name + " after " + std::string(call.name()));
    });
  };
  const NDArray x = ones({2});
  const InterpreterScope outer(named("outer", false));
  const InterpreterScope inner(named("inner", true));
  (void)exp(x);
  EXPECT_THAT(order, ElementsAre("inner exp", "outer tanh", "outer after tanh", "outer exp", "outer after exp",
                                 "inner after exp"));
}

TEST(Interpreters, ChangeInputsAndAttributes) {
  const NDArray x = from<float>({1, 2, 3, 4}, {2, 2});
  const InterpreterScope scope(does([&](Call& call, const Next& next) {
    if (call.name() == "sum") {
      call.set_input(0, call.input() * 10);
      auto a = call.attributes().get<ReduceAttributes>();
      a.axes = 2;  // axis 1
      call.set_attributes(a);
    }
    next(call);
  }));
  EXPECT_EQ(sum(x, 0).to_vector<float>(), (std::vector<float>{30, 70}));
}

TEST(Interpreters, AnswerACall) {
  const NDArray x = from<float>({1, 2}, {2});
  NDArray target = zeros({2});
  const InterpreterScope scope(does([&](Call& call, const Next& next) {
    if (call.name() == "exp") return call.answer({call.input() * 2});
    if (call.name() == "copy" && !call.targets().empty()) {
      std::vector<NDArray> targets(call.targets().begin(), call.targets().end());
      targets[0] += call.input() * 3;
      return call.answer(targets);
    }
    next(call);
  }));
  EXPECT_EQ(exp(x).to_vector<float>(), (std::vector<float>{2, 4}));
  target.assign(x);
  EXPECT_EQ(target.to_vector<float>(), (std::vector<float>{3, 6}));
}

TEST(Interpreters, AnswersToWritesInPlaceArePushedByThoseWhoAnswer) {
  const NDArray x = from<float>({1, 2}, {2});
  NDArray y = from<float>({5, 5}, {2});
  std::vector<std::string> names;
  {
    const InterpreterScope scope(does([&](Call& call, const Next& next) {
      names.emplace_back(call.name());
      EXPECT_EQ(call.targets().size(), 1U);
      EXPECT_TRUE(call.targets()[0].same_array(y));
      next(call);
      EXPECT_TRUE(call.results()[0].same_array(y));
    }));
    y += x;
  }
  EXPECT_THAT(names, ElementsAre("add"));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{6, 7}));
}

TEST(Interpreters, WhatBodiesPushIsNotSeen) {
  for (const EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    test::DefaultEngine test({.mode = mode, .threads = 1});
    std::vector<std::string> names;
    const NDArray x = ones({2}), y = zeros({2});
    const InterpreterScope scope(notes(names));
    push_op([x](ArrayContext&) { (void)exp(x); }, {x}, {y});
    test.engine().wait_all();
    EXPECT_TRUE(names.empty());
  }
}

TEST(Interpreters, AScopeThatIsOverIsOver) {
  std::vector<std::string> names;
  const NDArray x = ones({2});
  ScopeState copy;
  auto guard = std::optional<ScopeGuard>();
  {
    const InterpreterScope scope(notes(names));
    guard.emplace();
    copy = current_scope();
  }
  guard.reset();  // restores the scope with the number of an interpreter that is gone
  (void)exp(x);
  current_scope() = copy;
  (void)exp(x);
  std::thread([&] {
    current_scope() = copy;
    (void)exp(x);
  }).join();
  current_scope() = ScopeState();
  EXPECT_TRUE(names.empty());
}

TEST(Interpreters, ErrorsBeforeNextLeaveEverythingAsItWas) {
  const NDArray x = ones({2});
  NDArray y = zeros({2});
  struct Stop {};
  const InterpreterScope scope(does([&](Call& call, const Next& next) {
    if (call.name() == "exp") throw Stop();
    next(call);
    if (call.name() == "add") throw Stop();
  }));
  EXPECT_THROW(exp(x), Stop);
  EXPECT_THROW(y += x, Stop);  // after Next: it stands
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{1, 1}));
  EXPECT_EQ((x * 2).to_vector<float>(), (std::vector<float>{2, 2}));
}

TEST(Interpreters, WrongCallsAreRefusedBeforeTheySeeThem) {
  std::vector<std::string> names;
  const InterpreterScope scope(notes(names));
  const NDArray x = ones({2, 3});
  names.clear();
  EXPECT_THROW((void)(x + ones({4})), ArrayError);
  EXPECT_THROW((void)matmul(x, x), ArrayError);
  NDArray y = zeros({2});
  EXPECT_THROW(y += x, ArrayError);
  EXPECT_THAT(names, ::testing::Each(::testing::AnyOf("fill")));
}

// ---- misuse: one clear line each

/// The error of exp(ones({2})) under this interpreter.
template <class E>
std::string misuse(std::function<void(Call&, const Next&)> what) {
  const NDArray x = ones({2});
  const InterpreterScope scope(does(std::move(what)));
  return message_of<E>([&] { (void)exp(x); });
}

TEST(InterpreterMisuse, OfNext) {
  const auto line = AllOf(HasSubstr("[exp] "), HasSubstr("interpreter_test.cc:"));
  EXPECT_THAT(misuse<UsageError>([](Call& call, const Next& next) {
                next(call);
                next(call);
              }),
              AllOf(line, HasSubstr("Next was called a second time")));
  EXPECT_THAT(misuse<UsageError>([](Call& call, const Next& next) {
                std::string text;
                std::thread([&] { text = message_of<UsageError>([&] { next(call); }); }).join();
                throw UsageError(text);
              }),
              AllOf(line, HasSubstr("Next was called on another thread than apply()")));
  EXPECT_THAT(misuse<UsageError>([](Call& call, const Next& next) {
                call.answer({ones({2})});
                next(call);
              }),
              AllOf(line, HasSubstr("Next was called after Call::answer")));
  std::optional<Next> kept;
  Call* gone = nullptr;
  EXPECT_EQ(misuse<UsageError>([&](Call& call, const Next& next) {
              kept.emplace(next);
              gone = &call;
              next(call);
            }),
            "no error");
  EXPECT_THAT(message_of<UsageError>([&] { (*kept)(*gone); }),
              AllOf(line, HasSubstr("Next was called after apply() had returned")));
  // A call inside a call, with the outer one's Next.
  const NDArray x = ones({2});
  std::optional<Next> first;
  const InterpreterScope outer(does([&](Call& call, const Next& next) {
    if (call.name() == "tanh") return (*first)(call);
    next(call);
  }));
  const InterpreterScope inner(does([&](Call& call, const Next& next) {
    first.emplace(next);
    (void)tanh(call.input());
    next(call);
  }));
  EXPECT_THAT(message_of<UsageError>([&] { (void)exp(x); }),
              AllOf(line, HasSubstr("Next was called for another call")));
}

TEST(InterpreterMisuse, OfAnswers) {
  const auto line = AllOf(HasSubstr("[exp] "), HasSubstr("interpreter_test.cc:"));
  EXPECT_THAT(misuse<ArrayError>([](Call&, const Next&) {}),
              AllOf(line, HasSubstr("an interpreter neither passed the call on nor answered it")));
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next&) { call.answer({}); }),
              AllOf(line, HasSubstr("an interpreter answered with no result; the call gives (2,) f32 on cpu(0)")));
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next&) { call.answer({ones({3})}); }),
              AllOf(line, HasSubstr("answered with (3,) f32 on cpu(0); the call gives (2,) f32 on cpu(0)")));
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next&) { call.answer({ones({2}, DType::f64)}); }),
              AllOf(line, HasSubstr("answered with (2,) f64 on cpu(0)")));
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next&) {
                call.answer({ones({2}), ones({2})});
              }),
              AllOf(line, HasSubstr("answered with (2,) f32 on cpu(0), (2,) f32 on cpu(0)")));
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next&) { call.answer({NDArray()}); }),
              AllOf(line, HasSubstr("empty")));
  EXPECT_THAT(misuse<UsageError>([](Call& call, const Next& next) {
                next(call);
                call.answer({ones({2})});
              }),
              AllOf(line, HasSubstr("Call::answer after Next: what was pushed stands")));
  NDArray y = zeros({2});
  const InterpreterScope scope(does([](Call& call, const Next& next) {
    if (call.targets().empty()) return next(call);
    call.answer({zeros({2})});
  }));
  EXPECT_THAT(message_of<ArrayError>([&] { y += ones({2}); }),
              AllOf(HasSubstr("[add]"), HasSubstr("answered with arrays that are not the targets of the call")));
}

TEST(InterpreterMisuse, OfChanges) {
  const auto line = AllOf(HasSubstr("[exp] "), HasSubstr("interpreter_test.cc:"));
  EXPECT_THAT(misuse<UsageError>([](Call& call, const Next& next) {
                next(call);
                call.set_input(0, ones({2}));
              }),
              AllOf(line, HasSubstr("Call::set_input after Next")));
  EXPECT_THAT(misuse<UsageError>([](Call& call, const Next& next) {
                next(call);
                call.set_attributes({});
              }),
              AllOf(line, HasSubstr("Call::set_attributes after Next")));
  for (const int i : {-1, 1}) {
    EXPECT_THAT(misuse<UsageError>([i](Call& call, const Next&) { call.set_input(i, ones({2})); }),
                AllOf(line, HasSubstr("Call::set_input of input " + std::to_string(i) + " of 1")));
  }
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next&) { call.set_input(0, NDArray()); }),
              AllOf(line, HasSubstr("empty")));
  EXPECT_THAT(
      misuse<ArrayError>([](Call& call, const Next& next) {
        call.set_input(0, ones({3}));
        next(call);
      }),
      AllOf(line, HasSubstr("as an interpreter changed it the call gives (3,) f32 on cpu(0); its caller expects "
                            "(2,) f32 on cpu(0)")));
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next& next) {
                call.set_input(0, ones({2}, DType::i64));
                next(call);
              }),
              AllOf(line, HasSubstr("needs a floating dtype, not i64")));
  EXPECT_THAT(message_of<UsageError>([] { const InterpreterScope scope(nullptr); }), HasSubstr("a null interpreter"));
  // An error that an interpreter catches reaches the caller all the same: there is no result.
  EXPECT_THAT(misuse<ArrayError>([](Call& call, const Next& next) {
                call.set_input(0, ones({3}));
                try {
                  next(call);
                } catch (const ArrayError&) {
                }
              }),
              AllOf(line, HasSubstr("its caller expects")));
}

// ---- all operators

/// The bits of the result and of the gradients.
std::vector<std::vector<std::byte>> bits_of(const OperatorCase& c) {
  std::vector<NDArray> x;
  for (const NDArray& input : make_inputs(c, c.by_lapack ? DType::f64 : DType::f32)) {
    x.push_back(c.gradient ? input.with_grad() : input);
  }
  const NDArray y = c.call(x);
  std::vector<std::vector<std::byte>> all{y.to_bytes()};
  if (!c.gradient || !y.requires_grad()) return all;
  sum(y).backward();
  for (const NDArray& input : x)
    all.push_back(input.grad().defined() ? input.grad().to_bytes() : std::vector<std::byte>());
  return all;
}

TEST(Interpreters, ThatChangeNothingChangeNoBits) {
  const auto identity = std::make_shared<Interpreter>();
  int calls = 0;
  const auto counts = does([&](Call& call, const Next& next) {
    ++calls;
    next(call);
  });
  for (const OperatorCase& c : operator_cases()) {
    const auto wanted = bits_of(c);
    const InterpreterScope outer(identity), inner(counts);
    EXPECT_EQ(bits_of(c), wanted) << c.name;
  }
  EXPECT_GT(calls, 2000);
}

}  // namespace
}  // namespace sluice::testing
