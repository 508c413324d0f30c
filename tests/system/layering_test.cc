// The order of the floors: a folder includes only folders listed before it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "paths.h"

namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::array kFloors = {"engine",   "schedule", "resources", "ndarray", "operators",
                                "autograd", "nn",       "parallel",  "examples"};

// The place of a folder in the order, or -1 for what is none of the floors.
int rank(const fs::path& folder) {
  for (size_t i = 0; i < kFloors.size(); ++i) {
    if (folder == kFloors[i]) return static_cast<int>(i);
  }
  return -1;
}

struct Layering {
  std::vector<std::string> violations;                  // "file:line: what is wrong"
  std::map<std::string, int> files;                     // how many were read, by floor
  std::map<std::string, std::set<std::string>> arrows;  // which headers of other floors a floor includes
};

// Says what is wrong with `#include "name"` in a file that lies in `folder` (relative to the root), or "".
std::string judge(const fs::path& root, const fs::path& folder, const std::string& name) {
  const int own = rank(*folder.begin());
  fs::path target(name);
  if (*target.begin() == "sluice") {
    target = target.lexically_relative("sluice").lexically_normal();
    if (!target.has_parent_path()) {  // the umbrella header brings every floor below the examples
      return *folder.begin() == "examples" ? "" : name + " is for programs, not for a floor";
    }
  } else {
    const bool beside = fs::exists(root / folder / target);
    if (!beside && rank(*target.begin()) >= 0) return name + " lacks its sluice/";
    target = (folder / target).lexically_normal();
    if (!beside || !fs::exists(root / target)) return "";  // a library of others
  }
  const int other = rank(*target.begin());
  if (other < 0) return name + " is on no floor";
  return other > own ? name + " is above " + kFloors[static_cast<size_t>(own)] : "";
}

// Of "sluice/engine/engine.h" the floor, and the name without its prefix; nothing of others.
std::pair<std::string, std::string> of_floor(const std::string& name) {
  const fs::path target = fs::path(name).lexically_relative("sluice").lexically_normal();
  if (!name.starts_with("sluice/") || rank(*target.begin()) < 0) return {};
  return {target.begin()->string(), target.string()};
}

// What a line of source includes, or "".
std::string included(std::string_view line) {
  const auto skip_blanks = [&] { line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size())); };
  for (const std::string_view word : {"#", "include"}) {
    skip_blanks();
    if (!line.starts_with(word)) return "";
    line.remove_prefix(word.size());
  }
  skip_blanks();
  if (!line.starts_with('"') && !line.starts_with('<')) return "";
  return std::string(line.substr(1, line.find_first_of("\">", 1) - 1));
}

Layering check(const fs::path& root) {
  Layering result;
  for (const char* floor : kFloors) {
    if (!fs::exists(root / floor)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / floor)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh") continue;
      ++result.files[floor];
      const fs::path file = entry.path().lexically_relative(root);
      std::ifstream in(entry.path());
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        const std::string name = included(line);
        if (name.empty()) continue;
        if (const auto [other, header] = of_floor(name); !other.empty() && other != floor)
          result.arrows[floor].insert(header);
        const std::string wrong = judge(root, file.parent_path(), name);
        if (!wrong.empty()) result.violations.push_back(file.string() + ":" + std::to_string(number) + ": " + wrong);
      }
    }
  }
  return result;
}

TEST(Layering, NoFolderIncludesOneAboveIt) {
  const Layering layering = check(SLUICE_SOURCE_DIR);
  EXPECT_THAT(layering.violations, IsEmpty());
  for (const char* floor : kFloors) EXPECT_TRUE(layering.files.contains(floor)) << floor << " has no file";
}

// The picture in docs/architecture.md, line by line: a floor, and those that its files include.
TEST(Layering, ThePictureIsThatOfTheIncludes) {
  std::map<std::string, std::set<std::string>> drawn, written;
  for (const auto& [floor, headers] : check(SLUICE_SOURCE_DIR).arrows) {
    if (floor == "examples" || floor == "schedule") continue;
    for (const std::string& header : headers) drawn[floor].insert(of_floor("sluice/" + header).first);
  }
  std::ifstream page(SLUICE_SOURCE_DIR "/docs/architecture.md");
  std::string line;
  while (std::getline(page, line) && line != "<!-- floors -->") {
  }
  while (std::getline(page, line) && line != "<!-- end -->") {
    std::istringstream words(line);
    std::string floor, other;
    words >> floor;
    EXPECT_GE(rank(floor), 0) << line;
    while (floor != "schedule" && words >> other) written[floor].insert(other);
  }
  EXPECT_EQ(written, drawn);
}

TEST(Layering, SchedulesStandBesideTheEngine) {
  const Layering layering = check(SLUICE_SOURCE_DIR);
  EXPECT_THAT(layering.arrows.at("schedule"), ElementsAre("engine/bytes_in_words.h", "engine/number_text.h"));
  EXPECT_FALSE(layering.arrows.contains("engine"));
}

/// Groups of files of one floor each of which includes all others of the group, directly or not. A header and the
/// source of its name count as one file.
int circles_of(const fs::path& root, const std::string& floor) {
  std::map<std::string, std::set<std::string>> includes;
  for (const auto& entry : fs::recursive_directory_iterator(root / floor)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(root).replace_extension().string();
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      const auto [other, header] = of_floor(included(line));
      const std::string target = fs::path(header).replace_extension().string();
      if (other == floor && target != name) includes[name].insert(target);
    }
  }
  // What each file reaches.
  std::map<std::string, std::set<std::string>> reached;
  for (const auto& [name, direct] : includes) {
    std::vector<std::string> left(direct.begin(), direct.end());
    while (!left.empty()) {
      const std::string next = left.back();
      left.pop_back();
      if (reached[name].insert(next).second) left.insert(left.end(), includes[next].begin(), includes[next].end());
    }
  }
  std::set<std::set<std::string>> groups;
  for (auto& [name, all] : reached) {
    std::set<std::string> group;
    for (const std::string& other : all) {
      if (reached.contains(other) && reached[other].contains(name)) group.insert(other);
    }
    if (!group.empty()) groups.insert(group);
  }
  return static_cast<int>(groups.size());
}

// The engine's are its core, whose parts are members of one class, and the explorer's strands. No floor may get more.
TEST(Layering, FilesInCircles) {
  const std::map<std::string, int> most = {{"engine", 2},    {"schedule", 0}, {"resources", 1}, {"ndarray", 2},
                                           {"operators", 4}, {"autograd", 0}, {"nn", 0},        {"parallel", 0}};
  for (const auto& [floor, count] : most) EXPECT_EQ(circles_of(SLUICE_SOURCE_DIR, floor), count) << floor;
}

// A tree of one's own, to show that the check sees what it is for.
class PlantedTree : public testing::Test {
 protected:
  PlantedTree() : root_(fs::path(testing::TempDir()) / ("layering_" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
    for (const char* floor : kFloors) put(std::string(floor) + "/" + floor + ".h", "#pragma once\n");
    put("sluice.h", "#pragma once\n");
    put("bench/bench.h", "#pragma once\n");
  }
  ~PlantedTree() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::vector<std::string> violations() const { return check(root_).violations; }

 private:
  fs::path root_;
};

TEST_F(PlantedTree, DownwardsAndForeignIncludesAreFine) {
  put("nn/layer.cc",
      "#include \"sluice/autograd/autograd.h\"\n#include \"sluice/nn/nn.h\"\n#include \"nn.h\"\n"
      "#include \"../engine/engine.h\"\n#include <vector>\n#include <tbb/parallel_for.h>\n");
  put("examples/program.cc", "#include \"sluice/sluice.h\"\n#include \"sluice/parallel/parallel.h\"\n");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(PlantedTree, AnIncludeUpwardsIsFound) {
  put("ndarray/bad.cc", "// a comment\n#include \"sluice/operators/operators.h\"\n");
  EXPECT_THAT(violations(), ElementsAre("ndarray/bad.cc:2: sluice/operators/operators.h is above ndarray"));
}

TEST_F(PlantedTree, AngleBracketsAndDeeperFoldersDoNotHideIt) {
  put("operators/backends/cpu/bad.cu", "#  include <sluice/nn/nn.h>\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("is above operators")));
}

TEST_F(PlantedTree, RelativePathsDoNotHideIt) {
  put("engine/bad.h", "#include \"../resources/resources.h\"\n");
  put("autograd/bad.h", "#include \"sluice/engine/../nn/nn.h\"\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("is above engine"), HasSubstr("is above autograd")));
}

TEST_F(PlantedTree, TheUmbrellaIsForProgramsAlone) {
  put("parallel/bad.cc", "#include \"sluice/sluice.h\"\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("is for programs")));
}

TEST_F(PlantedTree, PathsWithoutTheirPrefixAndOtherFoldersAreFound) {
  put("nn/bad.cc", "#include \"engine/engine.h\"\n#include \"sluice/bench/bench.h\"\n#include \"../bench/bench.h\"\n");
  EXPECT_THAT(violations(),
              ElementsAre(HasSubstr("lacks its sluice/"), HasSubstr("on no floor"), HasSubstr("on no floor")));
}

}  // namespace
