// Random programs of views, writes in place and operators, as data: they are made here, run on arrays by
// random_programs_test.cc, and interpreted by hyper_dual.h, which knows nothing of arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace sluice::testing {

using Sizes = std::vector<std::int64_t>;

inline std::int64_t count_of(const Sizes& shape) {
  std::int64_t n = 1;
  for (std::int64_t s : shape) n *= s;
  return n;
}
inline Sizes dense_strides(const Sizes& shape) {
  Sizes strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

enum class Code {
  // Views of a. The step has the window that results.
  step_slice,
  narrow,
  index,
  transpose,
  flip,
  broadcast,
  flatten,
  diagonal,
  unsqueeze,
  // New arrays from a, b, c.
  sin,
  cos,
  tanh,
  sigmoid,
  exp,
  neg,
  square,
  copy,
  detach,
  add,
  sub,
  mul,
  guarded_div,
  select,
  sum_axis,
  cumsum,
  softmax,
  concat,
  matmul,
  rows,
  // Writes to a, from b or the number.
  assign,
  add_to,
  sub_from,
  mul_by,
  fill,
  add_number,
  mul_number,
  assign_rows,
  add_rows,
  // Adds sum(a * weight) to the loss; the weight differs from element to element.
  term,
};
inline const char* const kCodeNames[] = {
    "step_slice", "narrow",  "index",      "transpose",  "flip",        "broadcast",   "flatten", "diagonal",
    "unsqueeze",  "sin",     "cos",        "tanh",       "sigmoid",     "exp",         "neg",     "square",
    "copy",       "detach",  "add",        "sub",        "mul",         "guarded_div", "select",  "sum_axis",
    "cumsum",     "softmax", "concat",     "matmul",     "rows",        "assign",      "add_to",  "sub_from",
    "mul_by",     "fill",    "add_number", "mul_number", "assign_rows", "add_rows",    "term"};
inline bool is_view(Code c) { return c <= Code::unsqueeze; }
inline bool is_write(Code c) { return c >= Code::assign && c <= Code::add_rows; }

struct Step {
  Code code;
  std::size_t a = 0, b = 0, c = 0;  ///< values by number; leaves come first
  int axis = 0;
  std::int64_t begin = 0, end = 0;
  double number = 0;
  Sizes rows{};
  Sizes shape{}, strides{};  ///< of the result; strides and offset of views
  std::int64_t offset = 0;
};

struct Program {
  std::uint64_t seed = 0;
  std::vector<Sizes> leaves;
  std::vector<Step> steps;

  std::string text() const {
    std::ostringstream out;
    const auto list = [&](const Sizes& sizes) {
      out << '(';
      for (std::int64_t s : sizes) out << s << ' ';
      out << ')';
    };
    std::size_t next = leaves.size();
    for (const Step& s : steps) {
      if (!is_write(s.code) && s.code != Code::term) out << 'v' << next++ << " = ";
      out << kCodeNames[static_cast<int>(s.code)] << " v" << s.a << " v" << s.b << " v" << s.c << " axis " << s.axis
          << " [" << s.begin << ", " << s.end << ") " << s.number << " rows ";
      list(s.rows);
      out << " shape ";
      list(s.shape);
      out << '\n';
    }
    return out.str();
  }
};

/// Makes a program. Bounds of the values are kept, so that all stay finite and well conditioned.
class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) { program_.seed = seed; }

  Program make() {
    for (const Sizes& shape : {Sizes{3, 4}, Sizes{4}, Sizes{2, 3}}) {
      program_.leaves.push_back(shape);
      values_.push_back({buffers_.size(), shape, dense_strides(shape), 0, false});
      buffers_.push_back({1.0, true});
    }
    const std::size_t steps = 8 + below(14);
    while (program_.steps.size() < steps) any();
    term(values_.size() - 1);
    for (int i = 0; i < 3; ++i) write();  // what was recorded must not see these
    return std::move(program_);
  }

 private:
  struct Value {
    std::size_t buffer;
    Sizes shape, strides;
    std::int64_t offset;
    bool overlaps;  ///< with itself
  };
  struct Memory {
    double bound;
    bool leaf;
  };
  static constexpr double kMost = 40;

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  std::size_t pick() {
    return values_.size() > 6 && below(2) == 0 ? values_.size() - 1 - below(6) : below(values_.size());
  }
  double& bound(std::size_t v) { return buffers_[values_[v].buffer].bound; }

  void any() {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        return view();
      case 3:
      case 4:
        return compute();
      case 5:
      case 6:
        return write();
      default:
        return below(2) == 0 ? term(pick()) : compute();
    }
  }

  void term(std::size_t v) { program_.steps.push_back({.code = Code::term, .a = v}); }

  void view() {
    Step s{.code = static_cast<Code>(below(9)), .a = pick()};
    const Value& x = values_[s.a];
    const std::size_t rank = x.shape.size();
    s.shape = x.shape, s.strides = x.strides, s.offset = x.offset;
    bool overlaps = x.overlaps;
    const std::size_t axis = rank == 0 ? 0 : below(rank);
    s.axis = static_cast<int>(axis);
    switch (s.code) {
      case Code::step_slice:
        if (rank == 0) return;
        s.begin = static_cast<std::int64_t>(below(static_cast<std::size_t>(x.shape[axis])));
        s.offset += s.begin * x.strides[axis];
        s.shape[axis] = (x.shape[axis] - s.begin + 1) / 2;
        s.strides[axis] *= 2;
        break;
      case Code::narrow:
        if (rank == 0) return;
        s.begin = static_cast<std::int64_t>(below(static_cast<std::size_t>(x.shape[axis])));
        s.end = s.begin + 1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(x.shape[axis] - s.begin)));
        s.offset += s.begin * x.strides[axis];
        s.shape[axis] = s.end - s.begin;
        break;
      case Code::index:
        if (rank == 0) return;
        s.begin = static_cast<std::int64_t>(below(static_cast<std::size_t>(x.shape[0])));
        s.offset += s.begin * x.strides[0];
        s.shape.erase(s.shape.begin());
        s.strides.erase(s.strides.begin());
        break;
      case Code::transpose:
        if (rank < 2) return;
        std::reverse(s.shape.begin(), s.shape.end());
        std::reverse(s.strides.begin(), s.strides.end());
        break;
      case Code::flip:
        if (rank == 0) return;
        s.offset += (x.shape[axis] - 1) * x.strides[axis];
        s.strides[axis] = -x.strides[axis];
        break;
      case Code::broadcast:
        if (rank > 2 || count_of(x.shape) > 16) return;
        s.shape.insert(s.shape.begin(), 2);
        s.strides.insert(s.strides.begin(), 0);
        overlaps = true;
        break;
      case Code::flatten: {
        if (rank < 2) return;
        const Sizes dense = dense_strides(x.shape);
        for (std::size_t i = 0; i < rank; ++i) {
          if (x.shape[i] != 1 && x.strides[i] != dense[i]) return;
        }
        s.shape = {count_of(x.shape)};
        s.strides = {1};
        break;
      }
      case Code::diagonal:
        if (rank != 2) return;
        s.strides = {x.strides[0] + x.strides[1]};
        s.shape = {std::min(x.shape[0], x.shape[1])};
        break;
      default:
        if (rank > 2) return;
        s.shape.insert(s.shape.begin() + s.axis, 1);
        s.strides.insert(s.strides.begin() + s.axis, 1);
        break;
    }
    values_.push_back({x.buffer, s.shape, s.strides, s.offset, overlaps});
    program_.steps.push_back(std::move(s));
  }

  static bool broadcast_shape(const Sizes& a, const Sizes& b, Sizes& out) {
    out.assign(std::max(a.size(), b.size()), 1);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t m = i < a.size() ? a[a.size() - 1 - i] : 1, n = i < b.size() ? b[b.size() - 1 - i] : 1;
      if (m != n && m != 1 && n != 1) return false;
      out[out.size() - 1 - i] = m == 1 ? n : m;
    }
    return count_of(out) <= 48 && out.size() <= 3;
  }

  void made(Step s, double most) {
    values_.push_back({buffers_.size(), s.shape, dense_strides(s.shape), 0, false});
    buffers_.push_back({most, false});
    program_.steps.push_back(std::move(s));
  }

  void compute() {
    const int first = static_cast<int>(Code::sin), last = static_cast<int>(Code::rows);
    Step s{.code = static_cast<Code>(first + static_cast<int>(below(static_cast<std::size_t>(last - first + 1)))),
           .a = pick(),
           .b = pick(),
           .c = pick()};
    const Sizes &a = values_[s.a].shape, &b = values_[s.b].shape;
    const std::size_t axis = a.empty() ? 0 : below(a.size());
    s.axis = static_cast<int>(axis);
    s.shape = a;
    double most = bound(s.a);
    switch (s.code) {
      case Code::sin:
      case Code::cos:
      case Code::tanh:
      case Code::sigmoid:
        most = 1;
        break;
      case Code::exp:
        if (most > 2) return;
        most = 8;
        break;
      case Code::neg:
      case Code::copy:
      case Code::detach:
        break;
      case Code::square:
        most *= most;
        break;
      case Code::add:
      case Code::sub:
      case Code::mul:
      case Code::guarded_div:
        if (!broadcast_shape(a, b, s.shape)) return;
        if (s.code == Code::mul) most *= bound(s.b);
        if (s.code == Code::add || s.code == Code::sub) most += bound(s.b);
        break;
      case Code::select: {
        Sizes both;
        if (!broadcast_shape(a, b, both) || !broadcast_shape(both, values_[s.c].shape, s.shape)) return;
        most = std::max(bound(s.b), bound(s.c));
        break;
      }
      case Code::sum_axis:
        if (a.empty()) return;
        most *= static_cast<double>(a[axis]);
        s.shape.erase(s.shape.begin() + s.axis);
        break;
      case Code::cumsum:
        if (a.empty()) return;
        most *= static_cast<double>(a[axis]);
        break;
      case Code::softmax:
        if (a.empty()) return;
        most = 1;
        break;
      case Code::concat:
        if (a.empty() || a.size() != b.size() || !std::equal(a.begin() + 1, a.end(), b.begin() + 1)) return;
        s.shape[0] += b[0];
        most = std::max(most, bound(s.b));
        break;
      case Code::matmul:
        if (a.size() != 2 || b.size() != 2 || a[1] != b[0]) return;
        s.shape[1] = b[1];
        most *= bound(s.b) * static_cast<double>(a[1]);
        break;
      default:  // rows
        if (a.empty()) return;
        make_rows(s, a[0]);
        s.shape[0] = static_cast<std::int64_t>(s.rows.size());
        break;
    }
    if (most > kMost || count_of(s.shape) > 48) return;
    const bool detached = s.code == Code::detach;
    const Value from = values_[s.a];
    made(std::move(s), most);
    if (detached) {  // the same window on another array
      values_.back() = from;
      values_.back().buffer = buffers_.size() - 1;
    }
  }

  void make_rows(Step& s, std::int64_t n) {
    const std::size_t count = 1 + below(3);
    for (std::size_t i = 0; i < count; ++i)
      s.rows.push_back(static_cast<std::int64_t>(below(static_cast<std::size_t>(n))));
  }

  void write() {
    const int first = static_cast<int>(Code::assign), last = static_cast<int>(Code::add_rows);
    Step s{.code = static_cast<Code>(first + static_cast<int>(below(static_cast<std::size_t>(last - first + 1)))),
           .a = pick(),
           .b = pick()};
    s.number = static_cast<double>(below(9)) / 4 - 1;
    const Value& x = values_[s.a];
    if (x.overlaps || buffers_[x.buffer].leaf) return;
    s.shape = x.shape;
    if (s.code == Code::assign_rows || s.code == Code::add_rows) {
      if (x.shape.empty()) return;
      make_rows(s, x.shape[0]);
      s.shape[0] = static_cast<std::int64_t>(s.rows.size());
    }
    double most = bound(s.a);
    const double other = bound(s.b);
    const bool number = s.code == Code::fill || s.code == Code::add_number || s.code == Code::mul_number;
    Sizes both;
    if (!number && (!broadcast_shape(s.shape, values_[s.b].shape, both) || both != s.shape)) return;
    switch (s.code) {
      case Code::assign:
      case Code::assign_rows:
        most = std::max(most, other);
        break;
      case Code::add_to:
      case Code::sub_from:
        most += other;
        break;
      case Code::add_rows:
        most += other * static_cast<double>(s.rows.size());
        break;
      case Code::mul_by:
        most = std::max(most, most * other);
        break;
      case Code::fill:
        most = std::max(most, 1.0);
        break;
      default:
        most += 1;
        break;  // a number, of at most 1
    }
    if (most > kMost) return;
    bound(s.a) = most;
    program_.steps.push_back(std::move(s));
  }

  std::mt19937_64 random_;
  Program program_;
  std::vector<Value> values_;
  std::vector<Memory> buffers_;
};

}  // namespace sluice::testing
