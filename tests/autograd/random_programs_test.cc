// Random programs of views, writes in place and operators: values, first and second gradients against an interpreter
// that has no tape, and the same bits on any number of threads and in serial mode. SLUICE_DEEP=1 runs 10,000 of them;
// SLUICE_PROGRAM=n runs the n-th alone, and prints it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "random_program_outcome.h"

namespace sluice::testing {
namespace {

// ---- the interpreter: one run for each element of the leaves

Outcome expected(const Program& program, const Inputs& in) {
  Outcome out;
  for (std::size_t leaf = 0; leaf < in.leaves.size(); ++leaf) {
    for (std::size_t element = 0; element < in.leaves[leaf].size(); ++element) {
      std::vector<std::vector<HyperDual>> leaves;
      for (std::size_t l = 0; l < in.leaves.size(); ++l) {
        leaves.emplace_back();
        for (std::size_t i = 0; i < in.leaves[l].size(); ++i) {
          leaves[l].push_back({in.leaves[l][i], l == leaf && i == element ? 1.0 : 0.0, in.directions[l][i], 0});
        }
      }
      Interpreter interpreter;
      const HyperDual loss = interpreter.run(program, leaves);
      out.first.push_back(loss.d);
      out.second.push_back(loss.de);
      if (!out.loss.empty()) continue;
      out.loss = {loss.v};
      for (std::size_t i = 0; i < interpreter.values(); ++i) {
        const Doubles v = interpreter.value(i);
        out.values.insert(out.values.end(), v.begin(), v.end());
      }
    }
  }
  out.again = out.first;
  return out;
}

// ---- comparing

bool near(const Doubles& a, const Doubles& b) {
  double scale = 1;
  for (double x : b) scale = std::max(scale, std::abs(x));
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e-9 * scale)) return false;
  }
  return true;
}

void check(const Program& program, const Outcome& got, const Outcome& want) {
  EXPECT_TRUE(near(got.loss, want.loss)) << "loss " << got.loss[0] << ", not " << want.loss[0];
  EXPECT_TRUE(near(got.values, want.values)) << "values";
  EXPECT_TRUE(near(got.first, want.first)) << "first gradients";
  EXPECT_TRUE(near(got.second, want.second)) << "second gradients";
  EXPECT_TRUE(near(got.again, want.again)) << "gradients by backward()";
  if (::testing::Test::HasFailure()) std::cerr << program.text();
}

TEST(RandomPrograms, AgreeWithAnInterpreterWithoutTape) {
  const char* const one = std::getenv("SLUICE_PROGRAM");
  const std::uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one ? 1 : std::getenv("SLUICE_DEEP") ? 10000 : 300;
  std::cout << "programs " << first << " to " << first + count - 1 << "; SLUICE_PROGRAM=n runs the n-th\n";
  struct Mode {
    const char* name;
    int threads;
    EngineMode mode;
  };
  const Mode modes[] = {{"1 thread", 1, EngineMode::threaded},
                        {"2 threads", 2, EngineMode::threaded},
                        {"4 threads", 4, EngineMode::threaded},
                        {"serial", 1, EngineMode::serial}};
  constexpr std::uint64_t kAtOnce = 250;
  for (std::uint64_t start = first; start < first + count && !HasFailure(); start += kAtOnce) {
    const std::uint64_t end = std::min(first + count, start + kAtOnce);
    std::vector<Outcome> results;
    for (const Mode& mode : modes) {
      TestEngine test(mode.threads, 1, mode.mode);
      for (std::uint64_t seed = start; seed < end && !HasFailure(); ++seed) {
        SCOPED_TRACE("program " + std::to_string(seed) + ", " + mode.name);
        const Program program = Maker(seed).make();
        if (one && &mode == modes) std::cout << program.text();
        const Inputs in(program);
        try {
          Outcome got = computed(program, in);
          if (&mode == modes) {
            check(program, got, expected(program, in));
            results.push_back(std::move(got));
          } else {
            EXPECT_TRUE(same_bits(got, results[seed - start])) << "not the bits of 1 thread\n" << program.text();
          }
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what() << '\n' << program.text();
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
