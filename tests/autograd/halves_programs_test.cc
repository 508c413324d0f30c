// Random programs: backward in two halves has the bits of one whole pass, whichever leaves are the inputs.
// SLUICE_DEEP=1 runs 10,000 of them; SLUICE_PROGRAM=n runs the n-th alone, and prints it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "random_program_arrays.h"

namespace sluice::testing {
namespace {

/// The leaves' gradients, as bytes. An empty list stands for none.
using Bytes = std::vector<std::vector<std::byte>>;

Bytes gradients_of(const Program& program, const Inputs& in, bool halves, unsigned mask) {
  Arrays v, inputs;
  for (std::size_t i = 0; i < program.leaves.size(); ++i) {
    v.push_back(from(in.leaves[i], dims(program.leaves[i])).with_grad());
    if ((mask >> i & 1U) != 0) inputs.push_back(v.back());
  }
  const Arrays leaves = v;
  for (int pass = 0; pass < 2; ++pass) {  // the second adds to what the first has set
    v = leaves;
    const NDArray loss = run_steps(program, v), seed = from({0.75}, {});
    if (!halves) {
      backward({loss}, {seed});
      continue;
    }
    WeightGradients later = backward_inputs({loss}, {seed}, inputs);
    seed.fill(100);  // what comes after the first half is not seen by the second
    for (const Step& s : program.steps) {
      if (is_write(s.code)) v[s.a].fill(0.5);
    }
    Bytes first;
    for (const NDArray& x : inputs) first.push_back(x.grad().defined() ? x.grad().to_bytes() : Bytes::value_type());
    later.run();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(first[i], inputs[i].grad().defined() ? inputs[i].grad().to_bytes() : Bytes::value_type())
          << "the second half changed the gradient of an input";
    }
  }
  Bytes out;
  for (const NDArray& x : leaves) out.push_back(x.grad().defined() ? x.grad().to_bytes() : Bytes::value_type());
  return out;
}

TEST(BackwardInHalves, HasTheBitsOfOnePassInRandomPrograms) {
  const char* const one = std::getenv("SLUICE_PROGRAM");
  const std::uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one ? 1 : std::getenv("SLUICE_DEEP") ? 10000 : test::on_streams() ? 30 : 300;
  std::cout << "programs " << first << " to " << first + count - 1 << "; SLUICE_PROGRAM=n runs the n-th\n";
  for (const int threads : {0, 1, 2, 4}) {  // 0: serial
    TestEngine test(std::max(1, threads), 1, threads == 0 ? EngineMode::serial : EngineMode::threaded);
    for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
      SCOPED_TRACE("program " + std::to_string(seed) + ", " + std::to_string(threads) + " threads");
      const Program program = Maker(seed).make();
      if (one && threads == 0) std::cout << program.text();
      const Inputs in(program);
      const auto mask = static_cast<unsigned>((seed + static_cast<std::uint64_t>(threads)) % 8);
      try {
        const Bytes whole = gradients_of(program, in, false, 0);
        EXPECT_EQ(gradients_of(program, in, true, mask), whole) << "inputs " << mask << '\n' << program.text();
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what() << '\n' << program.text();
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
