// What a random program computes, as lists that can be compared to the bit.
#pragma once

#include <cstring>

#include "random_program_arrays.h"

namespace sluice::testing {

/// What is compared: the loss, all values at the end, first and second gradients, each as one list.
struct Outcome {
  Doubles loss, values, first, second, again;
};

/// How the arrays of a program are made from its leaves, and read: as they are, or of an owner.
struct Reading {
  NDArray (*made)(const NDArray& plain) = [](const NDArray& plain) { return plain; };
  Doubles (*read)(const NDArray& x) = [](const NDArray& x) { return x.to_vector<double>(); };
};

inline void append(Doubles& to, const NDArray& x, const NDArray& like, const Reading& how) {
  const Doubles more = x.defined() ? how.read(x) : Doubles(static_cast<std::size_t>(like.count()), 0.0);
  to.insert(to.end(), more.begin(), more.end());
}

/// Runs the program, and its first and second gradients.
inline Outcome computed(const Program& program, const Inputs& in, const Reading& how = {}) {
  Arrays v, directions;
  for (std::size_t i = 0; i < program.leaves.size(); ++i) {
    v.push_back(how.made(from(in.leaves[i], dims(program.leaves[i]))).with_grad());
    directions.push_back(from(in.directions[i], dims(program.leaves[i])));
  }
  const Arrays leaves = v;
  const NDArray loss = run_steps(program, v);
  Outcome out;
  append(out.loss, loss, loss, how);
  for (const NDArray& x : v) append(out.values, x, x, how);
  const Arrays first = grad(loss, leaves, {.create_graph = true});
  for (std::size_t i = 0; i < leaves.size(); ++i) append(out.first, first[i], leaves[i], how);
  // What was recorded is not changed by writes that come later.
  for (const Step& s : program.steps) {
    if (is_write(s.code)) v[s.a].fill(0.5);
  }
  NDArray along = sum(leaves[0] * 0.0);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (first[i].defined()) along = along + sum(first[i] * directions[i]);
  }
  const Arrays second = grad(along, leaves, {.retain = true});
  for (std::size_t i = 0; i < leaves.size(); ++i) append(out.second, second[i], leaves[i], how);
  loss.backward();
  for (const NDArray& leaf : leaves) append(out.again, leaf.grad(), leaf, how);
  return out;
}

inline bool same_bits(const Doubles& a, const Doubles& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

inline bool same_bits(const Outcome& a, const Outcome& b) {
  return same_bits(a.loss, b.loss) && same_bits(a.values, b.values) && same_bits(a.first, b.first) &&
         same_bits(a.second, b.second) && same_bits(a.again, b.again);
}

}  // namespace sluice::testing
