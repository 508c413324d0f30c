#include "sluice/ndarray/view_call.h"

#include "sluice/engine/layer.h"

namespace sluice {

constinit std::atomic<bool> detail::views_are_told{false};

std::string_view ViewCall::name() const {
  switch (kind_) {
    case ViewKind::reshape:
      return "reshape";
    case ViewKind::permute:
      return "permute";
    case ViewKind::slice:
      return "slice";
    case ViewKind::broadcast_to:
      return "broadcast_to";
    case ViewKind::window:
      break;
  }
  return "window";
}

const char* ViewCall::layer() const { return detail::path_of(current_scope().layer); }

NDArray ViewCall::of(const NDArray& x) const {
  x.checked("ViewCall::of", where_);
  const std::string name(this->name());
  if (!(x.shape() == input_.shape()) || kind_ == ViewKind::window) {
    throw ArrayError("ViewCall::of", where_,
                     "a " + name + " of " + to_string(input_.shape()) + " for an array of " + to_string(x.shape()));
  }
  switch (kind_) {
    case ViewKind::reshape:
      return x.reshape(shape_, where_);
    case ViewKind::permute:
      return x.permute(axes_, where_);
    case ViewKind::broadcast_to:
      return x.broadcast_to(shape_, where_);
    default:
      break;
  }
  std::vector<Index> index;
  for (int i = 0; i < shape_.rank(); ++i) {
    const auto [begin, step] = cuts_[static_cast<std::size_t>(i)];
    Slice range{begin, begin + shape_[i] * step, step};
    if (shape_[i] == 0) range.end = begin;
    if (step < 0 && *range.end < 0) range.end.reset();  // -1 would count from the end
    index.emplace_back(range, where_);
  }
  return x.index_view(index, where_);
}

void ViewCall::answer(NDArray result) {
  const Spec wanted{shape_, input_.dtype(), input_.device()};
  result.checked("ViewCall::answer", where_);
  if (!(result.spec() == wanted)) {
    throw ArrayError(name(), where_,
                     "its owner answered with " + to_string(result.spec()) + "; the view is " + to_string(wanted));
  }
  if (result.array()->kind() != Array::Kind::owned) {
    throw ArrayError(name(), where_, "its owner answered with an array that is not an owner's");
  }
  result_ = std::move(result);
}

}  // namespace sluice
