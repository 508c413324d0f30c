// The judge's programs on the protocol as it is: a slice of their schedules, which must find nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "programs.h"
#include "slice.h"
#include "sluice/engine/explore/explore.h"

namespace sluice::mutants {
namespace {

const std::uint64_t kSchedules = testing::slice(100, 1500, 20'000);

/// All but those that are nothing without what the judge hangs into the protocol (by_hand.txt: harness): few errors
/// that are kept, looks for circles that are always due, and a lock of those who look that the explorer knows.
std::vector<Drawn> programs_without_harness() {
  std::vector<Drawn> all = all_programs();
  for (const std::string_view name : {"many errors", "circles", "looks"})
    std::erase_if(all, [name](const Drawn& program) { return program.name == name; });
  return all;
}

class Programs : public ::testing::TestWithParam<Drawn> {};

TEST_P(Programs, FindNothing) {
  for (std::uint64_t seed = 1; seed <= kSchedules; ++seed) {
    detail::Explorer::get().reset(seed);
    ASSERT_EQ(GetParam().run(seed), "") << "seed " << seed;
  }
}

std::string name_of(const ::testing::TestParamInfo<Drawn>& program) {
  std::string name = program.param.name;
  std::erase(name, ' ');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Judge, Programs, ::testing::ValuesIn(programs_without_harness()), name_of);

}  // namespace
}  // namespace sluice::mutants
