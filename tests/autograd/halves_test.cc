// Backward in two halves: what each half does, keeps and throws.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "../ndarray/ndarray_test_support.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Arrays = std::vector<NDArray>;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Floats floats(const NDArray& x) { return x.to_vector<float>(); }

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

template <class F>
std::vector<std::string> pushes_of(F&& f) {
  const RecordScope scope;
  f();
  std::vector<std::string> names;
  for (const OperationRecord& r : scope.records()) names.push_back(r.name);
  return names;
}

TEST(BackwardInHalves, GivesInputsNowAndWeightsLater) {
  TestEngine test(2);
  const NDArray x = from({2.0F}, {1}).with_grad(), w = from({3.0F}, {1}).with_grad(), u = from({5.0F}, {1}).with_grad();
  const NDArray y = x * w * (u * 2);
  WeightGradients later = backward_inputs({y}, {from({1.0F}, {1})}, {x});
  EXPECT_EQ(floats(x.grad()), Floats{30});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(u.grad().defined());
  EXPECT_TRUE(later.pending());
  std::thread([&] { later.run(); }).join();
  EXPECT_EQ(floats(w.grad()), Floats{20});
  EXPECT_EQ(floats(u.grad()), Floats{12});
  EXPECT_EQ(floats(x.grad()), Floats{30});
  EXPECT_FALSE(later.pending());
  EXPECT_EQ(later.bytes(), 0U);
  EXPECT_THAT(message_of([&] { later.run(); }), HasSubstr("it was run before"));
  EXPECT_THAT(message_of([&] { y.backward(); }), HasSubstr("the tape was freed"));
}

TEST(BackwardInHalves, WithoutInputsAllIsLater) {
  TestEngine test(2);
  const NDArray x = from({2.0F}, {1}), w = from({3.0F}, {1}).with_grad(), other = ones({1}).with_grad();
  for (const bool empty : {true, false}) {
    const NDArray y = exp(x * w * 0), g = from({1.0F}, {1});
    const Arrays inputs = empty ? Arrays() : Arrays{x, other};  // a leaf that the root does not depend on
    WeightGradients later;
    EXPECT_THAT(pushes_of([&] { later = backward_inputs({y}, {g}, inputs); }), IsEmpty());
    EXPECT_TRUE(later.pending());
    g.fill(9);
    EXPECT_GT(pushes_of([&] { later.run(); }).size(), 2U);
  }
  EXPECT_EQ(floats(w.grad()), Floats{0});
  EXPECT_FALSE(other.grad().defined());
}

TEST(BackwardInHalves, RootsMayLeadToInputsOrNot) {
  TestEngine test(2);
  const auto gradients = [](bool halves) {
    const NDArray x = from({2.0F, 0.1F}, {2}).with_grad(), w = from({3.0F, 0.7F}, {2}).with_grad();
    const NDArray t = w * w, a = x * t, b = exp(w), c = sum(t);
    const NDArray g = from({0.3F, 0.6F}, {2});
    const Arrays roots{a, b, t, c, w, a(slice(0, 1))}, seeds{g, g, g * 3, NDArray(), g, g(slice(1, 2))};
    if (halves) {
      backward_inputs(roots, seeds, {x}).run();
    } else {
      backward(roots, seeds);
    }
    return std::vector<Floats>{floats(x.grad()), floats(w.grad())};
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(BackwardInHalves, CallsHooksOnceAndInTheirHalf) {
  TestEngine test(2);
  const NDArray x = from({2.0F}, {1}).with_grad(), w = from({3.0F}, {1}).with_grad();
  std::vector<std::string> calls;
  const NDArray doubled = w * 2, y = x * doubled, z = y * w, kept = from({7.0F}, {1});
  const auto hook = [&](const NDArray& of, const std::string& name, const NDArray& instead) {
    on_gradient(of, [&calls, name, instead](const NDArray& g) {
      calls.push_back(name + " " + std::to_string(static_cast<int>(floats(g)[0])));
      return instead;
    });
  };
  hook(x, "x", NDArray());
  hook(w, "w", NDArray());
  hook(y, "y", kept);
  hook(doubled, "doubled", NDArray());
  WeightGradients later = backward_inputs({z}, {from({1.0F}, {1})}, {x});
  EXPECT_EQ(calls, (std::vector<std::string>{"y 3", "x 42"}));
  kept.fill(100);
  later.run();
  EXPECT_EQ(calls, (std::vector<std::string>{"y 3", "x 42", "doubled 14", "w 40"}));
}

TEST(BackwardInHalves, AttentionRunsOnceThoughOnlyKeysWait) {
  TestEngine test(2);
  RandomStream random(3);
  const auto gradients = [&](bool halves) {
    RandomStream numbers(5);
    const NDArray x = normal({3, 4}, numbers).detach().with_grad(), k = normal({6, 4}, numbers).detach().with_grad(),
                  v = normal({6, 4}, numbers).detach().with_grad();
    const NDArray y = attention(x, k * 2, v), g = ones({3, 4});
    if (halves) {
      WeightGradients later;
      EXPECT_THAT(pushes_of([&] { later = backward_inputs({y}, {g}, {x}); }), Contains("attention_grad").Times(1));
      EXPECT_THAT(pushes_of([&] { later.run(); }), Not(Contains("attention_grad")));
    } else {
      backward({y}, {g});
    }
    return std::vector<Floats>{floats(x.grad()), floats(k.grad()), floats(v.grad())};
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(BackwardInHalves, ACustomFunctionIsAskedOnce) {
  TestEngine test(2);
  int calls = 0;
  const NDArray held = from({11.0F}, {1});
  const CustomFunction f{.name = "mine",
                         .forward = [](Saved&, const Arrays& xs) { return Arrays{xs[0] + xs[1] + xs[2]}; },
                         .backward =
                             [&](const Saved&, const Arrays& g) {
                               ++calls;
                               return Arrays{g[0], held, NDArray()};
                             }};
  const NDArray x = ones({1}).with_grad(), w = ones({1}).with_grad(), u = ones({1}).with_grad();
  WeightGradients later = backward_inputs({apply_custom(f, {x, w, u})[0]}, {NDArray()}, {x});
  held.fill(5);  // the program holds it, and the first half has seen it as it was
  later.run();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(floats(w.grad()), Floats{11});
  EXPECT_FALSE(u.grad().defined());
}

TEST(BackwardInHalves, FreesInTheFirstWhatTheSecondDoesNotUse) {
  TestEngine test(1, 1, EngineMode::serial);
  const NDArray x = ones({1 << 16}).with_grad(), w = ones({1 << 16}).with_grad();
  MemoryPool& pool = memory_pool(cpu(0));
  const std::size_t before = pool.stats().in_use;
  const auto arrays = [&] { return (pool.stats().in_use - before) / x.bytes(); };
  NDArray y = x;
  for (int i = 0; i < 8; ++i) y = sin(y);
  y = y * w;
  for (int i = 0; i < 8; ++i) y = sin(y);
  EXPECT_EQ(kept_bytes({y}, {x}), 17 * x.bytes());  // the inputs of 16 sines and of the product, of which x is one
  EXPECT_EQ(kept_bytes({y}, {}), 16 * x.bytes());
  const NDArray seed = ones({1 << 16});
  WeightGradients later = backward_inputs({y}, {seed}, {x});
  // The product's input and output's gradient; besides x's gradient, y and the seed.
  EXPECT_EQ(later.bytes(), 2 * x.bytes());
  EXPECT_EQ(arrays(), 5U);
  later.run();
  EXPECT_EQ(arrays(), 4U);  // w's gradient has taken their place
}

TEST(BackwardInHalves, AFusedReluLeavesOneGradient) {
  TestEngine test(1, 1, EngineMode::serial);
  const NDArray x = ones({256, 256}).with_grad(), w = ones({256, 256}).with_grad();
  NDArray y = linear(x, w, {}, {.relu = true}), z = sin(y);
  y = NDArray();
  EXPECT_EQ(kept_bytes({z}, {x}), 2 * x.bytes());  // x and the result of the relu
  const WeightGradients later = backward_inputs({z}, {ones({256, 256})}, {x});
  EXPECT_EQ(later.bytes(), 2 * x.bytes());  // x and the gradient before the relu
}

TEST(BackwardInHalves, DroppedWorkIsAsIfItHadNoGradient) {
  TestEngine test(1, 1, EngineMode::serial);
  const NDArray x = ones({1 << 16}).with_grad(), w = ones({1 << 16}).with_grad();
  MemoryPool& pool = memory_pool(cpu(0));
  const std::size_t before = pool.stats().in_use;
  for (const bool wanted : {true, false}) {
    const NDArray y = x * exp(w * 2);
    {
      const WeightGradients later = backward_inputs({y}, {ones({1 << 16})}, wanted ? Arrays{x} : Arrays{});
      EXPECT_TRUE(later.pending());
    }
    EXPECT_FALSE(w.grad().defined());
    EXPECT_EQ(x.grad().defined(), true);
    EXPECT_EQ(pool.stats().in_use - before, 2 * x.bytes());  // y, and x's gradient
    EXPECT_THAT(message_of([&] { sum(y).backward(); }), HasSubstr("the tape was freed"));
  }
  test.engine.wait_all();
}

TEST(BackwardInHalves, RetainKeepsTheTape) {
  TestEngine test(2);
  const NDArray x = from({2.0F}, {1}).with_grad(), w = from({3.0F}, {1}).with_grad();
  const NDArray y = linear(x.reshape({1, 1}), (w * w).reshape({1, 1}), w, {.relu = true});
  for (int i = 0; i < 3; ++i) {
    WeightGradients later = backward_inputs({y}, {NDArray()}, {x}, {.retain = true});
    if (i != 1) later.run();
  }
  y.backward();
  EXPECT_EQ(floats(x.grad()), Floats{4 * 9});
  EXPECT_EQ(floats(w.grad()), Floats{3 * 13});
}

TEST(BackwardInHalves, RefusesWhatItCannotDo) {
  TestEngine test(2);
  const NDArray x = ones({2}).with_grad(), h = exp(x), y = h * 2;
  const auto refused = [&](auto&&... arguments) { return message_of([&] { (void)backward_inputs(arguments...); }); };
  const std::vector<NDArray> roots{y}, ones_list{h};
  EXPECT_THAT(refused(roots, ones_list, NDArrays({h})), HasSubstr("input 0 is no leaf"));
  EXPECT_THAT(refused(roots, ones_list, NDArrays({x}), HalvesOptions{.create_graph = true}), HasSubstr("create_graph"));
  EXPECT_THAT(refused(roots, NDArrays({ones({3})}), NDArrays({x})), HasSubstr("a gradient of shape (3,)"));
  EXPECT_THAT(message_of([] { WeightGradients().run(); }), HasSubstr("nothing to run"));
  sum(y).backward();  // what was refused has left the tape as it was
}

TEST(BackwardInHalves, ErrorsNameTheLayerInBothHalves) {
  TestEngine test(2);
  const NDArray x = ones({2}).with_grad(), w = ones({2}).with_grad();
  NDArray y;
  std::uint32_t line = 0;
  {
    const LayerScope layer("second");
    line = std::source_location::current().line() + 1;
    y = x * (w * 3);
  }
  std::vector<OperationRecord> records[2];
  WeightGradients later;
  {
    const RecordScope scope;
    later = backward_inputs({y}, {ones({2})}, {x});
    records[0] = scope.records();
  }
  {
    const RecordScope scope;
    later.run();
    records[1] = scope.records();
  }
  for (const auto& half : records) {
    bool found = false;
    for (const OperationRecord& r : half) found = found || (std::string(r.layer) == "second" && r.where.line() == line);
    EXPECT_TRUE(found);
  }
}

TEST(BackwardInHalves, PoisonReachesTheGradientsOfItsHalf) {
  TestEngine test(2);
  const NDArray x = ones({2}).with_grad(), w = ones({2}).with_grad(), factor = ones({2}), other = ones({2});
  const NDArray t = w * other, y = (x * factor) * t;
  WeightGradients later = backward_inputs({y}, {ones({2})}, {x});
  EXPECT_EQ(floats(x.grad()), (Floats{1, 1}));
  poison(other);  // the tape has the value that was there
  later.run();
  EXPECT_EQ(floats(w.grad()), (Floats{1, 1}));

  const NDArray bad = ones({2});
  poison(bad);
  const NDArray z = x * (w * bad);
  x.set_grad(NDArray());
  w.set_grad(NDArray());
  WeightGradients spoilt = backward_inputs({z}, {ones({2})}, {x});
  EXPECT_THAT(message_of([&] { floats(x.grad()); }), HasSubstr("spoilt"));
  EXPECT_FALSE(w.grad().defined());
  spoilt.run();
  EXPECT_THAT(message_of([&] { floats(w.grad()); }), HasSubstr("spoilt"));
  EXPECT_THROW(test.engine.wait_all(), Error);
  test.engine.clear_errors();
}

}  // namespace
}  // namespace sluice::testing
