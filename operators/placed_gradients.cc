// How gradients of arrays on a mesh lie.
#include "sluice/ndarray/owner.h"
#include "sluice/operators/operators.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/placed_owner.h"

namespace sluice {
namespace {

using builtin::Placed;

class LaidOut final : public GradientLayout {
 public:
  /// `layout` is not partial.
  explicit LaidOut(Layout layout) : layout_(std::move(layout)) {}
  NDArray bring(const NDArray& gradient, const std::source_location& where) const override {
    const Placed* const placed = Placed::of(gradient);
    if (!placed) {
      throw ArrayError("backward", where, "a gradient on no mesh for an array on a mesh, " + to_string(layout_));
    }
    if (placed->layout() == layout_) return gradient;
    return apply(builtin::reshard_row(), {&gradient}, builtin::ReshardAttributes{layout_}, {.where = where});
  }
  bool alike(const NDArray& a, const NDArray& b) const override {
    const Placed *const x = Placed::of(a), *const y = Placed::of(b);
    return x && y && x->layout() == y->layout();
  }
  bool terms_alone(const NDArray& gradient) const override {
    const Placed* const placed = Placed::of(gradient);
    if (!placed || !(placed->layout().mesh() == layout_.mesh())) return false;
    return builtin::added_up(placed->layout(), &layout_) == layout_;
  }

 private:
  Layout layout_;
};

}  // namespace

/// As the array does, and replicated where it is partial.
std::shared_ptr<const GradientLayout> Placed::gradient_layout() const {
  return std::make_shared<LaidOut>(builtin::added_up(layout_));
}

void set_gradient_layout(const NDArray& x, const Layout& layout, std::source_location where) {
  constexpr const char* kName = "set_gradient_layout";
  x.checked(kName, where);
  const Layout own = layout_of(x, where);
  if (!own) throw ArrayError(kName, where, "an array on no mesh: place(x, mesh) first");
  if (!layout) throw UsageError(std::string("[") + kName + "] " + to_string(where) + ": no layout");
  if (layout.partial() || !(layout.shape() == own.shape()) || !(layout.mesh() == own.mesh())) {
    throw ArrayError(kName, where,
                     to_string(layout) + " of " + to_string(layout.shape()) + " on " + to_string(layout.mesh()) +
                         " for the gradient of " + to_string(own.shape()) + " on " + to_string(own.mesh()));
  }
  set_gradient_layout(x, std::make_shared<LaidOut>(layout), where);
}

}  // namespace sluice
