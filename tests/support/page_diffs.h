// The diffs of a page of docs/ that shows what one adds: hunks that fit the files as they are, and what they cost.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "paths.h"

namespace sluice::test {

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// A hunk: the lines that the file must have, and how many it adds and removes.
struct Hunk {
  std::string file;
  bool is_new = false;  ///< of a file that is not there
  std::vector<std::string> before{};
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
  /// "3 files, 5 lines".
  std::string cost() const { return std::to_string(files()) + " files, " + std::to_string(changed()) + " lines"; }
};

/// Of a page of docs/: its blocks that begin with "```diff".
inline std::vector<Example> examples_of(const std::string& page) {
  std::vector<Example> found;
  std::string title, file;
  bool inside = false;
  for (const std::string& line : lines_of(SLUICE_SOURCE_DIR "/docs/" + page)) {
    if (line.starts_with("## ")) title = line.substr(3);
    if (line == "```diff") {
      inside = true;
      found.push_back({title, {}});
    } else if (line == "```") {
      inside = false;
    } else if (inside && line.starts_with("+++ ")) {
      file = line.substr(4);
    } else if (inside && line.starts_with("@@")) {
      found.back().hunks.push_back({file, line.starts_with("@@ -0,0 ")});
    } else if (inside) {
      Hunk& hunk = found.back().hunks.back();
      const bool adds = line.starts_with("+"), removes = line.starts_with("-");
      if (adds || removes) ++hunk.changed;
      if (!adds) hunk.before.push_back(line.empty() ? line : line.substr(1));
    }
  }
  return found;
}

/// In their order, but not side by side: others may have come between them.
inline void expect_to_fit(const Example& example) {
  for (const Hunk& hunk : example.hunks) {
    const std::filesystem::path path = SLUICE_SOURCE_DIR "/" + hunk.file;
    if (hunk.is_new) {
      EXPECT_FALSE(std::filesystem::exists(path)) << example.title << ": " << hunk.file << " is there already";
      continue;
    }
    const std::vector<std::string> lines = lines_of(path);
    auto at = lines.begin();
    for (const std::string& line : hunk.before) {
      at = std::find(at, lines.end(), line);
      EXPECT_TRUE(at != lines.end()) << example.title << ": " << hunk.file << " does not have, or not there,\n" << line;
    }
  }
}

}  // namespace sluice::test
