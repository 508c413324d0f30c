// CSV: fields, lines and numbers as they are written, and each thing that can be wrong with them.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "sluice/ndarray/formats/csv.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

template <class T = double>
std::vector<T> column(const CsvColumns& columns, std::size_t i) {
  const auto values = columns.at(i).second.as<T>();
  return {values.begin(), values.end()};
}
std::vector<std::string> names(const CsvColumns& columns) {
  std::vector<std::string> list;
  for (const auto& [name, tensor] : columns) list.push_back(name);
  return list;
}
void expect_refused(const std::string& text, const std::string& words, const CsvOptions& options = {}) {
  try {
    parse_csv(text, options, "a.csv");
    ADD_FAILURE() << "parsed: " << text;
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), StartsWith(words));
  }
}

TEST(Csv, LinesAndFields) {
  for (const std::string text : {"a,b\n1,2\n3,4\n", "a,b\r\n1,2\r\n3,4", "\n\na,b\n\n1,2\n\n3,4\n\n\n",
                                 "\xef\xbb\xbf"
                                 "a,b\n1,2\n3,4",
                                 " a ,\tb\n 1, 2\t\n3 ,4  ", "\"a\",\"b\"\n\"1\",2\n 3 , \"4\" \n"}) {
    const CsvColumns columns = parse_csv(text);
    EXPECT_THAT(names(columns), ElementsAre("a", "b")) << text;
    EXPECT_THAT(column(columns, 0), ElementsAre(1, 3)) << text;
    EXPECT_THAT(column(columns, 1), ElementsAre(2, 4)) << text;
    EXPECT_EQ(columns[0].second.shape, (Dims{2}));
  }
  EXPECT_THAT(names(parse_csv("\"x,\"\"y\"\"\nz\",w\n1,2")), ElementsAre("x,\"y\"\nz", "w"));
  const CsvColumns plain = parse_csv("1;2\n3;4", {.delimiter = ';', .header = false});
  EXPECT_THAT(names(plain), ElementsAre("0", "1"));
  EXPECT_THAT(column(plain, 1), ElementsAre(2, 4));
  EXPECT_THAT(column(parse_csv("a\tb\n1\t2\n", {.delimiter = '\t'}), 1), ElementsAre(2));
  EXPECT_EQ(parse_csv("a,b\n")[1].second.shape, (Dims{0}));
  EXPECT_THAT(column(parse_csv("7", {.header = false}), 0), ElementsAre(7));
}

TEST(Csv, NumbersAreRoundedOnce) {
  std::mt19937_64 random(3);
  std::string text = "x\n";
  std::vector<double> wanted{
      0.1, -1e300, 5e-324, 12345678901234567890.0, 1, 2, std::numeric_limits<double>::infinity()};
  text += "0.1\n-1e300\n5e-324\n12345678901234567890\n+1\n2.\ninf\n";
  for (int i = 0; i < 1000; ++i) {
    const double x = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 1000) - 600);
    char line[40];
    std::snprintf(line, sizeof(line), "%.17g\n", x);
    text += line;
    wanted.push_back(x);
  }
  EXPECT_EQ(column(parse_csv(text), 0), wanted);
  EXPECT_TRUE(std::isnan(column(parse_csv("x\nnan\n"), 0)[0]));
  EXPECT_THAT(column<float>(parse_csv("x\n0.1\n1e-50\n1e-40", {.dtype = DType::f32}), 0),
              ElementsAre(0.1F, 0.0F, 1e-40F));
  // Too small is 0 or what is left of it; too large is refused (below).
  const std::string small = "x\n1e-400\n-1e-400\n3e-324\n1e-99999999999999999999\n0." + std::string(400, '0') + "1\n" +
                            std::string(500, '9') + "e-1000\n";
  const std::vector<double> zeros = column(parse_csv(small), 0);
  EXPECT_THAT(zeros, ElementsAre(0, 0, 5e-324, 0, 0, 0));
  EXPECT_TRUE(std::signbit(zeros[1]) && !std::signbit(zeros[0]));
  const std::vector<float> narrow = column<float>(parse_csv(small, {.dtype = DType::f32}), 0);
  EXPECT_THAT(narrow, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_TRUE(std::signbit(narrow[1]) && !std::signbit(narrow[0]));
  const CsvColumns mixed = parse_csv("a,b,c,d\n9007199254740993,-7,255,1\n",
                                     {.dtypes = {{"a", DType::i64}, {"b", DType::i32}, {"c", DType::u8}}});
  EXPECT_THAT(column<std::int64_t>(mixed, 0), ElementsAre(9007199254740993));
  EXPECT_THAT(column<std::int32_t>(mixed, 1), ElementsAre(-7));
  EXPECT_THAT(column<std::uint8_t>(mixed, 2), ElementsAre(255));
  EXPECT_THAT(column(mixed, 3), ElementsAre(1));
}

TEST(Csv, SomeColumnsAndMissingFields) {
  const std::string text = "name,x,y\ntom,1,\nann,NA,2\n";
  const CsvColumns chosen = parse_csv(text, {.only = {"y", "x"}, .missing = {"", "NA"}});
  EXPECT_THAT(names(chosen), ElementsAre("y", "x"));
  EXPECT_TRUE(std::isnan(column(chosen, 0)[0]));
  EXPECT_EQ(column(chosen, 0)[1], 2);
  EXPECT_TRUE(std::isnan(column(chosen, 1)[1]));
  const CsvColumns one = parse_csv("x\n1\n\n2\n", {.dtype = DType::f32, .missing = {""}});
  EXPECT_EQ(column<float>(one, 0).size(), 3U) << "where there is one column an empty line is a field";
  EXPECT_TRUE(std::isnan(column<float>(one, 0)[1]));
  expect_refused(text, "a.csv:2:1: 'tom' is no number of f64");
  expect_refused(text, "a.csv:2:7: '' is no number of f64", {.only = {"x", "y"}});
  expect_refused(text, "a.csv:2:7: '' is missing, which only f64 and f32 can be",
                 {.dtypes = {{"y", DType::i64}}, .only = {"y"}, .missing = {""}});
}

TEST(Csv, WhatIsWrongIsNamed) {
  expect_refused("", "a.csv: holds no line");
  expect_refused("\n\n", "a.csv: holds no line");
  expect_refused("a,b\n1\n", "a.csv:2:1: the line ends with field 1 of 2 fields");
  expect_refused("a,b\n1,2\n1,2,3\n", "a.csv:3:5: the line has more than 2 fields");
  expect_refused("a,b\n1,2x\n", "a.csv:2:3: '2x' is no number of f64");
  expect_refused("a,b\n1,\"2\n", "a.csv:2:3: a quote that is not closed");
  expect_refused("a,b\n1,\"2\"3\n", "a.csv:2:6: text behind a closing quote");
  expect_refused("\"a\nb\",c\n1,x\n", "a.csv:3:3: 'x' is no number");
  expect_refused("a,a\n1,2\n", "a.csv:1:3: two columns are called 'a'");
  expect_refused("a,b\n1,2\n", "a.csv:1:1: no column 'c'", {.only = {"c"}});
  expect_refused("a,b\n1,2\n", "a.csv:1:1: no column 'c'", {.dtypes = {{"c", DType::f32}}});
  expect_refused("a\n1e999\n", "a.csv:2:1: '1e999' is beyond f64");
  expect_refused("a\n1e39\n", "a.csv:2:1: '1e39' is beyond f32", {.dtype = DType::f32});
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const std::string text : {"1e400", "-1e400", "+1.5E+99999999999999999999", "0.0001e999"}) {
      expect_refused("a\n" + text + "\n", "a.csv:2:1: '" + text + "' is beyond " + std::string(name_of(dtype)),
                     {.dtype = dtype});
    }
  }
  expect_refused("a\n" + std::string(400, '9') + "\n", "a.csv:2:1: '9999");
  expect_refused("a\n1e999x\n", "a.csv:2:1: '1e999x' is no number of f64");
  for (const std::string text : {"256", "-1", "99999999999999999999"}) {
    expect_refused("a\n" + text + "\n", "a.csv:2:1: '" + text + "' is beyond u8", {.dtype = DType::u8});
  }
  EXPECT_THAT(column<std::uint8_t>(parse_csv("a\n-0\n+255\n", {.dtype = DType::u8}), 0), ElementsAre(0, 255));
  expect_refused("a\n1.0\n", "a.csv:2:1: '1.0' is no number of i64", {.dtype = DType::i64});
  expect_refused("a\n+-1\n", "a.csv:2:1: '+-1' is no number");
  expect_refused("a\n0x10\n", "a.csv:2:1: '0x10' is no number");
  expect_refused("a\n1\r", "a.csv:2:1: '1\\x0d' is no number");
  EXPECT_THROW(parse_csv("a", {.delimiter = '.'}), std::invalid_argument);
  EXPECT_THROW(parse_csv("a", {.delimiter = '"'}), std::invalid_argument);
  EXPECT_THROW(parse_csv("a", {.dtype = DType::f16}), std::invalid_argument);
  EXPECT_THROW(parse_csv("a", {.only = {"a", "a"}}), std::invalid_argument);
  EXPECT_THROW(load_csv("/nonexistent.csv"), FormatError);
}

TEST(Csv, NoCutAndNoChangeIsACrash) {
  const std::string text = "a,\"b \"\"c\"\"\"\r\n1,2.5\r\n\"-3e2\",inf\n\n,5\n";
  for (std::size_t n = 0; n < text.size(); ++n) {
    for (const bool header : {false, true}) {
      try {
        const CsvColumns columns = parse_csv(text.substr(0, n), {.header = header, .missing = {"", "a"}});
        EXPECT_EQ(columns[0].second.as<double>().size(), columns.back().second.as<double>().size());
      } catch (const FormatError&) {
      }
    }
  }
  test::fuzz(
      text, text.size(), 1000, 1, [](std::size_t size) { return 64 * size + 4096; },
      [](const std::filesystem::path& path) { load_csv(path); });
}

}  // namespace
}  // namespace sluice
