// Operator::compose: rows that are made of others where no kernel takes the call.
#include "sluice/operators/compose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "operators_test_support.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/normalize_rows.h"
#include "sluice/sluice.h"
#include "sluice/tests/support/devices.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

std::vector<double> doubles(const NDArray& x) { return x.to(cpu(0)).to(DType::f64).to_vector<double>(); }

double largest_difference(const NDArray& a, const NDArray& b) {
  EXPECT_EQ(a.shape(), b.shape());
  const std::vector<double> x = doubles(a), y = doubles(b);
  double most = 0, scale = 1e-30;
  for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
    most = std::max(most, std::abs(x[i] - y[i]));
    scale = std::max(scale, std::abs(y[i]));
  }
  return most / scale;
}

NDArray drawn(const Dims& shape, std::uint64_t seed, DType dtype = DType::f64) {
  RandomStream stream(seed);
  return uniform(shape, stream, -1, 1, DType::f64).to(dtype);
}

/// A row without kernels: 2 a + b, whose gradient says that it is the row's own (it is 10 times too large for a). The
/// last call's inputs are kept, to see what it is given.
const Operator& twice() {
  static const Operator& row = add_operator("test_composed_twice", [](Operator& op) {
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.same_dtypes();
      s.floating();
      if (!(s.shape(0) == s.shape(1))) s.fail("two shapes");
      s.output(s.shape(0), s.dtype());
    };
    op.compose = [](ComposeContext& c) { c.set(0, c.input(0) * 2 + c.input(1)); };
    op.gradient = [](GradientContext& c) {
      if (c.wanted(0)) c.set(0, c.gradient() * 20);
      if (c.wanted(1)) c.set(1, c.gradient() * 1);
    };
  });
  return row;
}
NDArray call(const NDArray& a, const NDArray& b) { return apply(twice(), {&a, &b}); }

struct Names final : Interpreter {
  void apply(Call& call, Next next) override {
    counts[std::string(call.name())] += 1;
    next(call);
  }
  std::map<std::string, int> counts;
};

TEST(Compose, OneNodeWithTheRowsOwnGradient) {
  const auto names = std::make_shared<Names>();
  const NDArray a = drawn({3, 4}, 1).with_grad(), b = drawn({3, 4}, 2).with_grad();
  NDArray y;
  {
    const InterpreterScope seen(names);
    y = call(a * 1, b);
  }
  EXPECT_EQ(names->counts, (std::map<std::string, int>{{"mul_scalar", 1}, {"test_composed_twice", 1}}));
  EXPECT_EQ(largest_difference(y, a.detach() * 2 + b.detach()), 0);
  sum(y * y).backward();
  EXPECT_LE(largest_difference(a.grad(), y.detach() * 40), 1e-15);
  EXPECT_LE(largest_difference(b.grad(), y.detach() * 2), 1e-15);
}

TEST(Compose, ValuesAreThoseOfTheCall) {
  NDArray a = ones({5});
  const NDArray b = ones({5});
  NDArray y = call(a, b);
  a += 1;
  const NDArray z = call(a, a);
  a += 1;
  EXPECT_EQ(doubles(y), std::vector<double>(5, 3));
  EXPECT_EQ(doubles(z), std::vector<double>(5, 6));
  // The result is an array of its own.
  y += 1;
  EXPECT_EQ(doubles(b), std::vector<double>(5, 1));
}

TEST(Compose, InPlaceItIsComputedApartAndCopied) {
  const NDArray x = drawn({4, 4}, 3), before = x.copy();
  // The target is a part of an input, and turned.
  const NDArray target = x.narrow(0, 0, 2), in = x.transpose().narrow(0, 1, 3);
  const NDArray wanted = in.copy() * 2 + in.copy();
  apply_into(twice(), {&in, &in}, {}, {.into = std::span(&target, 1)});
  EXPECT_EQ(largest_difference(x.narrow(0, 0, 2), wanted), 0);
  EXPECT_EQ(largest_difference(x.narrow(0, 2, 4), before.narrow(0, 2, 4)), 0);
  // With gradients, into a part of an array that has some.
  const NDArray a = drawn({2, 4}, 5).with_grad(), w = drawn({4, 4}, 4).with_grad(), y = w * 3, part = y.narrow(0, 1, 3);
  apply_into(twice(), {&a, &a}, {}, {.into = std::span(&part, 1)});
  sum(y).backward();
  EXPECT_EQ(doubles(a.grad()), std::vector<double>(8, 21));
  EXPECT_EQ(doubles(w.grad()), (std::vector<double>{3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3}));
}

TEST(Compose, InCheckpointsAndWithoutRunning) {
  const NDArray a = drawn({3, 4}, 1), b = drawn({3, 4}, 2);
  const auto gradients = [&](bool again) {
    const NDArray x = a.detach().with_grad(), w = b.detach().with_grad();
    const auto f = [&](const NDArray& in) {
      NDArray y = call(in * 3, w);
      y += call(y, w);
      return y * y;
    };
    sum(again ? checkpoint(f, x) : f(x)).backward();
    return std::vector<NDArray>{x.grad(), w.grad()};
  };
  const std::vector<NDArray> plain = gradients(false), again = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].to_bytes() == again[i].to_bytes());
  const Shapes shapes = shapes_of([&] { return call(a, b); });
  ASSERT_EQ(shapes.results.size(), 1U);
  EXPECT_EQ(shapes.results[0].shape, (Dims{3, 4}));
}

/// A writer adds 1 to `a` and then to `b`, in one order: so at each instant `a` is `b`, or 1 more.
TEST(Compose, OperandsAreThoseOfOneInstant) {
  NDArray a = zeros({100}), b = zeros({100});
  std::vector<NDArray> results;
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) {
      a += 1;
      b += 1;
    }
  });
  for (int i = 0; i < 300; ++i) results.push_back(call(b, a));
  writer.join();
  for (const NDArray& y : results) {
    const std::vector<double> values = doubles(y);
    EXPECT_LE(std::fmod(values[0], 3), 1) << values[0];  // 3 b, or 3 b + 1
    EXPECT_EQ(values, std::vector<double>(100, values[0]));
  }
}

TEST(Compose, WhatUpdatesItsTargetIsRefused) {
  const NDArray a = ones({3}), y = ones({3});
  EXPECT_THROW(apply_into(twice(), {&a, &a}, {}, {.into = std::span(&y, 1), .updates = Updates::all()}), ArrayError);
  EXPECT_EQ(doubles(y), std::vector<double>(3, 1));
}

TEST(Compose, ErrorsNameTheRow) {
  const NDArray a = ones({3}), b = ones({4});
  try {
    call(a, b);
    FAIL();
  } catch (const ArrayError& e) {
    EXPECT_THAT(e.what(), HasSubstr("[test_composed_twice]"));
    EXPECT_THAT(e.what(), HasSubstr("two shapes"));
  }
  static const Operator& wrong = add_operator("test_composed_wrong", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.compose = [](ComposeContext& c) { c.set(0, sum(c.input(0))); };
  });
  try {
    apply(wrong, {&a});
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr("[test_composed_wrong] its composition gives"));
  }
  static const Operator& throws = add_operator("test_composed_throws", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.compose = [](ComposeContext& c) { c.set(0, c.input(0).reshape({77})); };
  });
  try {
    apply(throws, {&a});
    FAIL();
  } catch (const ArrayError& e) {
    EXPECT_THAT(e.what(), HasSubstr("[test_composed_throws]"));
  }
  // A failing operation inside is the failure of the result, and of what reads it.
  static const Operator& poison = add_operator("test_composed_poison", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.compose = [](ComposeContext& c) {
      c.set(0, take_rows(c.input(0), full({c.input(0).shape()[0]}, 1000, DType::i64)));
    };
  });
  const NDArray y = apply(poison, {&a});
  EXPECT_THROW(y.wait(), Error);
  EXPECT_EQ(doubles(a), std::vector<double>(3, 1));
}

TEST(Compose, IsSaidOnce) {
  static int time = 0;
  if (++time > 1) GTEST_SKIP() << "once in a process";
  if (detail::composing() == detail::Composing::always) GTEST_SKIP() << "there are no kernels";
  const auto row_called = [](const char* name) -> const Operator& {
    return add_operator(name, [](Operator& op) {
      op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
      op.compose = [](ComposeContext& c) { c.set(0, c.input(0) + 1); };
    });
  };
  const auto said_by = [](const Operator& row, const NDArray& x) {
    ::testing::internal::CaptureStderr();
    apply(row, {&x}).wait();
    return ::testing::internal::GetCapturedStderr();
  };
  static const Operator& row = row_called("test_composed_said");
  row.add_kernel(Backend{"test", DeviceKind::cpu, 1}, {DType::f64}, Kernel{.run = [](ArrayContext&) {}});
  const auto said = [&](const NDArray& x) { return said_by(row, x); };
  EXPECT_EQ(said(ones({2})),
            "sluice: [test_composed_said] has no kernel for f32 on cpu(0): it is made of other operators "
            "(SLUICE_COMPOSE=0: such calls throw)\n");
  EXPECT_EQ(said(ones({3})), "");
  EXPECT_THAT(said(ones({3}, DType::f16)), HasSubstr("for f16 on"));
  EXPECT_EQ(said(ones({3}, DType::f16)), "");
  // One that never had a kernel is meant to be made of others.
  static const Operator& without = row_called("test_composed_alone");
  EXPECT_EQ(said_by(without, ones({2})), "");
}

/// Calls of each row that can be composed, by name, with inputs of a dtype.
struct RowCall {
  std::vector<NDArray> inputs;
  Attributes attributes = {};
};
std::map<std::string, std::vector<RowCall>> calls_of(DType dtype) {
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  std::uint64_t seed = 0;
  const auto a = [&](const Dims& shape) { return drawn(shape, ++seed, dtype); };
  std::map<std::string, std::vector<RowCall>> list;
  list["dropout"] = {{{a({5, 7})}, DropoutAttributes{7, 8, 9, 3, 0.4}},
                     {{a({4, 3})}, DropoutAttributes{7, 8, 9, 3, 0.4, 3, 11}}};
  const BatchNormAttributes norm{1e-5};
  const auto statistics = [&](const NDArray& x) {
    return apply_all(Registry::instance().get("batch_norm"), std::array{&x}, norm, {})[1];
  };
  for (const Dims& shape : {Dims{4, 3}, Dims{2, 3, 5}, Dims{3, 3, 2, 4}}) {
    const NDArray x = a(shape), g = a(shape), w = a({3}), b = a({3});
    for (int n = 1; n <= 3; ++n) {
      RowCall one{{x}, norm};
      if (n > 1) one.inputs.push_back(w);
      if (n > 2) one.inputs.push_back(b);
      list["batch_norm"].push_back(one);
    }
    const NDArray s = statistics(x).to(wide);
    list["batch_norm_grad"].push_back({{x, s, g}, norm});
    list["batch_norm_grad"].push_back({{x, s, g, w}, norm});
  }
  list["linear_rows"].push_back({{a({2, 3, 4}), a({5, 4})}});
  list["linear_rows"].push_back({{a({2, 3, 4}), a({5, 4}), a({5})}});
  list["linear_rows_weight"].push_back({{a({2, 3, 5}), a({2, 3, 4})}});
  for (const std::int64_t steps : {1, 4}) {
    list["lstm"].push_back({{a({steps, 3, 8}), a({3, 2}), a({3, 2}), a({8, 2})}});
    list["lstm_grad"].push_back(
        {{a({steps, 3, 2}), a({steps, 3, 2}), a({steps, 3, 8}), a({steps, 3, 2}), a({3, 2}), a({8, 2})}});
    list["lstm_grad"].push_back(list["lstm_grad"].back());
    list["lstm_grad"].back().inputs.push_back(a({steps, 3, 8}));
    for (const bool bias : {false, true}) {
      list["gru"].push_back({{a({steps, 3, 6}), a({3, 2}), a({6, 2})}});
      if (bias) list["gru"].back().inputs.push_back(a({6}));
    }
    list["gru_grad"].push_back({{a({steps, 3, 2}), a({steps, 3, 8}), a({steps, 3, 2}), a({3, 2}), a({6, 2})}});
    list["gru_grad"].push_back(list["gru_grad"].back());
    list["gru_grad"].back().inputs.push_back(a({steps, 3, 8}));
  }
  return list;
}
std::vector<const NDArray*> pointers(const std::vector<NDArray>& list) {
  std::vector<const NDArray*> result;
  for (const NDArray& x : list) result.push_back(&x);
  return result;
}

/// The composition is what the kernels of the CPU and of the reference compute.
TEST(Compose, EveryRowIsWhatItsKernelsCompute) {
  if (detail::composing() == detail::Composing::always) GTEST_SKIP() << "there are no kernels";
  for (const DType dtype : {DType::f32, DType::f64}) {
    auto calls = calls_of(dtype);
    for (const Operator* row : Registry::instance().all()) {
      if (!row->compose || std::string_view(row->name).starts_with("test_")) continue;
      ASSERT_FALSE(calls[row->name].empty()) << row->name << " has no call here";
      for (const RowCall& c : calls[row->name]) {
        for (const bool recorded : {true, false}) {
          const auto make = [&] {
            return builtin::composed(*row, pointers(c.inputs), c.attributes, std::source_location::current());
          };
          const std::vector<NDArray> made = recorded ? make() : [&] {
            const NoGrad none;
            return make();
          }();
          for (const int rank : {0, Operator::kAnyRank}) {
            const KernelRankLimit limit(rank);
            const std::vector<NDArray> wanted = apply_all(*row, pointers(c.inputs), c.attributes, {});
            ASSERT_EQ(made.size(), wanted.size());
            for (std::size_t i = 0; i < made.size(); ++i) {
              EXPECT_LE(largest_difference(made[i], wanted[i]), dtype == DType::f64 ? 1e-13 : 4e-6)
                  << row->name << ", output " << i << " of " << c.inputs.size() << " inputs";
              if (std::string_view(row->name) == "dropout") {
                EXPECT_TRUE(made[i].to_bytes() == wanted[i].to_bytes());
              }
            }
          }
        }
      }
    }
  }
}

/// f16 and bf16, for which none of them but dropout has a kernel, by the way of a user: within their roundings of f64.
TEST(Compose, HalvesOfRowsWithoutKernelsForThem) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const double rounding = half == DType::f16 ? 0x1p-11 : 0x1p-8;
    for (const auto& [name, list] : calls_of(half)) {
      const Operator& row = Registry::instance().get(name);
      for (const RowCall& c : list) {
        std::vector<NDArray> exact;
        for (const NDArray& x : c.inputs) exact.push_back(x.to(DType::f64));
        const std::vector<NDArray> y = apply_all(row, pointers(c.inputs), c.attributes, {}),
                                   wanted = apply_all(row, pointers(exact), c.attributes, {});
        for (std::size_t i = 0; i < y.size(); ++i) {
          EXPECT_LE(largest_difference(y[i], wanted[i]), 24 * rounding) << name << ", output " << i;
        }
      }
    }
    // A layer whole, forward and back.
    const auto train = [&](DType dtype) {
      const auto leaf = [&](const Dims& shape, std::uint64_t seed) {
        return drawn(shape, seed, half).to(dtype).with_grad();
      };
      const NDArray x = leaf({4, 3, 5}, 1), h = leaf({3, 2}, 2), c = leaf({3, 2}, 3);
      const RecurrentWeights w{leaf({8, 5}, 4), leaf({8, 2}, 5), leaf({8}, 6), leaf({8}, 7)},
          v{leaf({6, 2}, 8), leaf({6, 2}, 9), leaf({6}, 10), leaf({6}, 11)};
      const NDArray y = gru(lstm(x, {h, c}, w).outputs, h, v).outputs;
      sum(y * y).backward();
      std::vector<NDArray> all{y.detach()};
      for (const NDArray* p : {&x, &h, &c, &w.input, &w.hidden, &w.input_bias, &w.hidden_bias, &v.input, &v.hidden}) {
        all.push_back(p->grad());
      }
      return all;
    };
    const std::vector<NDArray> got = train(half), exact = train(DType::f64);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].dtype(), half);
      EXPECT_LE(largest_difference(got[i], exact[i]), 40 * rounding) << i;
    }
  }
}

/// Arrays on a mesh, where the row has no rule for places: the same numbers as of the whole.
TEST(Compose, OnAMeshWhereTheRowHasNoRule) {
  Engine engine({.mode_given = true, .logical_cpus = 2});
  set_default_engine(&engine);
  {
    const Mesh mesh({{"dp", 2}});
    const NDArray a = drawn({4, 3}, 1), b = drawn({4, 3}, 2);
    const NDArray x = place(a, mesh, {{"dp", shard(0)}}).with_grad(), w = place(b, mesh, {{"dp", shard(0)}});
    const NDArray y = call(x, w);
    EXPECT_EQ(to_string(layout_of(y)), to_string(layout_of(x)));
    EXPECT_EQ(largest_difference(whole(y), a * 2 + b), 0);
    sum(y).backward();
    EXPECT_EQ(doubles(whole(x.grad())), std::vector<double>(12, 20));
    // Of the library's: an LSTM whose batch is cut.
    const NDArray gates = drawn({3, 4, 8}, 3), h = drawn({4, 2}, 4), c = drawn({4, 2}, 5), weight = drawn({8, 2}, 6);
    const Operator& row = Registry::instance().get("lstm");
    const std::array plain{&gates, &h, &c, &weight};
    const std::vector<NDArray> wanted = apply_all(row, plain, {}, {});
    const std::vector<NDArray> placed{place(gates, mesh, {{"dp", shard(1)}}), place(h, mesh, {{"dp", shard(0)}}),
                                      place(c, mesh, {{"dp", shard(0)}}), place(weight, mesh, {})};
    const std::vector<NDArray> made = apply_all(row, pointers(placed), {}, {});
    for (std::size_t i = 0; i < made.size(); ++i) EXPECT_LE(largest_difference(whole(made[i]), wanted[i]), 1e-14) << i;
    engine.wait_all();
  }
  set_default_engine(nullptr);
}

}  // namespace
}  // namespace sluice::testing
