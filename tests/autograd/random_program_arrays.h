// The steps of random programs (random_program.h), run on arrays.
#pragma once

#include <vector>

#include "../ndarray/ndarray_test_support.h"
#include "hyper_dual.h"

namespace sluice::testing {

using Doubles = std::vector<double>;
using Arrays = std::vector<NDArray>;

inline Dims dims(const Sizes& sizes) { return Dims(std::span<const std::int64_t>(sizes)); }

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

inline NDArray view(const Step& s, const NDArray& x) {
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

inline NDArray rows_of(const Step& s) { return from(s.rows, {static_cast<std::int64_t>(s.rows.size())}); }

inline NDArray compute(const Step& s, const Arrays& v) {
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

inline void write(const Step& s, Arrays& v) {
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

inline NDArray weights_like(const NDArray& x) {
  Doubles w;
  for (std::int64_t i = 0; i < x.count(); ++i) w.push_back(Interpreter::weight(static_cast<std::size_t>(i)));
  return from(w, x.shape());
}

/// Runs the program. `v` has the leaves at first, and all values at the end. Returns the loss.
inline NDArray run_steps(const Program& program, Arrays& v) {
  NDArray loss = sum(v[0] * 0.0);
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
  return loss;
}

}  // namespace sluice::testing
