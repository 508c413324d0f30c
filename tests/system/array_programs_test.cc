// Random array programs: what each sees under threads is what it sees in serial mode, bit by bit.
#include "array_programs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"

namespace sluice::testing {
namespace {

enum class On : bool { cpu, sim };

std::vector<std::string> run(const ArrayProgram& program, On on, EngineMode mode, Coverage* coverage = nullptr) {
  EngineOptions options;
  options.mode = mode;
  options.mode_given = true;
  options.threads = 3;
  options.logical_cpus = on == On::cpu ? 3 : 1;
  const auto control = std::make_shared<SimControl>();
  control->print_reports(false);
  if (on == On::sim) {
    SimOptions sims;
    sims.random_delay = std::chrono::microseconds(mode == EngineMode::serial ? 0 : program.seed % 3 * 10);
    sims.seed = program.seed;
    sims.observer = order_record;
    sims.pinned_only = true;
    sims.control = control;
    options.providers.push_back(sim_devices(2, sims));
  }
  std::vector<std::string> seen;
  {
    Engine engine(options);
    engine.on_unobserved_error([](const ErrorRoot&) {});
    const Device cpus[] = {cpu(0), cpu(1), cpu(2)}, sims[] = {cpu(0), sim(0), sim(1)};
    seen = run_array_program(program, engine, on == On::cpu ? cpus : sims, coverage);
  }
  for (const std::string& report : control->take_reports()) ADD_FAILURE() << "seed " << program.seed << ": " << report;
  return seen;
}

/// Bytes are no text to print.
std::string shown(const std::string& seen) {
  if (seen.starts_with("step ")) return seen;
  std::string text = std::to_string(seen.size()) + " bytes:";
  for (std::size_t i = 0; i + sizeof(float) <= std::min<std::size_t>(seen.size(), 160); i += sizeof(float)) {
    float value;
    std::memcpy(&value, seen.data() + i, sizeof(value));
    text += ' ' + std::to_string(value);
  }
  return text;
}

/// False, and why, where the two runs differ.
::testing::AssertionResult same(const ArrayProgram& program, On on, Coverage* coverage = nullptr) {
  const std::vector<std::string> serial = run(program, on, EngineMode::serial, coverage);
  const std::vector<std::string> threaded = run(program, on, EngineMode::threaded);
  for (std::size_t i = 0; i < std::min(serial.size(), threaded.size()); ++i) {
    if (serial[i] == threaded[i]) continue;
    return ::testing::AssertionFailure() << "seed " << program.seed << ", " << program.steps.size()
                                         << " steps: what was seen as number " << i
                                         << " is\n  serial:   " << shown(serial[i])
                                         << "\n  threaded: " << shown(threaded[i]);
  }
  if (serial.size() == threaded.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "seed " << program.seed << ": " << serial.size() << " things were seen, and "
                                       << threaded.size();
}

/// Makes it as short as it still fails, and prints it.
void shorten(ArrayProgram program, On on) {
  const auto fails = [on](const ArrayProgram& p) {
    for (int i = 0; i < 20; ++i) {
      if (!same(p, on)) return true;
    }
    return false;
  };
  if (!fails(program)) return;
  for (std::size_t i = program.steps.size(); i-- > 0;) {
    ArrayProgram shorter = program;
    shorter.steps.erase(shorter.steps.begin() + static_cast<std::ptrdiff_t>(i));
    if (fails(shorter)) program = shorter;
  }
  for (const ProgramStep& s : program.steps) {
    std::printf("%-18s %u %u %u %u\n", name_of(s.kind), s.a, s.b, s.c, s.d);
  }
}

/// SLUICE_ARRAY_PROGRAM=SEED runs that program alone, a hundred times, and shortens it first where it fails;
/// SLUICE_ARRAY_PROGRAMS=N runs those of the first N seeds.
void run_programs(On on, const ProgramOptions& options, std::uint64_t programs) {
  if (const char* seed = std::getenv("SLUICE_ARRAY_PROGRAM")) {
    const ArrayProgram program = make_array_program(std::strtoull(seed, nullptr, 10), options);
    shorten(program, on);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(same(program, on));
    return;
  }
  if (const char* const wanted = std::getenv("SLUICE_ARRAY_PROGRAMS")) programs = std::strtoull(wanted, nullptr, 10);
  Coverage coverage;
  int failures = 0;
  for (std::uint64_t seed = 0; seed < programs && failures < 5; ++seed) {
    const ::testing::AssertionResult result = same(make_array_program(seed, options), on, &coverage);
    EXPECT_TRUE(result) << "again: SLUICE_ARRAY_PROGRAM=" << seed;
    failures += !result;
  }
  std::printf("%llu programs\n%s", static_cast<unsigned long long>(programs), coverage.table().c_str());
  if (programs < 1000) return;
  // The mix is worth something only where every kind occurs, and errors neither never nor always.
  const auto steps = [](int k) {
    return k >= static_cast<int>(StepKind::step) && k <= static_cast<int>(StepKind::sgd_recover);
  };
  for (int k = 0; k < kStepKinds; ++k) {
    if (options.late_errors && steps(k)) continue;
    EXPECT_GT(coverage.run[static_cast<std::size_t>(k)], 300u) << k;
  }
  for (StepKind kind : {StepKind::item, StepKind::read, StepKind::good_step, StepKind::borrow}) {
    if (options.late_errors && kind == StepKind::good_step) continue;
    const auto k = static_cast<std::size_t>(kind);
    EXPECT_GT(coverage.errors[k], coverage.run[k] / 20) << name_of(kind);
    EXPECT_LT(coverage.errors[k], coverage.run[k] * 3 / 4) << name_of(kind);
  }
}

TEST(ArrayPrograms, AThousandOfThemEqualSerialMode) { run_programs(On::cpu, {}, 1000); }

TEST(ArrayPrograms, AThousandOnSimulatedDevicesEqualSerialMode) { run_programs(On::sim, {}, 1000); }

TEST(ArrayPrograms, OnSimulatedDevicesWithLateErrorsToo) { run_programs(On::sim, {.late_errors = true}, 1000); }

TEST(ArrayPrograms, AProgramIsItsSeed) {
  const ArrayProgram a = make_array_program(7), b = make_array_program(7), c = make_array_program(8);
  ASSERT_EQ(a.steps.size(), b.steps.size());
  const auto same_step = [](const ProgramStep& x, const ProgramStep& y) {
    return x.kind == y.kind && x.a == y.a && x.b == y.b && x.c == y.c && x.d == y.d;
  };
  EXPECT_TRUE(std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), same_step));
  EXPECT_FALSE(std::equal(a.steps.begin(), a.steps.end(), c.steps.begin(), same_step));
}

}  // namespace
}  // namespace sluice::testing
