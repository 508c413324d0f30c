// What judges the oracle. The reference backend includes nothing of another backend. What it shares with them is what
// an elementwise operator is, its functor; and that is judged here, by formulas of the tests' own.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "ops_table.h"
#include "paths.h"
#include "sluice/operators/attributes.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

TEST(Oracle, IncludesNothingOfAnotherBackend) {
  const fs::path root = SLUICE_SOURCE_DIR;
  std::vector<std::string> open;
  for (const auto& entry : fs::directory_iterator(root / "operators/backends/reference")) {
    open.push_back(fs::relative(entry.path(), root).string());
  }
  std::set<std::string> seen(open.begin(), open.end());
  EXPECT_GT(seen.size(), 8U);
  const std::string begin = "#include \"sluice/";
  while (!open.empty()) {
    const std::string file = open.back();
    open.pop_back();
    std::ifstream text(root / file);
    ASSERT_TRUE(text) << file;
    for (std::string line; std::getline(text, line);) {
      if (!line.starts_with(begin)) continue;
      const std::string name = line.substr(begin.size(), line.find('"', begin.size()) - begin.size());
      const bool of_a_backend = name.starts_with("operators/backends/");
      EXPECT_TRUE(!of_a_backend || name.starts_with("operators/backends/reference/")) << file << " includes " << name;
      if (seen.insert(name).second) open.push_back(name);
    }
  }
}

TEST(Oracle, ElementwiseOperatorsAreTheFormulasOfTheTests) {
  int checked = 0;
  for (const OperatorCase& c : operator_cases()) {
    if (!c.formula) continue;
    for (const bool reference : {true, false}) {
      for (const DType dtype : {DType::f64, DType::f32}) {
        const KernelRankLimit limit(reference ? 0 : 1 << 30);
        const Arrays inputs = make_inputs(c, dtype);
        const std::vector<double> y = values_of(c.call(inputs)), a = values_of(inputs[0]), b = values_of(inputs.back());
        ASSERT_EQ(y.size(), a.size()) << c.name;
        for (std::size_t i = 0; i < y.size(); ++i) {
          const double wanted = c.formula(a[i], b[i]), bound = dtype == DType::f64 ? 4e-15 : 2e-6;
          EXPECT_LE(std::abs(y[i] - wanted), bound * (1 + std::abs(wanted))) << c.name << " of " << a[i] << " " << b[i];
        }
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(Oracle, ReductionsAreTheFoldsOfTheTests) {
  int checked = 0;
  for (const OperatorCase& c : operator_cases()) {
    if (!c.fold) continue;
    for (const bool reference : {true, false}) {
      const KernelRankLimit limit(reference ? 0 : 1 << 30);
      RandomStream stream(3);
      for (const std::int64_t n : {1, 15, 16, 17, 4096, 4097, 40000}) {
        const NDArray x = uniform({n}, stream, c.low, c.high, DType::f64);
        const std::vector<double> values = x.to_vector<double>();
        double wanted = values[0];
        for (std::size_t i = 1; i < values.size(); ++i) wanted = c.fold(wanted, values[i]);
        EXPECT_NEAR(c.call({x}).item<double>(), wanted, 1e-11 * (1 + std::abs(wanted))) << c.name << " of " << n;
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 5);
}

// Every elementwise row that takes integers: the CPU's kernels give the reference's bits, overflow included.
TEST(Oracle, IntegerRowsGiveTheSameBitsOnTheCpu) {
  int checked = 0;
  for (const Operator* row : Registry::instance().all()) {
    if (!row->elementwise || row->max_inputs > 2 || std::string_view(row->name).starts_with("test_")) continue;
    for (const DType dtype : {DType::i32, DType::i64}) {
      if (!row->kernel(DeviceKind::cpu, dtype, 0)) continue;
      const std::int64_t least =
          dtype == DType::i32 ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
      const NDArray a = concat(Arrays{arange(-17, 17, 1, dtype), full({1}, least, dtype)}).reshape({5, 7}),
                    b = arange(-3, 4, 1, dtype);
      std::vector<const NDArray*> inputs{&a};
      if (row->min_inputs == 2) inputs.push_back(&b);
      const bool scalar = std::string_view(row->name).ends_with("_scalar");
      const Attributes attributes = scalar ? Attributes(ScalarAttributes{-1}) : Attributes();
      const auto bytes = [&](int rank) {
        const KernelRankLimit limit(rank);
        return apply_all(*row, inputs, attributes, {})[0].to_bytes();
      };
      EXPECT_EQ(bytes(1 << 30), bytes(0)) << row->name << " " << name_of(dtype);
      ++checked;
    }
  }
  EXPECT_GT(checked, 40);
}

}  // namespace
}  // namespace sluice::testing
