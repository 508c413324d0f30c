#include "sluice/autograd/uses.h"

#include "sluice/autograd/gradients.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/ndarray/called.h"

namespace sluice {
namespace {

Ref<autograd::Node> leaf_of(const char* name, const NDArray& x, const std::source_location& where) {
  x.checked(name, where);
  Ref<autograd::Node> node = autograd::maker_of(x);
  if (!node || node->kind != autograd::Node::Kind::leaf) {
    throw ArrayError(name, where, "an array that was not made with with_grad()");
  }
  if (autograd::window_of(x)) throw ArrayError(name, where, "a view of an array: give the array that it views");
  return node;
}

}  // namespace

void on_uses(const NDArray& leaf, std::function<void(const std::vector<NDArray>&)> f, std::source_location where) {
  const Ref<autograd::Node> node = leaf_of("on_uses", leaf, where);
  std::shared_ptr<autograd::Uses> uses;
  if (f) uses = std::make_shared<autograd::Uses>(std::move(f));
  const std::lock_guard lock(node->mutex);
  std::swap(node->uses, uses);
}

NDArray sum_of_uses(const NDArrays& terms, std::source_location where) {
  if (terms.size() == 0) throw ArrayError("sum_of_uses", where, "no terms");
  const detail::Called called("sum_of_uses", where);
  for (const NDArray& term : terms) term.checked("sum_of_uses", where);
  const NoGrad scope;
  if (terms.size() == 1) return terms[0].copy(where);
  std::vector<NDArray> list;
  for (std::size_t i = terms.size(); i-- > 0;) autograd::add_term(list, terms[i], where);
  return autograd::total(list, where);
}

void add_gradient(const NDArray& leaf, const NDArray& gradient, std::source_location where) {
  const Ref<autograd::Node> node = leaf_of("add_gradient", leaf, where);
  const Array& array = *leaf.array();
  gradient.checked("add_gradient", where);
  if (!(gradient.shape() == array.shape()) || gradient.dtype() != array.dtype() ||
      !(gradient.device() == array.device())) {
    throw ArrayError("add_gradient", where,
                     to_string(gradient.shape()) + " " + std::string(name_of(gradient.dtype())) + " on " +
                         to_string(gradient.device()) + " for a leaf of " + to_string(array.shape()) + " " +
                         std::string(name_of(array.dtype())) + " on " + to_string(array.device()));
  }
  const NoGrad scope;
  const NDArray shared = autograd::brought(*node, gradient, where);  // the caller's stays as it is
  autograd::add_to_leaf(*node, shared, where);
}

}  // namespace sluice
