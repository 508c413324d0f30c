// docs/adding-an-operator.md: its diffs fit the files as they are, and cost no more than the page and the design say.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "paths.h"

namespace sluice {
namespace {

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// A hunk: the lines that the file must have, and how many it adds and removes.
struct Hunk {
  std::string file;
  std::vector<std::string> before;
  int changed = 0;
};

struct Example {
  std::string title;
  std::vector<Hunk> hunks;
  int changed() const {
    int total = 0;
    for (const Hunk& hunk : hunks) total += hunk.changed;
    return total;
  }
  std::size_t files() const {
    std::set<std::string> names;
    for (const Hunk& hunk : hunks) names.insert(hunk.file);
    return names.size();
  }
};

std::vector<Example> examples() {
  std::vector<Example> found;
  std::string title, file;
  bool inside = false;
  for (const std::string& line : lines_of(SLUICE_SOURCE_DIR "/docs/adding-an-operator.md")) {
    if (line.starts_with("## ")) title = line.substr(3);
    if (line == "```diff") {
      inside = true;
      found.push_back({title, {}});
    } else if (line == "```") {
      inside = false;
    } else if (inside && line.starts_with("+++ ")) {
      file = line.substr(4);
    } else if (inside && line.starts_with("@@")) {
      found.back().hunks.push_back({file, {}});
    } else if (inside) {
      Hunk& hunk = found.back().hunks.back();
      const bool adds = line.starts_with("+"), removes = line.starts_with("-");
      if (adds || removes) ++hunk.changed;
      if (!adds) hunk.before.push_back(line.empty() ? line : line.substr(1));
    }
  }
  return found;
}

TEST(AddingAnOperator, TheDiffsFitTheFiles) {
  for (const Example& example : examples()) {
    for (const Hunk& hunk : example.hunks) {
      // In their order, but not side by side: other operators may have come between them.
      const std::vector<std::string> lines = lines_of(SLUICE_SOURCE_DIR "/" + hunk.file);
      auto at = lines.begin();
      for (const std::string& line : hunk.before) {
        at = std::find(at, lines.end(), line);
        EXPECT_TRUE(at != lines.end()) << example.title << ": " << hunk.file << " does not have, or not there,\n"
                                       << line;
      }
    }
  }
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
    const std::string said = std::to_string(all[i].files()) + " files, " + std::to_string(all[i].changed()) + " lines";
    EXPECT_TRUE(all[i].title.ends_with(said)) << all[i].title << ", but it is " << said;
    EXPECT_LE(all[i].files(), files[i]) << all[i].title;
    EXPECT_LE(all[i].changed(), 8) << all[i].title;
  }
}

}  // namespace
}  // namespace sluice
