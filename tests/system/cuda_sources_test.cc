// The CUDA backend is one: nvcc and the double compile the same files, and only the seams ask which of the two it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "paths.h"

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The sources that lie in the backend's two folders.
std::set<std::string> sources_there() {
  std::set<std::string> found;
  for (const char* folder : {"resources/cuda/backend", "operators/backends/cuda"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(SLUICE_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".cc" || extension == ".cu") found.insert(entry.path().string());
    }
  }
  return found;
}

TEST(CudaSources, TheDoubleCompilesEveryFileOfTheBackend) {
  std::set<std::string> compiled;
  std::istringstream list(SLUICE_CUDA_SOURCES_OF_DOUBLE);
  for (std::string file; std::getline(list, file, ':');) compiled.insert(file);
  EXPECT_EQ(compiled, sources_there());
}

// Without a toolkit there is no target to ask, so that the lines that make the two are compared.
TEST(CudaSources, NvccCompilesTheSameList) {
  const std::string nvcc = text_of(fs::path(SLUICE_SOURCE_DIR) / "cmake/targets.cmake");
  const std::string own = text_of(fs::path(SLUICE_SOURCE_DIR) / "tests/CMakeLists.txt");
  EXPECT_THAT(nvcc, testing::HasSubstr("add_library(sluice_cuda MODULE ${SLUICE_CUDA_SOURCES})"));
  EXPECT_THAT(own, testing::HasSubstr("add_library(sluice_cuda_on_double STATIC EXCLUDE_FROM_ALL "
                                      "${SLUICE_CUDA_SOURCES})"));
  EXPECT_THAT(nvcc, testing::Not(testing::HasSubstr("target_sources(sluice_cuda ")));
  EXPECT_THAT(own, testing::Not(testing::HasSubstr("target_sources(sluice_cuda_on_double")));
}

TEST(CudaSources, OnlyTheSeamsAskWhichOfTheTwoItIs) {
  // host_device.h says what a function on both sides is called, for the CPU's files too.
  const std::set<std::string> seams = {"operators/backends/cuda/kernel.h", "operators/backends/cuda/tensor_cores.h",
                                       "resources/cuda/backend/order.h",   "resources/cuda/backend/library.cc",
                                       "resources/cuda/backend/ranges.h",  "resources/host_device.h"};
  constexpr std::array kQuestions = {"__CUDACC__", "__NVCC__", "__CUDA_ARCH__", "cuda_double", "__has_include"};
  std::set<std::string> asking;
  for (const char* floor : {"engine", "schedule", "resources", "ndarray", "operators", "autograd", "nn", "parallel",
                            "examples", "sluice.h"}) {
    const fs::path root = fs::path(SLUICE_SOURCE_DIR) / floor;
    std::vector<fs::path> files;
    if (fs::is_directory(root)) {
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    } else {
      files.push_back(root);
    }
    for (const fs::path& file : files) {
      const std::string text = text_of(file);
      if (std::any_of(kQuestions.begin(), kQuestions.end(),
                      [&](const char* word) { return text.find(word) != std::string::npos; })) {
        asking.insert(file.lexically_relative(SLUICE_SOURCE_DIR).string());
      }
    }
  }
  EXPECT_EQ(asking, seams);
}

}  // namespace
