// Kernels of the CUDA backend that work by tiles, chunks and pieces, on arrays of several of these: results and
// gradients against the reference on the CPU. The table of operators (rows_test.cc) has arrays that fit into one.
#include <cmath>
#include <functional>

#include "../operators/ops_table.h"
#include "support.h"

namespace sluice::testing {
namespace {

/// f of arrays whose numbers are the same on each device, and what comes back to those that take a gradient.
struct Program {
  std::string name;
  std::vector<Dims> shapes;
  std::function<NDArray(const Arrays&)> f;
  bool gradient = true;
};

Arrays run(const Program& p, DType dtype, Device device) {
  Arrays inputs;
  RandomStream random(5);
  for (const Dims& shape : p.shapes) {
    const DeviceScope on_the_host(cpu(0));
    inputs.push_back(uniform(shape, random, -1, 1, DType::f64).to(dtype));
  }
  for (NDArray& x : inputs) x = x.to(device).with_grad();
  const DeviceScope scope(device);
  const NDArray y = p.f(inputs);
  Arrays results{y.detach()};
  if (p.gradient) {
    NDArray weights;
    {
      const DeviceScope on_the_host(cpu(0));
      weights = uniform(y.shape(), random, 0.5, 1.5, DType::f64).to(y.dtype());
    }
    sum(y * weights.to(device)).backward();
    for (const NDArray& x : inputs) results.push_back(x.grad());
  }
  for (NDArray& result : results) result = result.to(cpu(0)).to(DType::f64);
  return results;
}

void expect_as_the_reference(const Program& p) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    SCOPED_TRACE(p.name + ", " + std::string(name_of(dtype)));
    const Arrays got = run(p, dtype, gpu(0));
    Arrays want;
    {
      const KernelRankLimit reference_only(0);
      want = run(p, dtype, cpu(0));
    }
    const double tolerance = dtype == DType::f64   ? 1e-12
                             : dtype == DType::f32 ? 2e-6
                             : dtype == DType::f16 ? 4e-3
                                                   : 3e-2;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].shape(), want[i].shape());
      const std::vector<double> x = got[i].to_vector<double>(), y = want[i].to_vector<double>();
      double largest = 1e-30;
      for (const double v : y) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0);
      for (std::size_t k = 0; k < x.size(); ++k) {
        ASSERT_EQ(std::isnan(x[k]), std::isnan(y[k])) << (i == 0 ? "result" : "a gradient") << ", element " << k;
        if (std::isnan(y[k]) || x[k] == y[k]) continue;  // infinity less itself is none
        ASSERT_LE(std::abs(x[k] - y[k]), tolerance * largest)
            << (i == 0 ? "result" : "a gradient") << ", element " << k << ": " << x[k] << " and " << y[k];
      }
    }
  }
}

struct Sizes {
  std::int64_t heads, groups, n, m, size, value_size;
  bool causal;
};
void expect_attention(const Sizes& s) {
  expect_as_the_reference({"n " + std::to_string(s.n) + ", size " + std::to_string(s.size),
                           {{1, s.heads, s.n, s.size}, {1, s.groups, s.m, s.size}, {1, s.groups, s.m, s.value_size}},
                           [s](const Arrays& x) { return attention(x[0], x[1], x[2], {.causal = s.causal}); }});
}

/// Below, at and above the tiles' widths; more queries than keys, and fewer; groups of heads.
TEST(CudaTiles, AttentionOfSeveralTiles) {
  const OnCuda on;
  for (const Sizes& s :
       {Sizes{4, 2, 37, 70, 5, 3, true}, Sizes{2, 1, 70, 37, 64, 64, false}, Sizes{1, 1, 65, 65, 64, 20, true},
        Sizes{2, 2, 33, 49, 72, 128, true}, Sizes{1, 1, 9, 20, 130, 4, false}, Sizes{2, 1, 1, 33, 16, 16, true}}) {
    expect_attention(s);
  }
}

/// Several tiles of queries and of keys for each width that the kernels on tensor cores are made for, with rows that
/// are aligned to 16 bytes and rows that are not.
TEST(CudaTiles, AttentionOfEachWidth) {
  const OnCuda on;
  for (const Sizes& s :
       {Sizes{1, 1, 130, 200, 64, 64, true}, Sizes{1, 1, 70, 150, 80, 80, true}, Sizes{1, 1, 100, 70, 128, 128, true},
        Sizes{1, 1, 90, 70, 48, 128, false}, Sizes{4, 2, 129, 65, 16, 16, true}, Sizes{1, 1, 65, 100, 96, 96, false},
        Sizes{1, 1, 70, 130, 33, 63, true}, Sizes{3, 1, 64, 64, 32, 24, true}}) {
    expect_attention(s);
  }
}
TEST(CudaTiles, AttentionWithANegativeScale) {
  const OnCuda on;
  expect_as_the_reference({"negative", {{2, 70, 16}, {2, 90, 16}, {2, 90, 16}}, [](const Arrays& x) {
                             return attention(x[0], x[1], x[2], {.causal = true, .scale = -0.4});
                           }});
}

/// What a query does not see does not come into its result, whatever it is; one that sees nothing gives zeros.
TEST(CudaTiles, AttentionThatIsMasked) {
  const OnCuda on;
  expect_as_the_reference({"masked", {{2, 2, 40, 8}, {2, 2, 70, 8}, {2, 2, 70, 8}}, [](const Arrays& x) {
                             const NDArray rows = arange(0, 40).reshape({40, 1}), keys = arange(0, 70).reshape({1, 70});
                             const NDArray sees = less((rows * 13 + keys * 7), 500).to(x[0].device());
                             return attention(x[0], x[1], x[2], {.mask = sees});
                           }});
  expect_as_the_reference(
      {"NaN where nobody looks", {{1, 1, 40, 8}, {1, 1, 70, 8}, {1, 1, 70, 8}}, [](const Arrays& x) {
         const NDArray hidden = (arange(0, 70) / 60).reshape({1, 1, 70, 1}).to(x[0].device());
         const NDArray bad = where(equal(hidden, 1), NAN, x[2].detach());
         const NDArray sees = equal(hidden.reshape({1, 1, 1, 70}), 0);
         return attention(x[0], x[1], bad, {.mask = sees}) + sum(x[2]);
       }});
}

/// Masks of each shape that broadcasts to (batch, heads, queries, keys).
TEST(CudaTiles, AttentionWithNumbersAdded) {
  const OnCuda on;
  for (const Dims& shape : {Dims{2, 2, 40, 70}, Dims{1, 2, 1, 70}, Dims{2, 1, 40, 1}, Dims{1, 1, 40, 70}}) {
    expect_as_the_reference(
        {"mask " + to_string(shape), {{2, 2, 40, 24}, {2, 1, 70, 24}, {2, 1, 70, 24}}, [shape](const Arrays& x) {
           RandomStream random(3);
           NDArray mask;
           {
             const DeviceScope on_the_host(cpu(0));
             mask = uniform(shape, random, -2, 2, DType::f64).to(x[0].dtype());
             mask = where(mask > 1.5, -INFINITY, mask);
           }
           return attention(x[0], x[1], x[2], {.causal = shape.count() > 200, .mask = mask.to(x[0].device())});
         }});
  }
}

/// Numbers that are not finite, in rows that some queries see and some do not.
TEST(CudaTiles, AttentionBesideWhatIsNotFinite) {
  const OnCuda on;
  // By key or query: NaN from the 100th on, infinity in the 80th, its negative in the 90th, both in some columns.
  const auto spoiled = [](const NDArray& x, bool infinite) {
    const std::int64_t rows = x.size(2);
    const NDArray places = arange(0, rows).reshape({1, 1, rows, 1}).to(x.device());
    NDArray y = where(places >= 100, NAN, x);
    if (!infinite) return y;
    y = where(equal(places, 80), INFINITY, y);
    return where(equal(places, 90), -INFINITY, y);
  };
  for (const std::int64_t size : {24, 64, 128}) {
    const std::vector<Dims> shapes{{1, 1, 120, size}, {1, 1, 120, size}, {1, 1, 120, size}};
    expect_as_the_reference(
        {"values, size " + std::to_string(size), shapes,
         [&](const Arrays& x) { return attention(x[0], x[1], spoiled(x[2].detach(), true), {.causal = true}); },
         false});
    // Nothing depends on queries whose results have no gradient.
    expect_as_the_reference({"all, size " + std::to_string(size), shapes, [&](const Arrays& x) {
                               const NDArray y = attention(spoiled(x[0], false), spoiled(x[1], false),
                                                           spoiled(x[2], false), {.causal = true});
                               return y(all, all, slice(0, 100));
                             }});
  }
}

TEST(CudaTiles, FoldsOfSeveralChunks) {
  const OnCuda on;
  const auto sums = [](const Arrays& x) { return sum(x[0], {1}); };
  // Rows for one thread, for some and for a block; of several chunks; and of more chunks than one thread joins.
  for (const Dims& shape : {Dims{70, 7}, Dims{9, 33}, Dims{40, 300}, Dims{3, 1025}, Dims{2, 9000}, Dims{1, 140000}}) {
    expect_as_the_reference({"sum of rows of " + to_string(shape), {shape}, sums, false});
  }
  for (const Dims& shape : {Dims{700, 3}, Dims{70000, 2}}) {
    expect_as_the_reference(
        {"sum of columns of " + to_string(shape), {shape}, [](const Arrays& x) { return sum(x[0], {0}); }, false});
  }
  expect_as_the_reference({"sum of two of three axes",
                           {{30, 5, 40}},
                           [](const Arrays& x) {
                             return sum(x[0], {0, 2});
                           },
                           false});
  expect_as_the_reference(
      {"argmax", {{3, 9000}}, [](const Arrays& x) { return argmax(x[0], 1).to(x[0].dtype()); }, false});
  expect_as_the_reference({"max", {{2, 1500}}, [](const Arrays& x) { return max(x[0], {1}); }});
}

TEST(CudaTiles, RowsOfEachLength) {
  const OnCuda on;
  for (const Dims& shape : {Dims{300, 7}, Dims{20, 33}, Dims{3, 1030}}) {
    expect_as_the_reference({"softmax of " + to_string(shape), {shape}, [](const Arrays& x) { return softmax(x[0]); }});
    expect_as_the_reference(
        {"log_softmax of " + to_string(shape), {shape}, [](const Arrays& x) { return log_softmax(x[0]); }});
    expect_as_the_reference({"cross_entropy of " + to_string(shape), {shape}, [](const Arrays& x) {
                               const NDArray labels = arange(0, x[0].size(0)).to(x[0].device());
                               return cross_entropy(x[0], labels - labels / x[0].size(1) * x[0].size(1));
                             }});
  }
  for (const Dims& shape : {Dims{3, 300}, Dims{2, 5000}}) {
    expect_as_the_reference({"layer_norm of " + to_string(shape), {shape, {shape[1]}, {shape[1]}}, [](const Arrays& x) {
                               return layer_norm(x[0], x[1], x[2]);
                             }});
  }
}

TEST(CudaTiles, CopiesOfTurnedArrays) {
  const OnCuda on;
  expect_as_the_reference({"a matrix", {{45, 70}}, [](const Arrays& x) { return x[0].transpose().copy(); }});
  expect_as_the_reference(
      {"a part", {{50, 90}}, [](const Arrays& x) { return x[0](slice(3, 40), slice(1, 87, 2)).transpose().copy(); }});
  for (const Dims& order : {Dims{0, 2, 1}, Dims{2, 0, 1}, Dims{1, 2, 0}, Dims{2, 1, 0}}) {
    expect_as_the_reference(
        {"axes " + to_string(order), {{33, 20, 40}}, [order](const Arrays& x) { return x[0].permute(order).copy(); }});
  }
}

TEST(CudaTiles, RowsThatAreAdded) {
  const OnCuda on;
  for (const DType labels : {DType::i64, DType::i32, DType::u8}) {
    expect_as_the_reference({"rows by " + std::string(name_of(labels)), {{40, 9}}, [labels](const Arrays& x) {
                               const NDArray at = arange(0, 150) * 77;
                               const NDArray rows = (at - at / 31 * 31).to(labels).to(x[0].device());
                               return take_rows(x[0], rows);
                             }});
  }
}

TEST(CudaTiles, ScansOfSeveralPieces) {
  const OnCuda on;
  for (const Dims& shape : {Dims{3, 64}, Dims{2, 65}, Dims{2, 5000}}) {
    expect_as_the_reference(
        {"cumsum of " + to_string(shape), {shape}, [](const Arrays& x) { return cumsum(x[0], 1); }});
    expect_as_the_reference(
        {"logcumsumexp of " + to_string(shape), {shape}, [](const Arrays& x) { return logcumsumexp(x[0], 1); }, false});
  }
  expect_as_the_reference({"cummax", {{3, 500}}, [](const Arrays& x) { return cummax(x[0], 1).values; }});
}

}  // namespace
}  // namespace sluice::testing
