// Arrays as text against NumPy's own texts (printing_cases.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "paths.h"
#include "sluice/ndarray/half.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  throw std::invalid_argument("no dtype " + name);
}

TEST(Printing, IsNumPysTextForEveryCase) {
  // Debian's own interpreter: python3-numpy is a package of it.
  if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0) {
    GTEST_SKIP() << "no NumPy here: python3-numpy (cmake/packages.sh test)";
  }
  const test::TemporaryDirectory directory;
  const std::string texts = (directory / "texts").string();
  const std::string command = "/usr/bin/python3 " SLUICE_SOURCE_DIR "/tests/ndarray/printing_cases.py >'" + texts + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << "python3-numpy (cmake/packages.sh test)";
  std::ifstream file(texts);
  std::string line;
  int cases = 0, wrong = 0;
  while (std::getline(file, line) && wrong < 20) {
    std::istringstream head(line);
    std::string name, sizes, bits;
    head >> name >> sizes;
    Dims shape;
    std::istringstream each(sizes == "-" ? "" : sizes);
    for (std::string size; std::getline(each, size, ',');) shape.push_back(std::stoll(size));
    std::vector<std::uint64_t> pattern;
    while (head >> bits) pattern.push_back(std::stoull(bits, nullptr, 16));
    const DType dtype = dtype_named(name);
    std::vector<std::byte> bytes(static_cast<std::size_t>(shape.count()) * size_of(dtype));
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape.count()); ++i) {
      std::memcpy(bytes.data() + i * size_of(dtype), &pattern[i % pattern.size()], size_of(dtype));
    }
    std::string text, count;
    std::getline(file, count);
    for (int left = std::stoi(count); left > 0; --left) {
      std::string part;
      std::getline(file, part);
      text += (text.empty() ? "" : "\n") + part;
    }
    const std::string printed = from_bytes(bytes, shape, dtype, cpu(0)).to_string();
    EXPECT_EQ(printed, text) << "case " << cases << ": " << line.substr(0, 200);
    wrong += printed != text;
    ++cases;
  }
  EXPECT_GE(cases, 1400);
}

TEST(Printing, ShowsBFloat16ByItsOwnDigits) {
  const auto text = [](std::vector<float> values) {
    return from(values, {static_cast<std::int64_t>(values.size())}).to(DType::bf16).to_string();
  };
  EXPECT_EQ(text({0.1F, 0.2F, 0.3F}), "[0.1 0.2 0.3]");
  EXPECT_EQ(text({3.14159F, -2.F}), "[ 3.14 -2.  ]");
  EXPECT_EQ(text({1e30F, 1.F}), "[1.e+30 1.e+00]");
  EXPECT_EQ(text({-0.F, NAN}), "[-0. nan]");
  EXPECT_EQ(from({0.1F}, {}).to(DType::bf16).to_string(), "0.1");
}

}  // namespace
}  // namespace sluice
