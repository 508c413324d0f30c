// The interpreter of random programs: hyper-dual numbers over plain vectors. It computes forwards, element by element,
// and writes in place; it has no tape, and shares nothing with the library.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "random_program.h"

namespace sluice::testing {

/// v + d e1 + e e2 + de e1 e2, where e1^2 = e2^2 = 0: a value, its derivatives in two directions, and the second one.
struct HyperDual {
  double v = 0, d = 0, e = 0, de = 0;
};
inline HyperDual operator+(HyperDual a, HyperDual b) { return {a.v + b.v, a.d + b.d, a.e + b.e, a.de + b.de}; }
inline HyperDual operator-(HyperDual a, HyperDual b) { return {a.v - b.v, a.d - b.d, a.e - b.e, a.de - b.de}; }
inline HyperDual operator*(HyperDual a, HyperDual b) {
  return {a.v * b.v, a.v * b.d + a.d * b.v, a.v * b.e + a.e * b.v, a.v * b.de + a.d * b.e + a.e * b.d + a.de * b.v};
}
/// f(a), from f and its derivatives at a.v.
inline HyperDual chain(HyperDual a, double f, double f1, double f2) {
  return {f, f1 * a.d, f1 * a.e, f1 * a.de + f2 * a.d * a.e};
}
inline HyperDual inverse(HyperDual a) { return chain(a, 1 / a.v, -1 / (a.v * a.v), 2 / (a.v * a.v * a.v)); }
inline HyperDual exponential(HyperDual a) { return chain(a, std::exp(a.v), std::exp(a.v), std::exp(a.v)); }

class Interpreter {
 public:
  using Elements = std::vector<HyperDual>;

  /// The loss. `leaves` are the elements of the leaves.
  HyperDual run(const Program& program, const std::vector<Elements>& leaves) {
    for (std::size_t i = 0; i < leaves.size(); ++i) make(program.leaves[i], leaves[i]);
    HyperDual loss;
    for (const Step& s : program.steps) step(s, loss);
    return loss;
  }
  std::size_t values() const { return values_.size(); }
  std::vector<double> value(std::size_t i) const {
    std::vector<double> out;
    for (const HyperDual& x : read(values_[i])) out.push_back(x.v);
    return out;
  }

 private:
  struct Value {
    std::shared_ptr<Elements> memory;
    Sizes shape, strides;
    std::int64_t offset;
  };

  void make(const Sizes& shape, Elements elements) {
    values_.push_back({std::make_shared<Elements>(std::move(elements)), shape, dense_strides(shape), 0});
  }

  /// Where the elements of the value lie, in row-major order, when it is broadcast to the shape.
  static std::vector<std::size_t> places(const Value& x, const Sizes& shape) {
    std::vector<std::size_t> out;
    Sizes at(shape.size(), 0);
    for (std::int64_t n = count_of(shape); n > 0; --n) {
      std::int64_t place = x.offset;
      for (std::size_t i = 0; i < x.shape.size(); ++i) {
        const std::int64_t index = at[shape.size() - x.shape.size() + i];
        if (x.shape[i] != 1) place += index * x.strides[i];
      }
      out.push_back(static_cast<std::size_t>(place));
      for (std::size_t i = shape.size(); i-- > 0 && ++at[i] == shape[i];) at[i] = 0;
    }
    return out;
  }
  static Elements read(const Value& x, const Sizes& shape) {
    Elements out;
    for (std::size_t place : places(x, shape)) out.push_back((*x.memory)[place]);
    return out;
  }
  static Elements read(const Value& x) { return read(x, x.shape); }

  void step(const Step& s, HyperDual& loss) {
    if (s.code == Code::term) {
      const Elements x = read(values_[s.a]);
      for (std::size_t i = 0; i < x.size(); ++i) loss = loss + x[i] * HyperDual{weight(i)};
    } else if (is_view(s.code)) {
      values_.push_back({values_[s.a].memory, s.shape, s.strides, s.offset});
    } else if (is_write(s.code)) {
      write(s);
    } else if (s.code == Code::detach) {
      values_.push_back(values_[s.a]);
      auto memory = std::make_shared<Elements>();
      for (const HyperDual& x : *values_[s.a].memory) memory->push_back({x.v});
      values_.back().memory = std::move(memory);
    } else {
      make(s.shape, compute(s));
    }
  }

 public:
  static double weight(std::size_t i) { return 0.5 + 0.25 * static_cast<double>(i % 7); }

 private:
  Elements compute(const Step& s) const {
    const Value &a = values_[s.a], &b = values_[s.b], &c = values_[s.c];
    Elements x = read(a);
    switch (s.code) {
      case Code::add:
      case Code::sub:
      case Code::mul:
      case Code::guarded_div:
      case Code::select: {
        x = read(a, s.shape);
        const Elements y = read(b, s.shape);
        const Elements z = s.code == Code::select ? read(c, s.shape) : y;
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = s.code == Code::add      ? x[i] + y[i]
                 : s.code == Code::sub    ? x[i] - y[i]
                 : s.code == Code::mul    ? x[i] * y[i]
                 : s.code == Code::select ? (x[i].v > 0.1234 ? y[i] : z[i])
                                          : x[i] * inverse(y[i] * y[i] + HyperDual{1});
        }
        return x;
      }
      case Code::concat: {
        const Elements y = read(b);
        x.insert(x.end(), y.begin(), y.end());
        return x;
      }
      case Code::matmul:
        return product(x, read(b), a.shape, b.shape);
      case Code::rows:
        return of_rows(x, a.shape, s.rows);
      case Code::sum_axis:
      case Code::cumsum:
      case Code::softmax:
        return along(s, x, a.shape);
      default:
        for (HyperDual& e : x) e = unary(s.code, e);
        return x;
    }
  }

  static HyperDual unary(Code code, HyperDual x) {
    const double v = x.v;
    switch (code) {
      case Code::sin:
        return chain(x, std::sin(v), std::cos(v), -std::sin(v));
      case Code::cos:
        return chain(x, std::cos(v), -std::sin(v), -std::cos(v));
      case Code::tanh: {
        const double t = std::tanh(v), f1 = 1 - t * t;
        return chain(x, t, f1, -2 * t * f1);
      }
      case Code::sigmoid: {
        const double f = 1 / (1 + std::exp(-v)), f1 = f * (1 - f);
        return chain(x, f, f1, f1 * (1 - 2 * f));
      }
      case Code::exp:
        return exponential(x);
      case Code::neg:
        return HyperDual{} - x;
      case Code::square:
        return x * x;
      default:
        return x;
    }
  }

  static Elements product(const Elements& x, const Elements& y, const Sizes& a, const Sizes& b) {
    Elements out;
    for (std::int64_t i = 0; i < a[0]; ++i) {
      for (std::int64_t j = 0; j < b[1]; ++j) {
        HyperDual sum;
        for (std::int64_t k = 0; k < a[1]; ++k) {
          sum = sum + x[static_cast<std::size_t>(i * a[1] + k)] * y[static_cast<std::size_t>(k * b[1] + j)];
        }
        out.push_back(sum);
      }
    }
    return out;
  }

  static Elements of_rows(const Elements& x, const Sizes& shape, const Sizes& rows) {
    const std::int64_t inner = count_of(shape) / shape[0];
    Elements out;
    for (std::int64_t r : rows) {
      for (std::int64_t i = 0; i < inner; ++i) out.push_back(x[static_cast<std::size_t>(r * inner + i)]);
    }
    return out;
  }

  static Elements along(const Step& s, Elements x, const Sizes& shape) {
    const auto axis = static_cast<std::size_t>(s.axis);
    const std::int64_t n = shape[axis], inner = dense_strides(shape)[axis], outer = count_of(shape) / (n * inner);
    Elements sums;
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t i = 0; i < inner; ++i) {
        const auto at = [&](std::int64_t k) -> HyperDual& {
          return x[static_cast<std::size_t>((o * n + k) * inner + i)];
        };
        HyperDual sum;
        for (std::int64_t k = 0; k < n; ++k) {
          if (s.code == Code::softmax) at(k) = exponential(at(k));
          sum = sum + at(k);
          if (s.code == Code::cumsum) at(k) = sum;
        }
        for (std::int64_t k = 0; k < n && s.code == Code::softmax; ++k) at(k) = at(k) * inverse(sum);
        sums.push_back(sum);
      }
    }
    return s.code == Code::sum_axis ? sums : x;
  }

  void write(const Step& s) {
    const Value& to = values_[s.a];
    std::vector<std::size_t> where = places(to, to.shape);
    if (!s.rows.empty()) {
      const std::int64_t inner = count_of(to.shape) / to.shape[0];
      std::vector<std::size_t> named;
      for (std::int64_t r : s.rows) {
        for (std::int64_t i = 0; i < inner; ++i) named.push_back(where[static_cast<std::size_t>(r * inner + i)]);
      }
      where = std::move(named);
    }
    const bool number = s.code == Code::fill || s.code == Code::add_number || s.code == Code::mul_number;
    const Elements from = number ? Elements(where.size(), HyperDual{s.number}) : read(values_[s.b], s.shape);
    for (std::size_t i = 0; i < where.size(); ++i) {
      HyperDual& x = (*to.memory)[where[i]];
      switch (s.code) {
        case Code::add_to:
        case Code::add_rows:
        case Code::add_number:
          x = x + from[i];
          break;
        case Code::sub_from:
          x = x - from[i];
          break;
        case Code::mul_by:
        case Code::mul_number:
          x = x * from[i];
          break;
        default:
          x = from[i];
          break;
      }
    }
  }

  std::vector<Value> values_;
};

}  // namespace sluice::testing
