// SLUICE_ANOMALY: a program without a scope is looked at as it is. The programs are tests of this file, which another
// test runs once more, in processes of their own.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>

#include "../support/devices.h"
#include "sluice/tests/support/program.h"

namespace sluice {
namespace {

/// Its values are what they are, whatever the environment says.
TEST(AnomalyEverywhere, AProgram) {
  const NDArray w = from({1.0F, 0.0F}, {2}).with_grad();
  {
    const AnomalyScope quiet({.nan = false, .inf = false});
    log(w * 0).wait();
  }
  const LayerScope layer("encoder.2");
  sum(log(w)).backward();
  EXPECT_EQ(w.grad().to_vector<float>()[0], 1);
  (w / 0).wait();  // infinity and NaN
}

TEST(AnomalyEverywhere, AProgramOnAnotherThread) {
  std::thread([] { sqrt(full({2}, -1, DType::f64)).wait(); }).join();
}

test::Outcome run(const char* program, const char* value) {
  return test::run_program(std::filesystem::read_symlink("/proc/self/exe"),
                           {std::string("--gtest_filter=AnomalyEverywhere.") + program},
                           {.environment = {{"SLUICE_ANOMALY", value}}});
}
/// What it writes to stderr, without the line's number.
std::string told(const char* program, const char* value) {
  const test::Outcome outcome = run(program, value);
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  const std::size_t at = outcome.err.find(".cc:"), end = outcome.err.find_first_not_of("0123456789", at + 4);
  return at == std::string::npos ? outcome.err : outcome.err.substr(0, at + 4) + outcome.err.substr(end);
}

TEST(AnomalyEverywhere, TheEnvironmentTurnsItOn) {
  EXPECT_EQ(told("AProgram", ""), "");
  EXPECT_EQ(told("AProgram", "0"), "");
  const std::string place = test::on_streams() ? " on " + to_string(test::device()) : "";
  const std::string begin = "sluice: anomaly: [", file = "] anomaly_everywhere_test.cc:";
  EXPECT_EQ(told("AProgram", "1"), begin + "log" + file + " in encoder.2" + place +
                                       ": -inf at (1,) of the result (2,) f32; all that it read was finite\n");
  EXPECT_EQ(told("AProgram", "nan"), begin + "div" + file + " in encoder.2" + place +
                                         ": nan at (1,) of the result (2,) f32; all that it read was finite\n");
  EXPECT_EQ(told("AProgramOnAnotherThread", "1"),
            begin + "sqrt" + file + ": nan at (0,) of the result (2,) f64; all that it read was finite\n");
  const test::Outcome wrong = run("AProgram", "yes");
  EXPECT_NE(wrong.status, 0);
  EXPECT_NE(wrong.out.find("SLUICE_ANOMALY=yes: 0, 1 or nan is wanted"), std::string::npos) << wrong.out;
}

}  // namespace
}  // namespace sluice
