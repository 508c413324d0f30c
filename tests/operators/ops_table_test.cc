// Every operator: CPU kernels against the reference, gradients against finite differences, gradients of gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops_table.h"
#include "sluice/operators/attributes.h"

namespace sluice::testing {
namespace {

void expect_close(const NDArray& a, const NDArray& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  const std::vector<double> x = values_of(a), y = values_of(b);
  double largest = 1e-30;
  for (double v : y) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(std::abs(x[i] - y[i]), tolerance * largest)
        << what << ", element " << i << ": " << x[i] << " and " << y[i];
  }
}

/// A fixed array to weigh results with, so that a sum of them depends on each.
NDArray weights_like(const NDArray& y) {
  RandomStream stream(99);
  return uniform(y.shape(), stream, 0.5, 1.5, DType::f64).to(y.dtype());
}

Arrays with_gradients(Arrays inputs) {
  for (NDArray& x : inputs) x = x.with_grad();
  return inputs;
}

class Operators : public ::testing::TestWithParam<OperatorCase> {};

TEST_P(Operators, CpuForwardAndBackwardEqualTheReference) {
  const OperatorCase& c = GetParam();
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f32 ? c.tolerance : 1e-12;
    const auto run = [&] {
      Arrays inputs = with_gradients(make_inputs(c, dtype));
      const NDArray y = c.call(inputs);
      Arrays results{y.detach()};
      if (c.gradient) {
        sum(y * weights_like(y)).backward();
        for (const NDArray& x : inputs) results.push_back(x.grad());
      }
      return results;
    };
    const Arrays fast = run();
    Arrays plain;
    {
      const KernelRankLimit reference_only(0);
      plain = run();
    }
    for (std::size_t i = 0; i < fast.size(); ++i) {
      expect_close(
          fast[i], plain[i], tolerance,
          c.name + (i == 0 ? ", result" : ", gradient " + std::to_string(i - 1)) + ", " + std::string(name_of(dtype)));
    }
  }
}

TEST_P(Operators, AnyDeviceHasTheBitsOfTheReferenceOnTheCpu) {
  const OperatorCase& c = GetParam();
  const KernelRankLimit reference_only(0);
  for (DType dtype : {DType::f32, DType::f64}) {
    const auto run = [&](Device device) {
      const DeviceScope scope(device);
      Arrays inputs = with_gradients(make_inputs(c, dtype));
      const NDArray y = c.call(inputs);
      std::vector<std::vector<std::byte>> results{y.to_bytes()};
      if (!c.gradient) return results;
      sum(y * weights_like(y)).backward();
      for (const NDArray& x : inputs) results.push_back(x.grad().to_bytes());
      return results;
    };
    EXPECT_TRUE(run(test::device()) == run(cpu(0))) << c.name << ", " << name_of(dtype);
  }
}

/// The gradients of the sum of f's elements, against central differences. These are taken element by element and then
/// added: the rounding errors of a sum of thousands would be larger than what a step changes in it.
void check_gradients(const OperatorCase& c, const std::function<NDArray(const Arrays&)>& f, const std::string& what) {
  Arrays inputs = with_gradients(make_inputs(c, DType::f64));
  const Arrays gradients = grad(sum(f(inputs)), inputs);
  constexpr double step = 1e-5;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const std::vector<double> start = inputs[k].to_vector<double>();
    const std::vector<double> found =
        gradients[k].defined() ? gradients[k].to_vector<double>() : std::vector<double>(start.size(), 0.0);
    for (std::size_t i = 0; i < start.size(); i += 1 + start.size() / 12) {
      const auto at = [&](double offset) {
        std::vector<double> moved = start;
        moved[i] += offset;
        Arrays trial = make_inputs(c, DType::f64);
        trial[k] = from(moved, inputs[k].shape());
        for (NDArray& x : trial) x = x.with_grad();  // f may ask for gradients itself
        return f(trial);
      };
      const double expected = sum(at(step) - at(-step)).item<double>() / (2 * step);
      ASSERT_NEAR(found[i], expected, 2e-6 * std::max(1.0, std::abs(expected)))
          << what << ", input " << k << ", element " << i;
    }
  }
}

TEST_P(Operators, GradientsEqualFiniteDifferences) {
  const OperatorCase& c = GetParam();
  if (!c.gradient) return;
  check_gradients(
      c,
      [&](const Arrays& x) {
        const NDArray y = c.call(x);
        return y * weights_like(y);
      },
      c.name);
}

TEST_P(Operators, GradientsOfGradientsEqualFiniteDifferences) {
  const OperatorCase& c = GetParam();
  if (!c.gradient) return;
  if (!c.second_order) {
    Arrays inputs = with_gradients(make_inputs(c, DType::f64));
    EXPECT_THROW(grad(sum(c.call(inputs)), inputs, {.create_graph = true}), ArrayError);
    return;
  }
  check_gradients(
      c,
      [&](const Arrays& x) {
        const NDArray y = c.call(x);
        const Arrays first = grad(sum(y * weights_like(y)), x, {.create_graph = true});
        NDArray total = sum(x[0]) * 0;
        for (const NDArray& g : first) total = total + sum(g * weights_like(g));
        return total;
      },
      c.name + ", second order");
}

/// Operators that a gradient is made of, and those of its own gradient, name the program's line, not the library's.
TEST_P(Operators, GradientsNameTheLineOfTheForwardCall) {
  const OperatorCase& c = GetParam();
  if (!c.gradient) return;
  const Arrays inputs = with_gradients(make_inputs(c, DType::f64));
  Engine& engine = default_engine();
  engine.wait_all();
  engine.start_trace();
  {
    const NDArray y = c.call(inputs);
    const Arrays first = c.gradient ? grad(sum(y), inputs, {.create_graph = c.second_order, .retain = true}) : Arrays();
    if (c.second_order) {
      for (const NDArray& g : first) {
        if (g.defined() && g.requires_grad()) grad(sum(g), inputs, {.retain = true});
      }
    }
  }
  engine.wait_all();
  for (const TraceEvent& event : engine.stop_trace()) {
    const std::string_view file = event.file;
    EXPECT_TRUE(file.find("tests/operators/ops_table") != file.npos)  // and the headers of its families
        << event.name << " names " << file << ":" << event.line;
  }
}

std::string test_name(const ::testing::TestParamInfo<OperatorCase>& test) {
  std::string name = std::to_string(test.index) + "_" + test.param.name;
  for (char& ch : name) {
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, Operators, ::testing::ValuesIn(operator_cases()), test_name);

// What is dispatched for each operator and dtype that the reference knows must be another kernel, where the dtype is
// one that kernels compute in; f16 and bf16 may fall back to the reference.
TEST(Registry, DispatchedKernelsAreNotTheReference) {
  int checked = 0, fallbacks = 0;
  for (const Operator* row : Registry::instance().all()) {
    if (std::string_view(row->name).starts_with("test_")) continue;
    if (std::string_view(row->name) == "gate") continue;  // it writes one byte
    int known = 0;
    for (int t = 0; t < kDTypeCount; ++t) {
      const DType dtype = static_cast<DType>(t);
      const Kernel* reference = row->kernel(DeviceKind::cpu, dtype, 0);
      if (!reference) continue;
      ++known;
      EXPECT_STREQ(reference->backend.name, "reference") << row->name;
      const Kernel* best = row->kernel(DeviceKind::cpu, dtype);
      if (best == reference && has_arithmetic(dtype) && (!computes_in_itself(dtype) || !has_sums(dtype))) {
        ++fallbacks;
        continue;
      }
      EXPECT_STRNE(best->backend.name, "reference") << row->name << " " << name_of(dtype);
      EXPECT_NE(best->run, reference->run) << row->name << " " << name_of(dtype);
      ++checked;
    }
    EXPECT_TRUE(known > 0 || row->compose) << row->name << " has no reference kernel, and is not made of others";
  }
  EXPECT_GT(checked, 150);
  EXPECT_GT(fallbacks, 100);
}

// Without gradients.
TEST(Operators, OptimizerStepsEqualTheReference) {
  const auto run = [](DType dtype) {
    RandomStream stream(3);
    const NDArray w = uniform({33}, stream, -1, 1, dtype), v = uniform({33}, stream, -1, 1, dtype),
                  g = uniform({33}, stream, -1, 1, dtype), m = zeros({33}, dtype), u = zeros({33}, dtype);
    const NDArray w2 = w.copy(), w3 = w.copy(), total = w.copy();
    sgd_step(w, v, g, 0.1, 0.9, 0.01);
    sgd_step(w2, {}, g, 0.1, 0, 0);
    adam_step(w3, m, u, g, {.step = 1});
    const NDArray terms[] = {g, v};
    accumulate(total, terms);
    const NDArray committed = zeros({33}, dtype), gate = ones({1}, DType::u8);
    apply_into(Registry::instance().get("commit"), {{&g, &gate}}, {},
               {.into = std::span(&committed, 1), .updates = Updates::all()});
    return Arrays{w, v, w2, w3, m, u, total, committed};
  };
  for (DType dtype : {DType::f32, DType::f64}) {
    const Arrays fast = run(dtype), plain = by_reference([&] { return run(dtype); });
    for (std::size_t i = 0; i < fast.size(); ++i) expect_close(fast[i], plain[i], 1e-6, std::to_string(i));
  }
}

TEST(Operators, EmptyAndSingleSizes) {
  const NDArray none = zeros({0, 3});
  EXPECT_EQ((none + 1).shape(), (Dims{0, 3}));
  EXPECT_EQ(sum(none, {0}).to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(sum(none).item<float>(), 0);
  EXPECT_TRUE(std::isnan(mean(none).item<float>()));
  EXPECT_THROW(max(none), ArrayError);
  EXPECT_EQ(matmul(zeros({2, 0}), zeros({0, 3})).to_vector<float>(), std::vector<float>(6, 0.0F));
  EXPECT_EQ(matmul(none, zeros({3, 4})).shape(), (Dims{0, 4}));
  EXPECT_EQ(concat(Arrays{none, ones({1, 3})}).to_vector<float>(), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(softmax(none).shape(), (Dims{0, 3}));
  NDArray x = zeros({0, 3}).with_grad();
  sum(square(x)).backward();
  EXPECT_EQ(x.grad().shape(), (Dims{0, 3}));
  EXPECT_EQ(sum(from({3.0F}, {1, 1, 1})).item<float>(), 3);
}

TEST(Operators, ErrorsAtTheCallAreOneLine) {
  const auto message = [](auto f) -> std::string {
    try {
      f();
    } catch (const ArrayError& e) {
      return e.what();
    }
    return "no error";
  };
  const NDArray a = zeros({64, 10}), b = zeros({12, 3});
  EXPECT_THAT(
      message([&] { matmul(a, b); }),
      ::testing::MatchesRegex("\\[matmul\\] ops_table_test.cc:[0-9]+: \\(64, 10\\) x \\(12, 3\\): inner sizes differ"));
  EXPECT_THAT(message([&] { a + b; }), ::testing::HasSubstr("(64, 10) x (12, 3): shapes do not broadcast"));
  EXPECT_THAT(message([&] { matmul(a, a.to(DType::f64)); }), ::testing::HasSubstr("dtypes f32 and f64 do not mix"));
  EXPECT_THAT(message([&] { a.to(DType::boolean) + a.to(DType::boolean); }),
              ::testing::HasSubstr("no arithmetic in bool"));
  EXPECT_THAT(message([&] { exp(a.to(DType::i32)); }), ::testing::HasSubstr("needs a floating dtype, not i32"));
  EXPECT_THAT(message([&] { a.to(DType::i64) * 2.5; }), ::testing::HasSubstr("the number 2.5"));
  EXPECT_THAT(message([&] { sum(a, {2}); }), ::testing::HasSubstr("[sum]"));
  EXPECT_THAT(message([&] { NDArray() + a; }), ::testing::HasSubstr("an empty handle"));
  EXPECT_THAT(message([&] { cross_entropy(a, zeros({64})); }), ::testing::HasSubstr("labels are i64"));
  EXPECT_THAT(message([&] { conv2d(zeros({1, 2, 5, 5}), zeros({1, 3, 3, 3})); }), ::testing::HasSubstr("2 channels"));
}

// An operator and a backend of one's own: one row, and its kernel.
TEST(Registry, AProgramAddsOperatorsAndKernels) {
  const Operator& row = add_operator("test_cube", [](Operator& op) {
    op.elementwise = true;
    op.infer = [](Signature& s) {
      s.floating();
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::input(0)};
    op.gradient = [](GradientContext& c) { c.set(0, 3 * square(c.input(0)) * c.gradient()); };
  });
  const NDArray x = from({1.0, 2.0, 3.0}, {3}).with_grad();
  EXPECT_THROW(apply(row, {&x}), ArrayError);  // no kernel yet
  row.add_kernel({.name = "mine", .rank = 20}, {DType::f64},
                 {.run =
                      [](ArrayContext& c) {
                        for (std::int64_t i = 0; i < c.output().count(); ++i) {
                          const double v = c.input(0).as<double>()[i];
                          c.output().as<double>()[i] = v * v * v;
                        }
                      },
                  .dense_inputs = true,
                  .dense_outputs = true});
  const NDArray y = apply(row, {&x});
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{1, 8, 27}));
  sum(y).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3, 12, 27}));
  EXPECT_THROW(add_operator("test_cube", [](Operator&) {}), UsageError);
}

TEST(Registry, AttributesCompareByTypeAndValue) {
  const Attributes a(Dims{1}), b{};
  EXPECT_FALSE(a == b);
  EXPECT_TRUE(b == Attributes());
  EXPECT_TRUE(Attributes(Dims{1, 2}) == Attributes(Dims{1, 2}));
  EXPECT_FALSE(Attributes(Dims{1, 2}) == Attributes(Dims{1, 3}));
  EXPECT_THROW(b.get<Dims>(), std::bad_cast);
}

}  // namespace
}  // namespace sluice::testing
