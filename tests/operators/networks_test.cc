// Operators of networks against loops in double, their state, and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

void expect_near(const NDArray& got, const std::vector<double>& wanted, double tolerance = 1e-12) {
  const std::vector<double> values = values_of(got);
  ASSERT_EQ(values.size(), wanted.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], wanted[i], tolerance) << i;
}

/// Each group of `size` elements that follow each other, normalised.
std::vector<double> normalised(std::vector<double> x, std::size_t size, double eps, bool centre = true) {
  for (std::size_t at = 0; at < x.size(); at += size) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < size; ++i) mean += centre ? x[at + i] / static_cast<double>(size) : 0;
    for (std::size_t i = 0; i < size; ++i)
      variance += (x[at + i] - mean) * (x[at + i] - mean) / static_cast<double>(size);
    for (std::size_t i = 0; i < size; ++i) x[at + i] = (x[at + i] - mean) / std::sqrt(variance + eps);
  }
  return x;
}

TEST(Networks, NormalisationsAreTheirFormulas) {
  const NDArray x = drawn({2, 6, 4}, 1);
  const std::vector<double> values = x.to_vector<double>();
  expect_near(layer_norm(x), normalised(values, 4, 1e-5));
  expect_near(layer_norm(x, {}, {}, {.axes = 2, .eps = 0.1}), normalised(values, 24, 0.1));
  expect_near(rms_norm(x), normalised(values, 4, 1e-6, false));
  expect_near(group_norm(x, 3), normalised(values, 8, 1e-5));
  expect_near(group_norm(x, 6), normalised(values, 4, 1e-5));
  const NDArray weight = drawn({4}, 2), bias = drawn({4}, 3);
  expect_near(layer_norm(x, weight, bias), values_of(layer_norm(x) * weight + bias));
  const NDArray w = drawn({6}, 2), b = drawn({6}, 3);
  expect_near(group_norm(x, 2, w, b), values_of(group_norm(x, 2) * w.reshape({6, 1}) + b.reshape({6, 1})));
  // Channels last, a batch normalisation is one of rows.
  const NDArray rows = x.permute({1, 0, 2}).reshape({6, 8});
  expect_near(batch_norm(x, {}).permute({1, 0, 2}), normalised(values_of(rows), 8, 1e-5));
  // Squares of these would not fit f16.
  const NDArray large = (drawn({3, 8}, 4) * 1000).to(DType::f16);
  expect_near(layer_norm(large), normalised(values_of(large), 8, 1e-5), 2e-3);
  EXPECT_EQ(layer_norm(large).dtype(), DType::f16);
  EXPECT_EQ(layer_norm(zeros({0, 3})).shape(), (Dims{0, 3}));
}

TEST(Networks, BitsOfNormalisationsDoNotDependOnThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      // Many short rows, and few of more than a block.
      for (const Dims& shape : {Dims{5000, 33}, Dims{40, 9001}}) {
        RandomStream stream(4);
        const NDArray x = uniform(shape, stream, -3, 5, DType::f32).to(dtype).with_grad();
        const NDArray weight = x(1).detach().with_grad(), bias = x(2).detach().with_grad();
        const NDArray y = layer_norm(x, weight, bias);
        sum(y * y).backward();
        for (const NDArray& of : {y, x.grad(), weight.grad(), bias.grad()}) bytes.push_back(of.to_bytes());
      }
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  EXPECT_TRUE(one == results(2));
  EXPECT_TRUE(one == results(4));
}

// f32 is as good as its statistics: a mean that is large beside the deviation.
TEST(Networks, LayerNormFarFromZeroIsNear) {
  const NDArray x = (drawn({3, 10000}, 7) + 1000).to(DType::f32);
  expect_near(layer_norm(x), normalised(values_of(x), 10000, 1e-5), 1e-4);
}

TEST(Networks, BatchNormKeepsRunningStatistics) {
  const NDArray mean = full({3}, 10.0), variance = full({3}, 2.0), x = drawn({4, 3, 5}, 5, DType::f32).with_grad();
  const NDArray y = batch_norm(x, {mean, variance}, {}, {}, {.momentum = 0.25});
  const std::vector<double> rows = values_of(x.permute({1, 0, 2}));
  for (std::size_t c = 0; c < 3; ++c) {
    double average = 0, spread = 0;
    for (std::size_t i = 0; i < 20; ++i) average += rows[c * 20 + i] / 20;
    for (std::size_t i = 0; i < 20; ++i) spread += (rows[c * 20 + i] - average) * (rows[c * 20 + i] - average) / 19;
    EXPECT_NEAR(values_of(mean)[c], 7.5 + 0.25 * average, 1e-5);
    EXPECT_NEAR(values_of(variance)[c], 1.5 + 0.25 * spread, 1e-5);
  }
  EXPECT_FALSE(mean.requires_grad());
  sum(square(y)).backward();
  const std::vector<float> before = mean.to_vector<float>();
  const NDArray z = batch_norm(x, {mean, variance}, {}, {}, {.training = false});
  EXPECT_EQ(mean.to_vector<float>(), before);
  expect_near(z, values_of((x - mean.reshape({3, 1})) / sqrt(variance.reshape({3, 1}) + 1e-5)), 1e-5);
}

TEST(Networks, DropoutIsTheSameInEveryDtypeAndInParts) {
  const auto dropped = [](const NDArray& x, double p, std::uint64_t first = 0) {
    RandomStream stream(8);
    return dropout(x, p, stream, {.first = first});
  };
  const std::vector<double> y = values_of(dropped(ones({10000}), 0.25));
  std::int64_t zeros_seen = 0;
  for (const double v : y) {
    EXPECT_TRUE(v == 0 || std::abs(v - 4.0 / 3) < 1e-6) << v;
    zeros_seen += v == 0;
  }
  EXPECT_NEAR(static_cast<double>(zeros_seen), 2500, 200);
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) {
    const std::vector<double> other = values_of(dropped(ones({10000}, dtype), 0.25));
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i] == 0, other[i] == 0) << i;
  }
  EXPECT_EQ(values_of(dropped(ones({4000}), 0.25, 6000)), std::vector<double>(y.begin() + 6000, y.end()));
  RandomStream stream(8);
  const NDArray x = full({3}, INFINITY);
  EXPECT_EQ(values_of(dropout(x, 1, stream)), std::vector<double>(3, 0));
  EXPECT_TRUE(dropout(x, 0.5, stream, {.training = false}).same_array(x));
  EXPECT_TRUE(dropout(x, 0, stream).same_array(x));
  EXPECT_EQ(stream.state().draw, 1U);
}

TEST(Networks, EmbeddingTakesIndicesOfAnyShape) {
  const NDArray weight = arange(10).reshape({5, 2}).to(DType::f32);
  const NDArray y = embedding(weight, from<std::int32_t>({4, 0, 1, 1}, {2, 2}));
  EXPECT_EQ(y.shape(), (Dims{2, 2, 2}));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{8, 9, 0, 1, 2, 3, 2, 3}));
  EXPECT_EQ(embedding(weight, full({}, 3, DType::i64)).to_vector<float>(), (std::vector<float>{6, 7}));
  EXPECT_EQ(embedding(weight, zeros({0, 3}, DType::i64)).shape(), (Dims{0, 3, 2}));
  EXPECT_THROW(embedding(weight, full({1}, 5, DType::i64)).wait(), Error);
}

TEST(Networks, RecurrentCellsAreTheirFormulas) {
  const auto s = [](double v) { return 1 / (1 + std::exp(-v)); };
  const auto one = [](double v) { return full({1, 1}, v, DType::f64); };
  const auto gates = [](std::vector<double> v) { return from(v, {static_cast<std::int64_t>(v.size()), 1}); };
  const LstmState next =
      lstm_cell(one(0.5), {one(-0.3), one(0.7)}, {gates({1, 2, -1, 0.5}), gates({0.2, -0.4, 0.6, 0.8})});
  const double c = s(1 - 0.3 * -0.4) * 0.7 + s(0.5 - 0.06) * std::tanh(-0.5 - 0.18);
  EXPECT_NEAR(next.cell.item<double>(), c, 1e-12);
  EXPECT_NEAR(next.hidden.item<double>(), s(0.25 - 0.24) * std::tanh(c), 1e-12);
  const NDArray h = gru_cell(one(0.5), one(-0.3), {gates({1, 2, -1}), gates({0.2, -0.4, 0.6})});
  const double r = s(0.5 - 0.06), z = s(1 + 0.12), n = std::tanh(-0.5 + r * -0.18);
  EXPECT_NEAR(h.item<double>(), (1 - z) * n + z * -0.3, 1e-12);
}

TEST(Networks, SequencesAreTheirSteps) {
  const NDArray x = drawn({3, 2, 4}, 1), h = drawn({2, 3}, 2), c = drawn({2, 3}, 3);
  const RecurrentWeights of_lstm{drawn({12, 4}, 4), drawn({12, 3}, 5), drawn({12}, 6), drawn({12}, 7)};
  const RecurrentWeights of_gru{drawn({9, 4}, 4), drawn({9, 3}, 5), drawn({9}, 6), drawn({9}, 7)};
  LstmState state{h, c};
  NDArray hidden = h;
  const LstmResult all_lstm = lstm(x, state, of_lstm);
  const GruResult all_gru = gru(x, hidden, of_gru);
  for (int t = 0; t < 3; ++t) {
    state = lstm_cell(x(t), state, of_lstm);
    hidden = gru_cell(x(t), hidden, of_gru);
    expect_near(all_lstm.outputs(t), values_of(state.hidden));
    expect_near(all_gru.outputs(t), values_of(hidden));
  }
  expect_near(all_lstm.state.cell, values_of(state.cell));
  expect_near(all_gru.hidden, values_of(hidden));
}

/// Gradients of LSTM's row beside those of its cells: of all that wants one, and of each alone.
TEST(Networks, TheGradientsOfAnLstmAreThoseOfItsCells) {
  struct Sizes {
    std::int64_t steps, n, in, size;
  };
  for (const auto& [steps, n, in, size] :
       {Sizes{4, 3, 2, 5}, {1, 2, 3, 1}, {3, 1, 1, 33}, {2, 0, 3, 2}, {2, 3, 2, 0}}) {
    for (int wanted = -1; wanted < 7; ++wanted) {
      SCOPED_TRACE(std::to_string(steps) + " " + std::to_string(n) + " " + std::to_string(size) + ": " +
                   std::to_string(wanted));
      std::vector<NDArray> x{drawn({steps, n, in}, 1), drawn({n, size}, 2),        drawn({n, size}, 3),
                             drawn({4 * size, in}, 4), drawn({4 * size, size}, 5), drawn({4 * size}, 6),
                             drawn({4 * size}, 7)};
      std::vector<NDArray> of;
      for (int i = 0; i < 7; ++i) {
        if (wanted >= 0 && wanted != i) continue;
        x[static_cast<std::size_t>(i)] = x[static_cast<std::size_t>(i)].with_grad();
        of.push_back(x[static_cast<std::size_t>(i)]);
      }
      const RecurrentWeights weights{x[3], x[4], x[5], x[6]};
      const LstmResult row = lstm(x[0], {x[1], x[2]}, weights);
      LstmState state{x[1], x[2]};
      std::vector<NDArray> outputs;
      for (std::int64_t t = 0; t < steps; ++t) outputs.push_back((state = lstm_cell(x[0](t), state, weights)).hidden);
      const auto loss = [&](const NDArray& all, const LstmState& last) {
        return sum(all * drawn({steps, n, size}, 8)) + sum(last.hidden * drawn({n, size}, 9)) +
               sum(last.cell * drawn({n, size}, 10));
      };
      const std::vector<NDArray> a = grad(loss(row.outputs, row.state), of), b = grad(loss(stack(outputs), state), of);
      for (std::size_t i = 0; i < of.size(); ++i) expect_near(a[i], values_of(b[i]));
      // The state is an array of its own.
      const NDArray before = row.outputs.detach().copy();
      const NoGrad off;
      LstmResult plain = lstm(x[0], {x[1], x[2]}, weights);
      plain.state.hidden.fill(7.0);
      expect_near(plain.outputs, values_of(before));
    }
  }
}

/// The same of GRU's row, with both biases, with either and without, and of second order.
TEST(Networks, TheGradientsOfAGruAreThoseOfItsCells) {
  struct Sizes {
    std::int64_t steps, n, in, size;
  };
  for (const auto& [steps, n, in, size] :
       {Sizes{4, 3, 2, 5}, {1, 2, 3, 1}, {3, 1, 1, 33}, {2, 0, 3, 2}, {2, 3, 2, 0}}) {
    for (int biases = 0; biases < 4; ++biases) {
      for (int wanted = -1; wanted < 6; ++wanted) {
        if ((wanted == 4 && !(biases & 1)) || (wanted == 5 && !(biases & 2))) continue;
        SCOPED_TRACE(std::to_string(steps) + " " + std::to_string(n) + " " + std::to_string(size) + ": " +
                     std::to_string(biases) + " " + std::to_string(wanted));
        std::vector<NDArray> x{drawn({steps, n, in}, 1),   drawn({n, size}, 2),  drawn({3 * size, in}, 3),
                               drawn({3 * size, size}, 4), drawn({3 * size}, 5), drawn({3 * size}, 6)};
        std::vector<NDArray> of;
        for (std::size_t i = 0; i < 6; ++i) {
          const bool there = i < 4 || biases & (i == 4 ? 1 : 2);
          if (!there) x[i] = NDArray();
          if (!there || (wanted >= 0 && wanted != static_cast<int>(i))) continue;
          of.push_back(x[i] = x[i].with_grad());
        }
        const RecurrentWeights weights{x[2], x[3], x[4], x[5]};
        const GruResult row = gru(x[0], x[1], weights);
        NDArray hidden = x[1];
        std::vector<NDArray> outputs;
        for (std::int64_t t = 0; t < steps; ++t) outputs.push_back(hidden = gru_cell(x[0](t), hidden, weights));
        expect_near(row.outputs, values_of(stack(outputs)));
        const auto gradients = [&](const NDArray& all, const NDArray& last) {
          const NDArray loss = sum(all * all * drawn({steps, n, size}, 7)) + sum(last * drawn({n, size}, 8));
          std::vector<NDArray> both = grad(loss, of, {.create_graph = true});
          NDArray squares = sum(square(both[0]));
          for (std::size_t i = 1; i < of.size(); ++i) squares = squares + sum(square(both[i]));
          for (const std::vector<NDArray>& more : {grad(loss, of, {.retain = true}), grad(squares, of)}) {
            both.insert(both.end(), more.begin(), more.end());
          }
          return both;
        };
        const std::vector<NDArray> a = gradients(row.outputs, row.hidden), b = gradients(stack(outputs), hidden);
        // The second derivatives, which come last, go up to 1e5.
        for (std::size_t i = 0; i < a.size(); ++i) {
          expect_near(a[i], values_of(b[i]), i < 2 * of.size() ? 1e-11 : 1e-8);
        }
      }
    }
  }
}

/// The state is an array of its own.
TEST(Networks, TheStateOfAGruIsNoViewOfItsOutputs) {
  GruResult y = gru(drawn({3, 2, 4}, 1), drawn({2, 5}, 2), {drawn({15, 4}, 3), drawn({15, 5}, 4)});
  const NDArray before = y.outputs.copy();
  y.hidden.fill(7.0);
  expect_near(y.outputs, values_of(before));
}

/// In f32 the weight of larger ones is packed once for all steps; in f64 it is not.
template <class Net>
void expect_float_is_double(const std::vector<NDArray>& drawn_in_double, const Net& net) {
  const auto all_of = [&](DType dtype) {
    std::vector<NDArray> x;
    for (const NDArray& of : drawn_in_double) x.push_back(of.to(DType::f32).to(dtype).with_grad());
    std::vector<NDArray> all = net(x);
    for (const NDArray& g : grad(sum(all[0] * all[0]) + sum(all[1]), x)) all.push_back(g);
    return all;
  };
  const std::vector<NDArray> in_float = all_of(DType::f32), in_double = all_of(DType::f64);
  for (std::size_t i = 0; i < in_float.size(); ++i) {
    const double scale = max(abs(in_double[i])).item<double>();
    const double off = max(abs(in_float[i].to(DType::f64) - in_double[i])).item<double>();
    EXPECT_LE(off, 1e-5 * scale) << i;
  }
}

TEST(Networks, ALargerLstmInFloatIsThatInDouble) {
  for (const std::int64_t n : {5, 17}) {
    SCOPED_TRACE(n);
    const std::int64_t steps = 6, in = 3, size = n == 5 ? 70 : 64;
    expect_float_is_double(
        {drawn({steps, n, in}, 1), drawn({n, size}, 2), drawn({n, size}, 3), drawn({4 * size, in}, 4),
         drawn({4 * size, size}, 5) * 0.1, drawn({4 * size}, 6), drawn({4 * size}, 7)},
        [](const std::vector<NDArray>& x) {
          const LstmResult row = lstm(x[0], {x[1], x[2]}, {x[3], x[4], x[5], x[6]});
          return std::vector<NDArray>{row.outputs, row.state.cell};
        });
  }
}

TEST(Networks, ALargerGruInFloatIsThatInDouble) {
  for (const std::int64_t n : {5, 17}) {
    SCOPED_TRACE(n);
    const std::int64_t steps = 6, in = 3, size = n == 5 ? 70 : 64;
    expect_float_is_double({drawn({steps, n, in}, 1), drawn({n, size}, 2), drawn({3 * size, in}, 3),
                            drawn({3 * size, size}, 4) * 0.1, drawn({3 * size}, 5), drawn({3 * size}, 6)},
                           [](const std::vector<NDArray>& x) {
                             const GruResult row = gru(x[0], x[1], {x[2], x[3], x[4], x[5]});
                             return std::vector<NDArray>{row.outputs, row.hidden};
                           });
  }
}

TEST(Networks, BitsOfAGruDoNotDependOnThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::int64_t steps = 5, n = 67, size = 70;
      std::vector<NDArray> x{drawn({steps, n, 3}, 1),          drawn({n, size}, 2),  drawn({3 * size, 3}, 3),
                             drawn({3 * size, size}, 4) * 0.1, drawn({3 * size}, 5), drawn({3 * size}, 6)};
      for (NDArray& of : x) of = of.to(dtype).with_grad();
      const NDArray y = gru(x[0], x[1], {x[2], x[3], x[4], x[5]}).outputs;
      bytes.push_back(y.to_bytes());
      for (const NDArray& of : grad(sum(y * y), x)) bytes.push_back(of.to_bytes());
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  EXPECT_TRUE(one == results(2));
  EXPECT_TRUE(one == results(4));
}

TEST(Networks, RotaryEmbeddingTurnsPairs) {
  const NDArray x = drawn({2, 3, 4}, 1);
  const std::vector<double> in = x.to_vector<double>();
  for (const bool interleaved : {false, true}) {
    std::vector<double> wanted(in.size());
    for (std::size_t row = 0; row < 6; ++row) {
      for (std::size_t i = 0; i < 2; ++i) {
        const double angle = static_cast<double>(5 + row % 3) * std::pow(100.0, -static_cast<double>(i) / 2);
        const std::size_t a = row * 4 + (interleaved ? 2 * i : i), b = row * 4 + (interleaved ? 2 * i + 1 : i + 2);
        wanted[a] = in[a] * std::cos(angle) - in[b] * std::sin(angle);
        wanted[b] = in[a] * std::sin(angle) + in[b] * std::cos(angle);
      }
    }
    expect_near(rotary_embedding(x, {.base = 100, .first = 5, .interleaved = interleaved}), wanted);
  }
}

TEST(Networks, ErrorsAreOneLine) {
  const NDArray x = zeros({2, 3});
  RandomStream stream(1);
  EXPECT_THAT(
      message([&] { layer_norm(x, zeros({2})); }),
      ::testing::MatchesRegex("\\[layer_norm\\] networks_test.cc:[0-9]+: weight has shape \\(2,\\), not \\(3,\\)"));
  EXPECT_THAT(message([&] { layer_norm(x, {}, {}, {.axes = 3}); }), HasSubstr("has no 3 axes to normalise"));
  EXPECT_THAT(message([&] { rms_norm(x.to(DType::i32)); }), HasSubstr("needs a floating dtype"));
  EXPECT_THAT(message([&] { group_norm(x, 2); }), HasSubstr("channels for 2 groups"));
  EXPECT_THAT(message([&] { batch_norm(zeros({1, 3}), {}); }), HasSubstr("fewer than two elements"));
  EXPECT_THAT(message([&] { batch_norm(x, {}, {}, {}, {.training = false}); }), HasSubstr("needs running statistics"));
  EXPECT_THAT(message([&] { batch_norm(x, {zeros({3}), {}}); }), HasSubstr("both running statistics"));
  EXPECT_THAT(message([&] { dropout(x, 1.5, stream); }), HasSubstr("p must be from 0 to 1"));
  EXPECT_THAT(message([&] { embedding(x, zeros({2})); }), HasSubstr("rows are i64"));
  EXPECT_THAT(message([&] {
                lstm_cell(x, {zeros({2, 2}), zeros({2, 2})}, {zeros({8, 4}), zeros({8, 2})});
              }),
              HasSubstr("the input weight is (8, 4), not (8, 3)"));
  EXPECT_THAT(message([&] {
                gru(x, zeros({2, 2}), {zeros({6, 3}), zeros({6, 2})});
              }),
              HasSubstr("x is (steps, n, in)"));
  EXPECT_THAT(message([&] { rotary_embedding(x); }), HasSubstr("an even size"));
}

}  // namespace
}  // namespace sluice::testing
