#include "sluice/autograd/products.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "sluice/autograd/gradients.h"
#include "sluice/autograd/node.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/operators/creation.h"

namespace sluice {
namespace {

using Arrays = std::vector<NDArray>;

const Operator& pass_row() {
  return detail::first_use([] {
    auto* made = new Operator();
    made->name = "pass";
    made->gradient = [](GradientContext& context) {
      for (int i = 0; i < context.inputs(); ++i) context.set(i, context.gradient(i));
    };
    return made;
  });
}

void check_like(const char* name, const char* what, const NDArray& given, const NDArray& like,
                const std::source_location& where) {
  if (given.checked(name, where).dtype() == like.checked(name, where).dtype() && given.shape() == like.shape() &&
      given.device() == like.device()) {
    return;
  }
  throw ArrayError(name, where,
                   std::string(what) + " of " + to_string(given.shape()) + " " + std::string(name_of(given.dtype())) +
                       " for an array of " + to_string(like.shape()) + " " + std::string(name_of(like.dtype())));
}

/// f called with arguments of this call's own: so what f reads beside them is not taken for them.
struct Called {
  Called(const char* caller, const ArrayFunction& f, const NDArrays& given, const NDArrays& vectors,
         const std::source_location& place)
      : name(caller), where(place) {
    autograd::install_recorder();
    const bool outside = grad_mode();
    for (const NDArray& x : given) {
      if (!is_floating(x.checked(name, where).dtype())) {
        throw ArrayError(name, where, "needs arrays of a floating dtype, not " + std::string(name_of(x.dtype())));
      }
      const autograd::Past past = autograd::past_of(x);
      NDArray own = autograd::own_value(x, where);
      if (past.node && outside) {
        recorded = true;
        autograd::record(pass_row(), {}, std::span(&x, 1), std::span(&past, 1), std::span(&own, 1), where);
      } else {
        own.with_grad(where);
      }
      xs.push_back(std::move(own));
    }
    {
      const WithGrad scope;
      ys = f(xs, name, where);
    }
    for (const NDArray& v : vectors) recorded = recorded || (outside && v.defined() && autograd::past_of(v).node);
    if (outside && !recorded) recorded = wants_more();
  }

  /// zeros for what does not depend; values without a history that leads nowhere.
  ValuesAndProducts result(Arrays products, const Arrays& like) const {
    ValuesAndProducts out;
    for (std::size_t i = 0; i < like.size(); ++i) {
      if (i < products.size() && products[i].defined()) {
        out.products.push_back(std::move(products[i]));
      } else {
        const DeviceScope scope(like[i].device());
        out.products.push_back(zeros(like[i].shape(), like[i].dtype(), where));
      }
    }
    for (const NDArray& y : ys) out.values.push_back(recorded ? y : y.detach(where));
    return out;
  }

  const char* name;
  std::source_location where;
  Arrays xs, ys;
  bool recorded = false;  ///< values and products are to be

 private:
  /// True if ys come from a leaf that is none of xs.
  bool wants_more() const {
    std::unordered_set<autograd::Node*> seen;
    for (const NDArray& x : xs) seen.insert(autograd::past_of(x).node.get());
    std::vector<Ref<autograd::Node>> stack;
    for (const NDArray& y : ys) stack.push_back(autograd::past_of(y).node);
    while (!stack.empty()) {
      const Ref<autograd::Node> node = std::move(stack.back());
      stack.pop_back();
      if (!node || !seen.insert(node.get()).second) continue;
      if (node->kind == autograd::Node::Kind::leaf) return true;
      for (const autograd::Edge& edge : node->edges) stack.push_back(edge.node);
    }
    return false;
  }
};

/// Pairs of which the first has a history, and so may depend on something.
struct Pairs {
  Arrays roots, weights;
  void add(const NDArray& root, const NDArray& weight) {
    if (!root.defined() || !autograd::past_of(root).node) return;
    roots.push_back(root);
    weights.push_back(weight);
  }
  Arrays gradients(const Arrays& xs, bool create_graph, const std::source_location& where) const {
    if (roots.empty()) return {};
    return grad(roots, weights, xs, {.create_graph = create_graph, .retain = true}, where);
  }
};

void check_count(const char* name, const char* what, std::size_t given, std::size_t wanted,
                 const std::source_location& where) {
  if (given == wanted) return;
  throw ArrayError(name, where, std::to_string(given) + " " + what + " given, " + std::to_string(wanted) + " wanted");
}

}  // namespace

ValuesAndProducts vjp(const ArrayFunction& f, const NDArrays& xs, const NDArrays& cotangents,
                      std::source_location where) {
  const Called call("vjp", f, xs, cotangents, where);
  check_count("vjp", "cotangents", cotangents.size(), call.ys.size(), where);
  Pairs pairs;
  for (std::size_t i = 0; i < call.ys.size(); ++i) {
    if (cotangents[i].defined()) check_like("vjp", "a cotangent", cotangents[i], call.ys[i], where);
    if (!cotangents[i].defined() && call.ys[i].count() != 1) {
      throw ArrayError("vjp", where, to_string(call.ys[i].shape()) + " has not one element: give its cotangent");
    }
    pairs.add(call.ys[i], cotangents[i]);
  }
  return call.result(pairs.gradients(call.xs, call.recorded, where), call.xs);
}

ValuesAndProducts jvp(const ArrayFunction& f, const NDArrays& xs, const NDArrays& tangents,
                      std::source_location where) {
  check_count("jvp", "tangents", tangents.size(), xs.size(), where);
  for (std::size_t i = 0; i < xs.size(); ++i) check_like("jvp", "a tangent", tangents[i], xs[i], where);
  const Called call("jvp", f, xs, tangents, where);
  // The product with the transposed matrix is a linear function of u, and its transposed is the product.
  Pairs backwards, forwards;
  Arrays us;
  for (const NDArray& y : call.ys) {
    const DeviceScope scope(y.device());
    us.push_back(zeros(y.shape(), y.dtype(), where));
    if (is_floating(y.dtype())) us.back().with_grad(where);
    if (is_floating(y.dtype())) backwards.add(y, us.back());
  }
  const Arrays gradients = backwards.gradients(call.xs, true, where);
  for (std::size_t i = 0; i < gradients.size(); ++i) forwards.add(gradients[i], tangents[i]);
  return call.result(forwards.gradients(us, call.recorded, where), call.ys);
}

ValuesAndProducts hessian_vector_product(const ArrayFunction& f, const NDArrays& xs, const NDArrays& vs,
                                         std::source_location where) {
  const char* const name = "hessian_vector_product";
  check_count(name, "vectors", vs.size(), xs.size(), where);
  for (std::size_t i = 0; i < xs.size(); ++i) check_like(name, "a vector", vs[i], xs[i], where);
  const Called call(name, f, xs, vs, where);
  if (call.ys.size() != 1 || call.ys[0].count() != 1) {
    throw ArrayError(name, where, "a function whose result is not one array of one element");
  }
  Pairs first, second;
  first.add(call.ys[0], NDArray());
  const Arrays gradients = first.gradients(call.xs, true, where);
  for (std::size_t i = 0; i < gradients.size(); ++i) second.add(gradients[i], vs[i]);
  return call.result(second.gradients(call.xs, call.recorded, where), call.xs);
}

}  // namespace sluice
