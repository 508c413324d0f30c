// What arrays of owners refuse, and owners that do not do what they should.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "owner_support.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Owners, WhatNeedsMemoryIsRefusedInTheOwnersWords) {
  const NDArray x = Halves::split(numbers({4, 3}, 1));
  const NDArray one = Halves::split(numbers({2}, 1)).narrow(0, 0, 2);
  const std::vector<std::pair<const char*, std::function<void()>>> cases{
      {"to_vector", [&] { (void)x.to_vector<double>(); }},
      {"to_bytes", [&] { (void)x.to_bytes(); }},
      {"item", [&] { (void)one.item<double>(); }},
      {"borrow", [&] { (void)x.borrow<double>(); }},
      {"to_string", [&] { (void)x.to_string(); }},
      {"to_string",
       [&] {
         std::ostringstream out;
         out << x;
       }},
      {"strided", [&] { (void)x.strided({2}, {1}, 0); }},
      {"unfold", [&] { (void)x.unfold(0, 2, 1); }},
      {"diagonal", [&] { (void)x.diagonal(); }},
      {"variable", [&] { (void)variable_of(x); }},
      {"memory_of", [&] { (void)memory_of(x); }},
      {"mine", [&] { push_op([](ArrayContext&) {}, {x}, {numbers({1}, 1)}, {.name = "mine"}); }},
      {"mine", [&] { push_op([](ArrayContext&) {}, {}, {x}, {.name = "mine"}); }},
  };
  for (const auto& [name, f] : cases) {
    EXPECT_THAT(refusal(f), AllOf(HasSubstr("[" + std::string(name) + "] "), HasSubstr("owner_misuse_test.cc:"),
                                  HasSubstr(": an array in two halves: join(x) first")))
        << name;
  }
  EXPECT_THAT(refusal([&] { (void)x.narrow(0, 0, 1); }), HasSubstr("[slice] "));
  EXPECT_THAT(refusal([&] { (void)x.narrow(0, 0, 9); }), HasSubstr("[narrow] "));  // as of any array
  EXPECT_THAT(refusal([&] { (void)(x + numbers({5}, 1)); }), HasSubstr("[add] "));
}

TEST(Owners, WritesThatCannotBeRecordedAreRefused) {
  NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  EXPECT_THAT(refusal([&] { x += 1; }), HasSubstr("writes in place to an array that wants a gradient"));
  const NDArray y = x * 2;
  NDArray part = y.narrow(1, 0, 1);
  EXPECT_THAT(refusal([&] { part += 1; }), HasSubstr("a recorded write to a view of an array of an owner"));
  NDArray plain = zeros({4, 4}, DType::f64);
  NDArray some = plain.narrow(1, 0, 3);
  EXPECT_THAT(refusal([&] { some += x; }), HasSubstr("to a part of a plain array"));
  EXPECT_EQ(values(plain), std::vector<double>(16, 0.0));
  expect_near(y, numbers({4, 3}, 1) * 2);
  EXPECT_THAT(refusal([&] { (void)y.with_grad(); }), HasSubstr("use detach()"));
  const NDArray of_none = Halves::split(numbers({4, 3}, 1));
  EXPECT_THAT(refusal([&] { (void)of_none.transpose().with_grad(); }), HasSubstr("give the array itself"));
  EXPECT_THAT(refusal([&] { (void)on_gradient(y.transpose(), [](const NDArray& g) { return g; }); }),
              HasSubstr("the hook must be on the array itself"));
  const AnomalyScope anomalies;
  EXPECT_THAT(refusal([&] { push_op([](ArrayContext&) {}, {}, {y}, {.name = "mine"}); }),
              AllOf(HasSubstr("[mine] "), HasSubstr("join(x) first")));
}

/// An owner that does what the test says.
class Does final : public Owner {
 public:
  std::function<void(Call&)> on_call = [](Call&) {};
  std::function<void(ViewCall&)> on_view = [](ViewCall&) {};
  void apply(Call& call) override { on_call(call); }
  void view(ViewCall& call) override { on_view(call); }
  Ref<Owner> snapshot() const override { return Ref<Owner>(new Does(*this)); }
  NDArray constant(const Spec& spec, const Scalar&, const std::source_location&) const override {
    return empty(spec.shape, spec.dtype);
  }
  std::vector<NDArray> parts() const override { return {}; }
  std::string refusal() const override { return "not here"; }

  Does() = default;
  Does(const Does& other) : on_call(other.on_call), on_view(other.on_view) {}
};

/// One whose constants have another shape.
class Wrong final : public Owner {
 public:
  void apply(Call&) override {}
  void view(ViewCall&) override {}
  Ref<Owner> snapshot() const override { return Ref<Owner>(new Wrong); }
  NDArray constant(const Spec&, const Scalar&, const std::source_location&) const override { return zeros({3}); }
  std::vector<NDArray> parts() const override { return {}; }
  std::string refusal() const override { return "not here"; }
};

TEST(OwnerMisuse, IsOneLine) {
  const DeviceScope host(cpu(0));
  const Ref<Does> does(new Does);
  const NDArray x = owned_array({{4, 2}, DType::f32, cpu(0)}, Ref<Owner>(does)).with_grad();
  EXPECT_THAT(refusal([&] { (void)exp(x); }),
              AllOf(HasSubstr("[exp] "), HasSubstr("its owner did not answer the call")));
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }), HasSubstr("its owner did not answer the view"));
  does->on_call = [](Call& call) { call.answer({zeros({3})}); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }),
              HasSubstr("its owner answered with (3,) f32 on cpu(0); the call gives (4, 2) f32"));
  does->on_call = [](Call& call) { call.answer({}); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }),
              HasSubstr("its owner answered with no result; the call gives (4, 2) f32"));
  does->on_call = [](Call& call) { call.answer({NDArray()}); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }), HasSubstr("an empty handle"));
  NDArray y = owned_array({{4, 2}, DType::f32, cpu(0)}, Ref<Owner>(does));
  does->on_call = [](Call& call) { call.answer({zeros({4, 2})}); };
  EXPECT_THAT(refusal([&] { y += 1; }), HasSubstr("not the targets of the call"));
  does->on_view = [](ViewCall& call) { call.answer(zeros({2, 4})); };
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }), HasSubstr("not an owner's"));
  does->on_view = [](ViewCall& call) { call.answer(call.input()); };
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }),
              HasSubstr("its owner answered with (4, 2) f32 on cpu(0); the view is (2, 4) f32 on cpu(0)"));
  does->on_view = [](ViewCall& call) { (void)call.of(zeros({3})); };
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }), HasSubstr("a permute of (4, 2) for an array of (3,)"));
  EXPECT_THAT(refusal([&] { (void)owned_array({{4, 2}, DType::f32, cpu(0)}, {}); }), HasSubstr("a null owner"));
  EXPECT_THAT(refusal([&] {
                (void)owned_array({{-4, 2}, DType::f32, cpu(0)}, Ref<Owner>(does));
              }),
              HasSubstr("[owned_array] "));
  EXPECT_THAT(refusal([&] { (void)owner_of(NDArray()); }), HasSubstr("an empty handle"));
  // One that makes scopes of its own while interpreters stand around it.
  does->on_view = [&](ViewCall& call) {
    std::vector<std::unique_ptr<InterpreterScope>> scopes;
    for (int i = 0; i < 100; ++i) {
      scopes.push_back(std::make_unique<InterpreterScope>(std::make_shared<Interpreter>()));
    }
    call.answer(owned_array({{2, 4}, DType::f32, cpu(0)}, Ref<Owner>(does)));
  };
  {
    const InterpreterScope scope(std::make_shared<Interpreter>());
    EXPECT_EQ(x.transpose().shape(), (Dims{2, 4}));
  }
  EXPECT_THAT(refusal([&] {
                (void)zeros_like(owned_array({{4, 2}, DType::f32, cpu(0)}, Ref<Owner>(new Wrong)));
              }),
              HasSubstr("(3,) f32 on cpu(0) in place of (4, 2) f32 on cpu(0)"));
  does->on_call = [](Call&) { throw ArrayError("exp", std::source_location::current(), "mine"); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }), HasSubstr("mine"));
  EXPECT_TRUE(x.requires_grad());
}

/// An owner may answer with an operand, or with an array that it keeps: the result is another array all the same.
TEST(Owners, AnswersThatAreOperandsAreArraysOfTheirOwn) {
  const DeviceScope host(cpu(0));
  const Ref<Does> does(new Does);
  const NDArray x = owned_array({{2}, DType::f32, cpu(0)}, Ref<Owner>(does)).with_grad();
  const NDArray kept = ones({2});
  does->on_call = [&](Call& call) { call.answer({call.name() == "exp" ? kept : call.input()}); };
  NDArray y = exp(x);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(kept.requires_grad());
  EXPECT_FALSE(y.same_array(kept));
  {
    const NoGrad scope;
    y += 1;
  }
  EXPECT_EQ(kept.to_vector<float>(), (std::vector<float>{1, 1}));
  const NDArray z = tanh(x);
  EXPECT_FALSE(z.same_array(x));
  const NoGrad scope;
  EXPECT_FALSE(exp(x).same_array(kept));
  EXPECT_FALSE(tanh(x).same_array(x));
  EXPECT_TRUE(x.requires_grad());
}

TEST(Owners, OfSeveralTheFirstOperandsIsAskedAndSeesTheOthers) {
  const DeviceScope host(cpu(0));
  std::string asked;
  const auto named = [&](const char* name) {
    Does* const does = new Does;
    does->on_call = [&asked, name](Call& call) {
      asked = name;
      if (!call.targets().empty()) return call.answer({call.targets().begin(), call.targets().end()});
      for (const NDArray* x : call.inputs()) EXPECT_TRUE(owner_of(*x));
      call.answer({zeros({2})});
    };
    return owned_array({{2}, DType::f32, cpu(0)}, Ref<Owner>(does));
  };
  const NDArray a = named("a"), b = named("b");
  (void)(a + b);
  EXPECT_EQ(asked, "a");
  (void)(b + a);
  EXPECT_EQ(asked, "b");
  a.assign(b);  // inputs before targets
  EXPECT_EQ(asked, "b");
  a.fill(1);
  EXPECT_EQ(asked, "a");
}

}  // namespace
}  // namespace sluice::testing
