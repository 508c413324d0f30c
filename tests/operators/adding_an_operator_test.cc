// docs/adding-an-operator.md: its diffs fit the files as they are, and cost no more than the page and the design say.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../support/page_diffs.h"

namespace sluice {
namespace {

using test::Example;
using test::lines_of;

std::vector<Example> examples() { return test::examples_of("adding-an-operator.md"); }

TEST(AddingAnOperator, TheDiffsFitTheFiles) {
  for (const Example& example : examples()) test::expect_to_fit(example);
}

/// Blocks that begin with "```cpp path": what stands between lines "// ..." is there, line by line.
TEST(AddingAnOperator, TheQuotesAreTheFiles) {
  std::set<std::string> quoted;
  for (const char* page : {"adding-an-operator.md", "adding-a-backend.md"}) {
    std::string file;
    std::vector<std::vector<std::string>> parts;
    for (const std::string& line : lines_of(std::string(SLUICE_SOURCE_DIR "/docs/") + page)) {
      const std::size_t space = line.find(' ');
      if (file.empty() && line.starts_with("```") && space != std::string::npos) {
        file = line.substr(space + 1);
        parts = {{}};
      } else if (line == "```" && !file.empty()) {
        const std::vector<std::string> lines = lines_of(SLUICE_SOURCE_DIR "/" + file);
        auto at = lines.begin();
        for (const std::vector<std::string>& part : parts) {
          EXPECT_FALSE(part.empty()) << page << ": " << file;
          at = std::search(at, lines.end(), part.begin(), part.end());
          EXPECT_TRUE(at != lines.end()) << page << ": " << file << " does not have, or not there,\n" << part.front();
        }
        quoted.insert(std::exchange(file, ""));
      } else if (!file.empty() && (line == "// ..." || line == "# ...")) {
        parts.emplace_back();
      } else if (!file.empty()) {
        parts.back().push_back(line);
      }
    }
    EXPECT_EQ(file, "") << page << ": a quote without an end";
  }
  const std::string folder = "examples/plugins/";
  EXPECT_EQ(quoted,
            (std::set<std::string>{folder + "CMakeLists.txt", folder + "relu_cuda.cu", folder + "rms_norm.cc",
                                   folder + "soft_maximum.cc", folder + "softsign.cc", folder + "tiled_backend.cc"}));
}

TEST(AddingAnOperator, TheDiffsCostWhatIsSaid) {
  const std::vector<Example> all = examples();
  ASSERT_EQ(all.size(), 3U);
  const std::size_t files[] = {3, 3, 4};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i].title.ends_with(all[i].cost())) << all[i].title << ", but it is " << all[i].cost();
    EXPECT_LE(all[i].files(), files[i]) << all[i].title;
    EXPECT_LE(all[i].changed(), 8) << all[i].title;
  }
}

}  // namespace
}  // namespace sluice
