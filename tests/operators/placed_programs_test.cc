// Random programs on meshes beside the same programs on plain arrays: layouts, reshards, writes in place, views and
// gradients that meet each other. A call that its operands' layouts do not suit is refused, and made of whole ones.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "placement_support.h"

namespace sluice::testing {
namespace {

using Draw = std::mt19937_64;
using Values = std::vector<NDArray>;

int draw(Draw& from, int n) { return static_cast<int>(from() % static_cast<std::uint64_t>(n)); }

/// An array of the program: plain, and on the mesh.
struct Both {
  NDArray plain, placed;
};

class Program {
 public:
  Program(std::uint64_t seed, const Mesh& mesh) : from_(seed), mesh_(mesh) {
    for (int i = 0; i < 4; ++i) leaf();
  }

  void run(int calls) {
    for (int i = 0; i < calls && !::testing::Test::HasFailure(); ++i) {
      steps_.emplace_back();
      one_call();
    }
    if (!::testing::Test::HasFailure()) gradients();
  }
  int refused() const { return refused_; }
  int made() const { return made_; }
  const std::vector<std::string>& steps() const { return steps_; }

 private:
  Layout any_layout(const Dims& shape) {
    Placements on;
    for (int m = 0; m < mesh_.axes(); ++m) {
      const bool cuts = shape.rank() > 0 && draw(from_, 3) > 0;
      on.emplace_back(mesh_.name(m), cuts ? shard(draw(from_, shape.rank())) : replicate);
    }
    return Layout(mesh_, shape, on);
  }
  Dims any_shape() {
    Dims shape;
    for (int i = draw(from_, 3) + (draw(from_, 8) > 0); i > 0; --i) {
      shape.push_back(draw(from_, 20) == 0 ? 0 : 1 + draw(from_, 6));
    }
    return shape;
  }
  /// A leaf, whose gradient may lie in a layout of its own.
  void leaf() {
    const Dims shape = any_shape();
    Both made;
    made.plain = drawn(shape, from_());
    made.placed = place(made.plain, any_layout(shape));
    if (draw(from_, 3) == 0) made.placed = with_call_layout(made.placed, any_layout(shape));
    made.plain.with_grad();
    made.placed.with_grad();
    Layout gradient = layout_of(made.placed);
    if (draw(from_, 2) == 0) set_gradient_layout(made.placed, gradient = any_layout(shape));
    leaves_.push_back(made);
    gradient_layouts_.push_back(gradient);
    live_.push_back(made);
  }

  /// Makes the call on both sides. Operands on the mesh are resharded at times, and must be whole in the worst case.
  template <class F>
  void call(const std::string& name, const std::vector<Both>& operands, F&& f) {
    Values plain, placed;
    for (const Both& x : operands) {
      plain.push_back(x.plain);
      const bool moves = draw(from_, 2) == 0;
      placed.push_back(moves ? reshard(x.placed, any_layout(x.plain.shape())) : x.placed);
      steps_.back() += (steps_.back().empty() ? name + " of " : ", ") + to_string(x.plain.shape()) + " " +
                       to_string(layout_of(placed.back()));
    }
    Both result;
    result.plain = f(plain);
    try {
      result.placed = f(placed);
    } catch (const ArrayError&) {
      ++refused_;
      for (NDArray& x : placed) x = whole(x);
      result.placed = f(placed);
    }
    ++made_;
    ASSERT_EQ(result.placed.shape(), result.plain.shape());
    ASSERT_TRUE(layout_of(result.placed));
    steps_.back() += " -> " + to_string(layout_of(result.placed));
    same(result.placed, result.plain);
    keep(result);
  }
  void keep(const Both& made) {
    if (live_.size() < 8) return live_.push_back(made);
    live_[static_cast<std::size_t>(draw(from_, 8))] = made;
  }
  static void same(const NDArray& placed, const NDArray& plain) {
    double scale = 1;
    const std::vector<double> wanted = doubles_of(plain);
    for (const double x : wanted) scale = std::max(scale, std::abs(x));
    ASSERT_LE(distance(put_together(placed, "result"), wanted), 1e-11 * scale);
  }

  Both any() { return live_[static_cast<std::size_t>(draw(from_, static_cast<int>(live_.size())))]; }
  /// One with at least one axis, and one of its axes.
  bool any_with_axis(Both& x, int& axis) {
    for (int tries = 0; tries < 20; ++tries) {
      x = any();
      if (x.plain.rank() == 0) continue;
      axis = draw(from_, x.plain.rank());
      return true;
    }
    return false;
  }

  void one_call() {
    const Both x = any();
    Both y;
    int axis = 0;
    switch (draw(from_, 16)) {
      case 0:
        return call("tanh", {x}, [](const Values& v) { return tanh(v[0]); });
      case 1:
        return call("affine", {x}, [](const Values& v) { return v[0] * 0.5 - 1; });
      case 2:
        return call("x * x", {x}, [](const Values& v) { return tanh(v[0] * v[0]); });
      case 3:
      case 4:
        return elementwise();
      case 5:
        if (!any_with_axis(y, axis)) return;
        return call("sum", {y},
                    [axis, keep = draw(from_, 2) == 0](const Values& v) { return sum(v[0], {axis}, {.keep = keep}); });
      case 6:
        if (!any_with_axis(y, axis) || y.plain.size(axis) == 0) return;
        return call("mean", {y}, [axis](const Values& v) { return mean(v[0], {axis}); });
      case 7:
        if (!any_with_axis(y, axis) || y.plain.size(axis) == 0) return;
        // Over an axis that is cut its gradient is refused.
        return call("max", {y}, [axis](const Values& v) {
          const Layout layout = call_layout_of(v[0]);
          const bool cut = layout && layout.cut(axis);
          return max(cut ? whole(v[0]) : v[0], {axis}, {.keep = true});
        });
      case 8:
        return call("transpose", {x}, [](const Values& v) {
          Dims axes;
          for (int i = v[0].rank(); i-- > 0;) axes.push_back(i);
          return v[0].permute(axes);
        });
      case 9:
        if (!any_with_axis(y, axis) || axis == 0) return;
        return call("merge", {y}, [axis](const Values& v) {
          Dims shape;
          for (int i = 0; i < v[0].rank(); ++i) {
            if (i == axis) {
              shape[axis - 1] *= v[0].shape()[i];
            } else {
              shape.push_back(v[0].shape()[i]);
            }
          }
          return v[0].reshape(shape);
        });
      case 10: {
        if (!any_with_axis(y, axis)) return;
        const std::int64_t n = y.plain.size(axis), begin = draw(from_, static_cast<int>(n) + 1);
        const std::int64_t end = begin + draw(from_, static_cast<int>(n - begin) + 1);
        return call("narrow", {y}, [=](const Values& v) { return v[0].narrow(axis, begin, end); });
      }
      case 11:
        if (!any_with_axis(y, axis)) return;
        return call("concat", {y, y}, [axis](const Values& v) { return concat({v[0], v[1] * 2}, axis); });
      case 12:
        if (!any_with_axis(y, axis) || y.plain.size(axis) == 0) return;
        return call("softmax", {y}, [axis](const Values& v) { return softmax(v[0], axis); });
      case 13:
      case 14:
        return products();
      default:
        return in_place();
    }
  }
  void elementwise() {
    const Both x = any(), y = any();
    // Shapes broadcast where axes are equal, or 1.
    const int common = std::min(x.plain.rank(), y.plain.rank());
    for (int i = 1; i <= common; ++i) {
      const std::int64_t a = x.plain.size(-i), b = y.plain.size(-i);
      if (a != b && a != 1 && b != 1) {
        return call("w * outer", {x, y}, [](const Values& v) { return v[0] * tanh(sum(v[1])); });
      }
    }
    const int kind = draw(from_, 3);
    call("+-*", {x, y}, [kind](const Values& v) {
      return kind == 0 ? v[0] + v[1] : kind == 1 ? v[0] - v[1] : tanh(v[0]) * tanh(v[1]);
    });
  }
  void products() {
    Both x = any();
    if (x.plain.rank() < 1 || x.plain.rank() > 3) return;
    const std::int64_t n = x.plain.size(-1);
    Both w;
    w.plain = drawn({1 + draw(from_, 5), n}, from_());
    w.placed = place(w.plain, any_layout(w.plain.shape()));
    if (draw(from_, 2) == 0) w.placed = with_call_layout(w.placed, any_layout(w.plain.shape()));
    w.plain.with_grad();
    w.placed.with_grad();
    leaves_.push_back(w);
    gradient_layouts_.push_back(layout_of(w.placed));
    if (draw(from_, 2) == 0) {
      return call("linear", {x, w}, [](const Values& v) { return tanh(linear(v[0], v[1])); });
    }
    call("matmul", {x, w}, [](const Values& v) { return tanh(matmul(v[0], v[1].transpose())); });
  }
  /// Writes to a copy, which are recorded.
  void in_place() {
    Both x;
    int axis = 0;
    if (!any_with_axis(x, axis)) return;
    call("y *= 2; y += x", {x}, [](const Values& v) {
      NDArray y = v[0].copy();
      y *= 2;
      y += v[0];
      return y * 0.25;
    });
  }

  /// Of the sum of all that is live.
  void gradients() {
    steps_.emplace_back("gradients");
    NDArray plain, placed;
    for (const Both& x : live_) {
      const NDArray added = layout_of(x.placed).partial() ? whole(x.placed) : x.placed;
      const NDArray a = sum(sin(x.plain)), b = whole(sum(sin(added)));
      plain = plain.defined() ? plain + a : a;
      placed = placed.defined() ? placed + b : b;
    }
    if (!plain.requires_grad()) return;
    ASSERT_TRUE(placed.requires_grad());
    plain.backward();
    placed.backward();
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      const NDArray wanted = leaves_[i].plain.grad(), is = leaves_[i].placed.grad();
      ASSERT_EQ(is.defined(), wanted.defined()) << "leaf " << i;
      if (!wanted.defined()) continue;
      ASSERT_EQ(to_string(layout_of(is)), to_string(gradient_layouts_[i])) << "leaf " << i;
      same(is, wanted);
    }
  }

  Draw from_;
  const Mesh& mesh_;
  std::vector<Both> leaves_, live_;
  std::vector<Layout> gradient_layouts_;  ///< by leaf
  std::vector<std::string> steps_;
  int refused_ = 0, made_ = 0;
};

TEST(PlacedPrograms, EqualPlainOnes) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 6});
  const Mesh meshes[] = {
      Mesh({{"a", 2}}, test::device_kind()),
      Mesh({{"a", 3}}, test::device_kind()),
      Mesh({{"a", 2}, {"b", 2}}, test::device_kind()),
      Mesh({{"a", 2}, {"b", 3}}, test::device_kind()),
  };
  const int programs = std::getenv("SLUICE_DEEP") ? 10000 : test::on_streams() ? 20 : 300;
  int made = 0, refused = 0;
  for (int seed = 1; seed <= programs && !HasFailure(); ++seed) {
    const Mesh& mesh = meshes[seed % 4];
    Program program(static_cast<std::uint64_t>(seed), mesh);
    program.run(12);
    made += program.made();
    refused += program.refused();
    if (!HasFailure()) continue;
    std::string text;
    for (const std::string& step : program.steps()) text += "\n  " + step;
    ADD_FAILURE() << "seed " << seed << " on " << to_string(mesh) << ":" << text;
  }
  EXPECT_GT(made, 9 * programs);
  EXPECT_LT(refused, made / 2) << "most calls are made as their operands lie";
}

}  // namespace
}  // namespace sluice::testing
