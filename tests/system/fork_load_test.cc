// Failure case 37 under load: a child of a process whose threads use arrays, make engines, or are in the midst of their
// first use of the library, can do all of that itself. tests/deep.sh forks has more of the same.
#include <gtest/gtest.h>

#include <string>

#include "paths.h"
#include "sluice/engine/detail/sanitizers.h"
#include "sluice/tests/support/program.h"

namespace sluice {
namespace {

#ifndef SLUICE_SANITIZED  // a child has a sanitizer's own locks as they were
void expect_well(const char* mode, int count) {
  const test::Outcome run = test::run_program(SLUICE_BINARY_DIR "/tests/fork_load", {mode, std::to_string(count)});
  EXPECT_EQ(run.status, 0) << run.out << run.err << (run.timed_out ? "it took too long" : "");
}

TEST(Fork, Case37UnderLoad) { expect_well("load", 400); }
TEST(Fork, Case37WhileTheLibraryIsUsedForTheFirstTime) { expect_well("first", 40); }
#endif

}  // namespace
}  // namespace sluice
