// Random array programs on two GPUs of the double and a CPU: what each sees under threads is what it sees in serial
// mode on the same devices, bit by bit.
#include "../system/array_programs.h"

#include <cstdio>
#include <cstdlib>

#include "support.h"
#include "test_kernels.h"

namespace sluice::testing {
namespace {

std::vector<std::string> run(const ArrayProgram& program, EngineMode mode, Coverage* coverage = nullptr) {
  cuda_double::Options options;
  options.devices = 2;
  options.seed = program.seed + 1;
  options.random_delay = std::chrono::microseconds(mode == EngineMode::serial ? 0 : program.seed % 3 * 10);
  EngineOptions engine;
  engine.mode = mode;
  engine.mode_given = true;
  engine.threads = 3;
  OnDouble on(options, {}, engine);
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  const Device devices[] = {cpu(0), gpu(0), gpu(1)};
  return run_array_program(program, on.engine(), devices, coverage, fill_with_sums);
}

/// Those of the seeds from `first` on. SLUICE_ARRAY_PROGRAM=SEED runs that one alone.
void run_programs(std::uint64_t first, std::uint64_t programs) {
#ifdef SLUICE_SANITIZED
  programs /= 10;
#endif
  if (const char* const seed = std::getenv("SLUICE_ARRAY_PROGRAM")) {
    first = std::strtoull(seed, nullptr, 10);
    programs = 1;
  }
  Coverage coverage;
  for (std::uint64_t seed = first; seed < first + programs && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("again: SLUICE_ARRAY_PROGRAM=" + std::to_string(seed));
    const ArrayProgram program = make_array_program(seed);
    ASSERT_GE(program.steps.size(), 50u);
    const std::vector<std::string> serial = run(program, EngineMode::serial, &coverage),
                                   threaded = run(program, EngineMode::threaded);
    ASSERT_EQ(serial.size(), threaded.size());
    for (std::size_t i = 0; i < serial.size(); ++i) {
      ASSERT_EQ(serial[i], threaded[i]) << "what was seen as number " << i;
    }
  }
  std::printf("%llu programs\n%s", static_cast<unsigned long long>(programs), coverage.table().c_str());
}

/// Two thousand programs of 60 steps, in four tests, so that they run side by side.
class CudaArrayPrograms : public ::testing::TestWithParam<int> {};
TEST_P(CudaArrayPrograms, FiveHundredEqualSerialMode) {
  run_programs(static_cast<std::uint64_t>(GetParam()) * 500, 500);
}
INSTANTIATE_TEST_SUITE_P(Seeds, CudaArrayPrograms, ::testing::Range(0, 4));

}  // namespace
}  // namespace sluice::testing
