// The layers that modules push in: names of the tree of modules, in errors and traces, forward and backward.
#include <gmock/gmock.h>

#include <thread>

#include "nn_support.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice {
namespace {

using test::made_up;
using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// "name in layer" of each traced op whose name begins with `prefix`, in the order in which they began.
std::vector<std::string> traced(const std::vector<TraceEvent>& events, const std::string& prefix) {
  std::vector<std::string> list;
  for (const TraceEvent& e : events) {
    if (std::string(e.name).starts_with(prefix)) list.push_back(std::string(e.name) + " in " + e.layer);
  }
  return list;
}

std::vector<std::string> names(Module& module) {
  std::vector<std::string> list;
  for (const NamedParameter& p : module.parameters()) list.push_back(p.name);
  return list;
}

std::string what_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

/// x * x, whose gradient fails when it runs, not at its push.
NDArray square_without_gradient(const NDArray& x) {
  static const Operator& broken = add_operator("broken_gradient", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.add_kernel({.name = "test"}, {DType::f64},
                  {.run = [](ArrayContext&) { throw std::runtime_error("no memory of it"); }});
  });
  static const Operator& row = add_operator("square_without_gradient", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.gradient = [](GradientContext& c) { c.set(0, apply(broken, {&c.gradient()})); };
    op.add_kernel({.name = "test"}, {DType::f64},
                  {.run =
                       [](ArrayContext& c) {
                         for (std::int64_t i = 0; i < c.input(0).count(); ++i) {
                           const double value = c.input(0).as<double>()[i];
                           c.output().as<double>()[i] = value * value;
                         }
                       },
                   .dense_inputs = true});
  });
  return apply(row, {&x});
}

/// A model as a program writes one.
struct Block : Module {
  Block(std::int64_t n, RandomStream& s)
      : attention(n, n, s, {.dtype = DType::f64}), output(n, n, s, {.bias = false, .dtype = DType::f64}) {}
  NDArray forward(const NDArray& x) override { return x + output(tanh(attention(x))); }
  std::vector<NamedModule> children() override { return {{"attention", &attention}, {"output", &output}}; }
  Linear attention, output;
};
struct Model : Module {
  explicit Model(RandomStream& s) : encoder(Block(4, s), Block(4, s)), head(4, 2, s, {.dtype = DType::f64}) {}
  NDArray forward(const NDArray& x) override { return head(encoder(x)); }
  std::vector<NamedModule> children() override { return {{"encoder", &encoder}, {"head", &head}}; }
  Sequential encoder;
  Linear head;
};

TEST(ModuleLayers, ErrorsNameThePathOfTheLayer) {
  TestEngine engine;
  RandomStream stream(1);
  Sequential net{Linear(4, 8, stream), Relu(), Linear(9, 2, stream)};
  const NDArray x = ones({3, 4});
  for (const std::string& what : {what_of([&] { net(x); }), what_of([&] { net.forward(x); })}) {
    EXPECT_THAT(what, HasSubstr("[linear] module_layers_test.cc:"));
    EXPECT_THAT(what, HasSubstr(" in 2: (3, 8) x (2, 9) x (2,): "));
  }
  EXPECT_STREQ(current_layer(), "");
}

TEST(ModuleLayers, PathsAreThoseOfTheParameters) {
  TestEngine engine;
  RandomStream stream(1);
  Model model(stream);
  EXPECT_THAT(names(model),
              ElementsAre("encoder.0.attention.weight", "encoder.0.attention.bias", "encoder.0.output.weight",
                          "encoder.1.attention.weight", "encoder.1.attention.bias", "encoder.1.output.weight",
                          "head.weight", "head.bias"));
  engine->start_trace();
  const NDArray loss = sum(square(model(made_up({3, 4}, 1))));
  loss.wait();
  engine->wait_all();
  const std::vector<TraceEvent> events = engine->stop_trace();
  EXPECT_THAT(traced(events, "linear"),
              ElementsAre("linear in encoder.0.attention", "linear in encoder.0.output",
                          "linear in encoder.1.attention", "linear in encoder.1.output", "linear in head"));
  EXPECT_THAT(traced(events, "tanh"), ElementsAre("tanh in encoder.0", "tanh in encoder.1"));
  EXPECT_THAT(traced(events, "sum"), ElementsAre("sum in "));
  EXPECT_THAT(to_perfetto(events), HasSubstr("\"layer\": \"encoder.1.attention\""));
}

TEST(ModuleLayers, GradientsAreInTheLayerOfTheirOperator) {
  TestEngine engine;
  RandomStream stream(1);
  Model model(stream);
  const NDArray loss = sum(square(model(made_up({3, 4}, 1))));
  loss.wait();
  engine->start_trace();
  {
    const LayerScope outer("the caller's");  // is not theirs
    loss.backward();
    EXPECT_STREQ(current_layer(), "the caller's");
  }
  for (const NamedParameter& p : model.parameters()) p.value->grad().wait();
  engine->wait_all();
  const std::vector<TraceEvent> events = engine->stop_trace();
  EXPECT_THAT(traced(events, "tanh_grad"), UnorderedElementsAre("tanh_grad in encoder.0", "tanh_grad in encoder.1"));
  // The gradients of input and weight; the model's input wants none.
  EXPECT_THAT(traced(events, "matmul"),
              UnorderedElementsAre("matmul in encoder.0.attention", "matmul in encoder.0.output",
                                   "matmul in encoder.0.output", "matmul in encoder.1.attention",
                                   "matmul in encoder.1.attention", "matmul in encoder.1.output",
                                   "matmul in encoder.1.output", "matmul in head", "matmul in head"));
}

TEST(ModuleLayers, GradientsOfGradientsToo) {
  TestEngine engine;
  NDArray x = made_up({3}, 1).with_grad(), y;
  {
    const LayerScope layer("cubes");
    y = sum(x * x * x);
  }
  const NDArray first = grad(y, std::span(&x, 1), {.create_graph = true})[0];
  const NDArray total = sum(first);
  engine->wait_all();
  engine->start_trace();
  const NDArray second = grad(total, std::span(&x, 1))[0];
  second.wait();
  engine->wait_all();
  const std::vector<std::string> muls = traced(engine->stop_trace(), "mul");
  EXPECT_GE(muls.size(), 2U);
  for (const std::string& mul : muls) EXPECT_EQ(mul, "mul in cubes");
}

TEST(ModuleLayers, RecordsHaveThem) {
  TestEngine engine;
  RandomStream stream(1);
  Sequential net{Relu(), Linear(4, 2, stream)};
  const NDArray x = ones({3, 4});
  const RecordScope scope;
  net(x);
  ASSERT_EQ(scope.records().size(), 2U);
  EXPECT_STREQ(scope.records()[0].layer, "0");
  EXPECT_TRUE(to_string(scope.records()[1]).ends_with(" in 1"));
}

TEST(ModuleLayers, AFailureInBackwardNamesTheLayer) {
  TestEngine engine;
  struct Square : Module {
    NDArray forward(const NDArray& x) override { return square_without_gradient(x); }
  };
  RandomStream stream(1);
  Sequential net{Linear(4, 4, stream, {.dtype = DType::f64}), Sequential{Relu(), Square()}};
  const NDArray loss = sum(net(made_up({3, 4}, 1)));
  loss.wait();
  loss.backward();
  const std::string what = what_of([&] { net.parameters()[0].value->grad().wait(); });
  EXPECT_THAT(what, HasSubstr("[broken_gradient] module_layers_test.cc:"));
  EXPECT_THAT(what, ::testing::AllOf(HasSubstr(" in 1.1"), HasSubstr(": no memory of it")));
}

TEST(ModuleLayers, ALayerThatIsReplacedKeepsItsName) {
  TestEngine engine;
  RandomStream stream(1);
  Model model(stream);
  const NDArray x = made_up({3, 4}, 1);
  model(x);
  model.head = Linear(5, 2, stream, {.dtype = DType::f64});
  EXPECT_THAT(what_of([&] { model(x); }), HasSubstr(" in head: (3, 4) x (2, 5)"));
  Model moved(std::move(model));
  EXPECT_THAT(what_of([&] { moved(x); }), HasSubstr(" in head: (3, 4) x (2, 5)"));
  Sequential outer{std::move(moved)};
  EXPECT_THAT(what_of([&] { outer(x); }), HasSubstr(" in 0.head: (3, 4) x (2, 5)"));
}

TEST(ModuleLayers, EachThreadHasItsOwn) {
  TestEngine engine;
  std::vector<std::string> whats(2);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < whats.size(); ++t) {
    threads.emplace_back([&, t] {
      const DeviceScope device(test::device());
      RandomStream stream(t);
      Sequential net{Relu(), Linear(3 + static_cast<std::int64_t>(t), 2, stream)};
      const LayerScope branch("branch " + std::to_string(t));
      for (int i = 0; i < 20; ++i) whats[t] = what_of([&] { net(ones({1, 9})); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(whats[0], HasSubstr(" in branch 0.1: (1, 9) x (2, 3)"));
  EXPECT_THAT(whats[1], HasSubstr(" in branch 1.1: (1, 9) x (2, 4)"));
}

}  // namespace
}  // namespace sluice
