// Random programs of views, writes in place and operators: values, first and second gradients against an interpreter
// that has no tape, and the same bits on any number of threads and in serial mode. SLUICE_DEEP=1 runs 10,000 of them;
// SLUICE_PROGRAM=n runs the n-th alone, and prints it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "../ndarray/ndarray_test_support.h"
#include "hyper_dual.h"

namespace sluice::testing {
namespace {

using Doubles = std::vector<double>;
using Arrays = std::vector<NDArray>;

Dims dims(const Sizes& sizes) { return Dims(std::span<const std::int64_t>(sizes)); }

/// What is compared: the loss, all values at the end, first and second gradients, each as one list.
struct Outcome {
  Doubles loss, values, first, second, again;
};

struct Inputs {
  std::vector<Doubles> leaves, directions;
  explicit Inputs(const Program& program) {
    std::mt19937_64 random(program.seed + 1);
    const auto next = [&] { return static_cast<double>(random() % 2000001) / 1e6 - 1; };
    for (const Sizes& shape : program.leaves) {
      Doubles x, v;
      for (std::int64_t i = 0; i < count_of(shape); ++i) x.push_back(next()), v.push_back(next());
      leaves.push_back(x);
      directions.push_back(v);
    }
  }
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

NDArray view(const Step& s, const NDArray& x) {
  switch (s.code) {
    case Code::step_slice: {
      const Slice every = slice(s.begin, x.size(s.axis), 2);
      return s.axis == 0 ? x(every) : s.axis == 1 ? x(all, every) : x(all, all, every);
    }
    case Code::narrow:
      return x.narrow(s.axis, s.begin, s.end);
    case Code::index:
      return x(s.begin);
    case Code::transpose:
      return x.transpose();
    case Code::flip:
      return x.flip(s.axis);
    case Code::broadcast:
      return x.broadcast_to(dims(s.shape));
    case Code::flatten:
      return x.flatten();
    case Code::diagonal:
      return x.diagonal();
    default:
      return x.unsqueeze(s.axis);
  }
}

NDArray rows_of(const Step& s) { return from(s.rows, {static_cast<std::int64_t>(s.rows.size())}); }

NDArray compute(const Step& s, const Arrays& v) {
  const NDArray &a = v[s.a], &b = v[s.b], &c = v[s.c];
  switch (s.code) {
    case Code::sin:
      return sin(a);
    case Code::cos:
      return cos(a);
    case Code::tanh:
      return tanh(a);
    case Code::sigmoid:
      return sigmoid(a);
    case Code::exp:
      return exp(a);
    case Code::neg:
      return -a;
    case Code::square:
      return square(a);
    case Code::copy:
      return a.copy();
    case Code::detach:
      return a.detach();
    case Code::add:
      return a + b;
    case Code::sub:
      return a - b;
    case Code::mul:
      return a * b;
    case Code::guarded_div:
      return a / (b * b + 1.0);
    case Code::select:
      return where(a > 0.1234, b, c);
    case Code::sum_axis:
      return sum(a, s.axis);
    case Code::cumsum:
      return cumsum(a, s.axis);
    case Code::softmax:
      return softmax(a, s.axis);
    case Code::concat:
      return concat(Arrays{a, b}, 0);
    case Code::matmul:
      return matmul(a, b);
    default:
      return a(rows_of(s));
  }
}

void write(const Step& s, Arrays& v) {
  NDArray& a = v[s.a];
  const NDArray b = v[s.b];
  switch (s.code) {
    case Code::assign:
      a.assign(b);
      break;
    case Code::add_to:
      a += b;
      break;
    case Code::sub_from:
      a -= b;
      break;
    case Code::mul_by:
      a *= b;
      break;
    case Code::fill:
      a.fill(s.number);
      break;
    case Code::add_number:
      a += s.number;
      break;
    case Code::mul_number:
      a *= s.number;
      break;
    case Code::assign_rows:
      a(rows_of(s)) = b;
      break;
    default:
      a(rows_of(s)) += b;
      break;
  }
}

NDArray weights_like(const NDArray& x) {
  Doubles w;
  for (std::int64_t i = 0; i < x.count(); ++i) w.push_back(Interpreter::weight(static_cast<std::size_t>(i)));
  return from(w, x.shape());
}

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
  NDArray loss = sum(leaves[0] * 0.0);
  for (const Step& s : program.steps) {
    if (s.code == Code::term) {
      loss = loss + sum(v[s.a] * weights_like(v[s.a]));
    } else if (is_view(s.code)) {
      v.push_back(view(s, v[s.a]));
    } else if (is_write(s.code)) {
      write(s, v);
    } else {
      v.push_back(compute(s, v));
    }
  }
  Outcome out;
  append(out.loss, loss, loss);
  for (const NDArray& x : v) append(out.values, x, x);
  const Arrays first = grad(loss, leaves, true);
  for (std::size_t i = 0; i < leaves.size(); ++i) append(out.first, first[i], leaves[i]);
  // What was recorded is not changed by writes that come later.
  for (const Step& s : program.steps) {
    if (is_write(s.code)) v[s.a].fill(0.5);
  }
  NDArray along = sum(leaves[0] * 0.0);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (first[i].defined()) along = along + sum(first[i] * directions[i]);
  }
  const Arrays second = grad(along, leaves, false, true);
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
