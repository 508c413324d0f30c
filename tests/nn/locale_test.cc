// A program's locale changes no number that the library reads, writes into a file, or puts into a message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <locale>
#include <regex>
#include <set>
#include <string>

#include "../support/temporary_directory.h"
#include "paths.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/nn/files/save.h"
#include "sluice/sluice.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

/// While it lives numbers are written as in German: "1.234,5".
class German {
 public:
  German() {
    // Streams, in every system.
    struct Facet : std::numpunct<char> {
      char do_decimal_point() const override { return ','; }
      char do_thousands_sep() const override { return '.'; }
      std::string do_grouping() const override { return "\3"; }
    };
    before_ = std::locale::global(std::locale(std::locale::classic(), new Facet));
    // printf and strtod, where there is such a locale, or what makes one.
    for (const char* const name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE"})
      there_ = there_ || std::setlocale(LC_ALL, name);
    if (there_) return;
    const std::string make = "localedef -i de_DE -f UTF-8 '" + (files_ / "de_DE.UTF-8").string() + "' >'" +
                             (files_ / "said").string() + "' 2>&1";
    if (std::system(make.c_str()) != 0) return;
    setenv("LOCPATH", files_.path().c_str(), 1);
    there_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
    unsetenv("LOCPATH");
  }
  ~German() {
    std::setlocale(LC_ALL, "C");
    std::locale::global(before_);
  }
  bool there() const { return there_; }

 private:
  const test::TemporaryDirectory files_;
  std::locale before_;
  bool there_ = false;
};

TEST(Locale, NumbersAreTheSameInAll) {
  const auto texts = [] {
    std::string text = bytes_in_words(10 * 1024) + "; " + Scalar(1.5).text() + "; " + Scalar(1e300).text() + "; " +
                       nn::detail::number_text(0.1) + "; " + to_string(Dims{1000, 2000}) + "; ";
    try {
      setenv("SLUICE_EXIT_SECONDS", "2.5", 1);
      const Engine engine;
      unsetenv("SLUICE_EXIT_SECONDS");
    } catch (const std::exception& error) {
      text += error.what();
    }
    RandomStream stream(1);
    try {
      bernoulli({2}, stream, 1.5);
    } catch (const std::exception& error) {
      text += std::string(error.what()).substr(std::string(error.what()).find(": "));
    }
    return text + "; " + full({2}, 1234.5).to_string();
  };
  const std::string plain = texts();
  EXPECT_THAT(plain,
              HasSubstr("10.00 KiB; 1.5; 1e+300; 0.10000000000000001; (1000, 2000); : a probability of 1.500000"));
  const German german;
  EXPECT_EQ(texts(), plain);
  if (!german.there()) GTEST_SKIP() << "no German locale here, and no localedef: streams alone were tried";
  char comma[8];
  std::snprintf(comma, sizeof comma, "%.1f", 0.5);
  ASSERT_STREQ(comma, "0,5");
}

// The functions that go by the locale, which no test can call everywhere.
TEST(Locale, NoFunctionThatGoesByItIsCalled) {
  const std::regex wanted(R"(\b(strto(d|f|ld)|sto(d|f|ld)|atof|sscanf)\s*\(|\b[io]?stringstream\b)"
                          R"(|%[-+#0]*[0-9*]*(\.[0-9*]+)?L?[aefgAEFG]\b[^a-z])");
  std::set<std::string> found;
  for (const char* const floor :
       {"engine", "schedule", "resources", "ndarray", "operators", "autograd", "nn", "parallel"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(SLUICE_SOURCE_DIR) / floor)) {
      const std::string end = entry.path().extension().string();
      if (end != ".h" && end != ".cc" && end != ".cu") continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        line.resize(std::min(line.size(), line.find("//")));
        if (std::regex_search(line, wanted)) found.insert(entry.path().filename().string() + ": " + line);
      }
    }
  }
  EXPECT_THAT(found, ::testing::IsEmpty());
}

}  // namespace
}  // namespace sluice
