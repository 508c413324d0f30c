// Random programs of views, writes in place and operators: values, first and second gradients against an interpreter
// that has no tape, and the same bits on any number of threads and in serial mode. SLUICE_DEEP=1 runs 10,000 of them;
// SLUICE_PROGRAM=n runs the n-th alone, and prints it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "random_program_arrays.h"

namespace sluice::testing {
namespace {

/// What is compared: the loss, all values at the end, first and second gradients, each as one list.
struct Outcome {
  Doubles loss, values, first, second, again;
};

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

// ---- the library

void append(Doubles& to, const NDArray& x, const NDArray& like) {
  const Doubles more = x.defined() ? x.to_vector<double>() : Doubles(static_cast<std::size_t>(like.count()), 0.0);
  to.insert(to.end(), more.begin(), more.end());
}

Outcome computed(const Program& program, const Inputs& in) {
  Arrays v, directions;
  for (std::size_t i = 0; i < program.leaves.size(); ++i) {
    v.push_back(from(in.leaves[i], dims(program.leaves[i])).with_grad());
    directions.push_back(from(in.directions[i], dims(program.leaves[i])));
  }
  const Arrays leaves = v;
  const NDArray loss = run_steps(program, v);
  Outcome out;
  append(out.loss, loss, loss);
  for (const NDArray& x : v) append(out.values, x, x);
  const Arrays first = grad(loss, leaves, {.create_graph = true});
  for (std::size_t i = 0; i < leaves.size(); ++i) append(out.first, first[i], leaves[i]);
  // What was recorded is not changed by writes that come later.
  for (const Step& s : program.steps) {
    if (is_write(s.code)) v[s.a].fill(0.5);
  }
  NDArray along = sum(leaves[0] * 0.0);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (first[i].defined()) along = along + sum(first[i] * directions[i]);
  }
  const Arrays second = grad(along, leaves, {.retain = true});
  for (std::size_t i = 0; i < leaves.size(); ++i) append(out.second, second[i], leaves[i]);
  loss.backward();
  for (const NDArray& leaf : leaves) append(out.again, leaf.grad(), leaf);
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

bool same_bits(const Outcome& a, const Outcome& b) {
  const auto same = [](const Doubles& x, const Doubles& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
  };
  return same(a.loss, b.loss) && same(a.values, b.values) && same(a.first, b.first) && same(a.second, b.second) &&
         same(a.again, b.again);
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
