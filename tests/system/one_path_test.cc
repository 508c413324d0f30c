// No kernel is called, and nothing is pushed on arrays, beside the path of the registry (docs/decisions/0011).
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of std::regex where AddressSanitizer is on (GCC bug 105562).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "paths.h"

namespace {

namespace fs = std::filesystem;

/// The code of a file, without comments.
std::string code_of(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  for (std::string line; std::getline(file, line);) text += line.substr(0, line.find("//")) + "\n";
  return text;
}

/// The files of the floors above the engine whose code has something that fits.
std::set<std::string> files_with(const std::string& pattern) {
  const std::regex wanted(pattern);
  const fs::path root(SLUICE_SOURCE_DIR);
  std::set<std::string> found;
  for (const char* floor : {"ndarray", "operators", "autograd", "nn", "parallel", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / floor)) {
      const std::string end = entry.path().extension().string();
      if (end != ".h" && end != ".cc" && end != ".inc" && end != ".cu") continue;
      if (std::regex_search(code_of(entry.path()), wanted)) found.insert(fs::relative(entry.path(), root).string());
    }
  }
  return found;
}

using Files = std::set<std::string>;

// Who calls a kernel hands it an ArrayContext, which only the operation of a push makes.
TEST(OnePath, AKernelIsCalledByTheOperationOfItsPushAlone) {
  EXPECT_EQ(files_with(R"(\bArrayContext(\s+\w+)?\s*[({])"),
            (Files{"ndarray/array_call.cc", "ndarray/device_call.cc", "ndarray/host_run.cc", "ndarray/pending_call.cc",
                   "ndarray/push.h"}));
  EXPECT_EQ(files_with(R"((->|\.)run\b(?!\s*=))"),
            (Files{"autograd/backward.cc",                   // a run of the tape
                   "autograd/halves.cc",                     // and one in two halves
                   "ndarray/push.cc",                        // the operation's own call, as a whole
                   "operators/apply.cc",                     // the kernel that was chosen goes into the push
                   "operators/backends/device_transfer.cc",  // a function is handed to the registry
                   "operators/registry.cc",                  // whether there is a function
                   "parallel/layer_bytes.cc",                // the second half of a run of the tape
                   "parallel/pipeline_step.cc"}));           // the same
}

TEST(OnePath, AKernelIsChosenByThePathAlone) {
  EXPECT_EQ(files_with(R"((->|\.)kernels?\()"),
            (Files{"operators/apply.cc", "operators/compose.cc",  // the latter two: whether there is one
                   "operators/recurrent.cc"}));
  EXPECT_EQ(files_with(R"(\bKernelFunction\b)"),
            (Files{"operators/backends/cuda/kernels.h",  // hands functions to the registry
                   "operators/register.h", "operators/registry.h"}));
}

TEST(OnePath, ArraysArePushedByRowsAndOpaqueOpsAlone) {
  EXPECT_EQ(files_with(R"(\bpush_arrays\()"), (Files{"ndarray/host.cc",  // a borrow that updates
                                                     "ndarray/push.cc", "ndarray/push.h", "operators/apply.cc"}));
}

}  // namespace
