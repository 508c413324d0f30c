// CSV files as arrays (the parser itself: tests/ndarray/csv_test.cc).
#include <gmock/gmock.h>

#include <string>

#include "nn_support.h"
#include "sluice/nn/data/csv.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ReadCsv, GivesColumnsAsArrays) {
  TestEngine engine;
  const test::TemporaryDirectory folder;
  const std::string path = folder / "rows.csv";
  test::write_file(path, "length,width,species\n1,2.5,0\n3,,2\n");
  const nn::Csv rows = nn::read_csv(path, {.dtypes = {{"species", DType::i64}}, .missing = {""}});
  EXPECT_EQ(rows["length"].spec(), (Spec{{2}, DType::f64, cpu(0)}));
  EXPECT_THAT(rows["species"].to_vector<std::int64_t>(), ElementsAre(0, 2));
  const NDArray x = rows.stacked({"length", "width"});
  EXPECT_EQ(x.spec(), (Spec{{2, 2}, DType::f64, cpu(0)}));
  const std::vector<double> values = x.to_vector<double>();
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2.5);
  EXPECT_EQ(values[2], 3);
  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_EQ(nn::read_csv(path, {.dtype = DType::f32, .missing = {""}}).stacked().shape(), (Dims{2, 3}));
  EXPECT_THAT(test::what_of([&] { (void)rows["colour"]; }),
              HasSubstr("[nn::Csv] no column 'colour' among: length, width, species"));
  EXPECT_THAT(test::what_of([&] { (void)rows.stacked(); }), HasSubstr("columns of f64 and i64"));
  EXPECT_THAT(test::what_of([&] { nn::read_csv(path); }), HasSubstr("[nn::read_csv] read_csv_test.cc:"));
  EXPECT_THAT(test::what_of([&] { nn::read_csv(path); }), HasSubstr("rows.csv:3:3: '' is no number of f64"));
}

}  // namespace
}  // namespace sluice
