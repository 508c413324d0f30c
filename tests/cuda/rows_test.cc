// Every row of the table of operators on the CUDA backend's double, against the reference on the CPU: results and
// gradients.
#include <cmath>

#include "../operators/ops_table.h"
#include "sluice/operators/attributes.h"
#include "support.h"

namespace sluice::testing {
namespace {

/// A fixed array to weigh results with, so that a sum of them depends on each. The same numbers on every device.
NDArray weights_like(const NDArray& y) {
  NDArray weights;
  {
    const DeviceScope scope(cpu(0));
    RandomStream stream(99);
    weights = uniform(y.shape(), stream, 0.5, 1.5, DType::f64).to(y.dtype());
  }
  return weights.to(y.device());
}

/// The result and the gradients, on the host.
Arrays run(const OperatorCase& c, DType dtype, Device device) {
  Arrays inputs;
  {
    const DeviceScope scope(cpu(0));
    inputs = make_inputs(c, dtype);
  }
  for (NDArray& x : inputs) x = x.to(device).with_grad();
  const DeviceScope scope(device);
  const NDArray y = c.call(inputs);
  Arrays results{y.detach()};
  if (c.gradient) {
    sum(y * weights_like(y)).backward();
    for (const NDArray& x : inputs) results.push_back(x.grad());
  }
  for (NDArray& result : results) result = result.to(cpu(0)).to(DType::f64);
  return results;
}

void expect_close(const NDArray& a, const NDArray& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 1e-30;
  for (const double v : y) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(y[i])) {
      ASSERT_TRUE(std::isnan(x[i])) << what << ", element " << i << ": " << x[i] << " and nan";
      continue;
    }
    ASSERT_LE(std::abs(x[i] - y[i]), tolerance * largest)
        << what << ", element " << i << ": " << x[i] << " and " << y[i];
  }
}

class CudaRows : public ::testing::TestWithParam<OperatorCase> {};

TEST_P(CudaRows, ResultAndGradientsEqualTheReference) {
  const OperatorCase& c = GetParam();
  const OnCuda on;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    if (c.by_lapack) {  // refused at the call, by a line that says what to do
      const bool known = dtype == DType::f32 || dtype == DType::f64;
      try {
        run(c, dtype, gpu(0));
        ADD_FAILURE() << c.name << " ran on a GPU";
      } catch (const ArrayError& e) {
        EXPECT_NE(std::string(e.what()).find(known ? "CPUs have one: use to(cpu(0))" : "needs f32 or f64"),
                  std::string::npos)
            << e.what();
      }
      continue;
    }
    const Arrays got = run(c, dtype, gpu(0));
    Arrays want;
    {
      const KernelRankLimit reference_only(0);
      want = run(c, dtype, cpu(0));
    }
    const double tolerance = dtype == DType::f64   ? 1e-12
                             : dtype == DType::f32 ? std::max(c.tolerance, 2e-6)
                             : dtype == DType::f16 ? 4e-3
                                                   : 3e-2;
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_close(
          got[i], want[i], tolerance,
          c.name + (i == 0 ? ", result" : ", gradient " + std::to_string(i - 1)) + ", " + std::string(name_of(dtype)));
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<OperatorCase>& test) {
  std::string name = std::to_string(test.index) + "_" + test.param.name;
  for (char& ch : name) {
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
}

/// A place of a mesh has rows 3 to 4 of 10. Elements of others are -0.0, so that a sum with them keeps every bit.
TEST(CudaRowsOfAPart, OthersKeepTheBitsOfWhatTheyAreAddedTo) {
  const OnCuda on;
  const Operator& row = Registry::instance().get("take_rows");
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::u8}) {
    const auto taken = [&](Device device) {
      const DeviceScope host(cpu(0));
      const NDArray x = full({2, 3}, 5, dtype).to(device),
                    labels = from(std::vector<std::int64_t>{3, 0, 4, 9}, {4}).to(device);
      return apply(row, {&x, &labels}, RowsAttributes{3, 10}).to_bytes();
    };
    EXPECT_TRUE(taken(gpu(0)) == taken(cpu(0))) << name_of(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, CudaRows, ::testing::ValuesIn(operator_cases()), test_name);

}  // namespace
}  // namespace sluice::testing
