// Attention: its row, its gradient's, and the gradient's gradient, which is made of operators.
#include "sluice/operators/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void infer_attention(Signature& s) {
  s.same_dtypes();
  s.floating();
  for (int i = 0; i < s.inputs(); ++i) s.rank(i, 4);
  const Dims &q = s.shape(0), &k = s.shape(1), &v = s.shape(2);
  if (k[0] != q[0] || v[0] != q[0]) s.fail("batches differ");
  if (k[1] != v[1] || k[2] != v[2]) s.fail("keys and values differ in number");
  if (k[3] != q[3] || q[3] < 1) s.fail("queries and keys differ in size, or have none");
  if (q[1] != k[1] && (k[1] < 1 || q[1] % k[1] != 0)) s.fail("heads are not a multiple of the keys' groups");
  if (s.inputs() == 4) {
    const Dims scores{q[0], q[1], q[2], k[2]};
    for (int i = 0; i < 4; ++i) {
      if (s.shape(3)[i] != 1 && s.shape(3)[i] != scores[i])
        s.fail("the mask does not broadcast to " + to_string(scores));
    }
  }
  s.output({q[0], q[1], q[2], v[3]}, s.dtype());
  s.output({q[0], q[1], q[2]}, s.dtype() == DType::f64 ? DType::f64 : DType::f32);
}

/// The gradients of q, k and v by operators: the scores are there as a whole.
std::array<NDArray, 3> composed_gradients(GradientContext& c) {
  const auto& a = c.attributes().get<AttentionAttributes>();
  const NDArray &q = c.input(0), &k = c.input(1), &v = c.input(2), &g = c.gradient(0);
  const std::int64_t batch = q.shape()[0], heads = q.shape()[1], groups = k.shape()[1], n = q.shape()[2],
                     m = k.shape()[2], of_group = groups == 0 ? 1 : heads / groups;
  // (batch, groups, heads of one group, rows, size), where keys and values have one head for all.
  const auto by_groups = [&](const NDArray& x) {
    return x.reshape({batch, groups, of_group, x.shape()[2], x.shape()[3]});
  };
  // A row that is not finite must count for those alone who see it, which a product of matrices cannot know: there are
  // zeros in its place, and NaN is added to what is made of it for each pair.
  const bool hides = a.causal || c.inputs() == 4;
  const auto finite = [&](const NDArray& x) { return hides ? where(isfinite(x), x, 0) : x; };
  const auto marked = [&](const NDArray& of_pairs, const NDArray& x, int other_axis) {
    if (!hides) return of_pairs;
    const NDArray marks = where(all(isfinite(x), -1), zeros({}, x.dtype()), std::numeric_limits<double>::quiet_NaN());
    return of_pairs + marks.unsqueeze(other_axis);
  };
  const NDArray all_queries = by_groups(q), all_keys = k.unsqueeze(2), all_values = v.unsqueeze(2),
                of_result = by_groups(g);
  const NDArray queries = finite(all_queries), keys = finite(all_keys), values = finite(all_values);
  NDArray scores = matmul(queries, keys, {.transpose_b = true}) * a.scale;
  scores = marked(marked(scores, all_queries, 4), all_keys, 3);
  NDArray dp = marked(matmul(of_result, values, {.transpose_b = true}), all_values, 3);
  if (c.inputs() == 4) {
    const NDArray& mask = c.input(3);
    const Dims& s = mask.shape();
    const NDArray added = mask.reshape({s[0], s[1] == 1 ? 1 : groups, s[1] == 1 ? 1 : of_group, s[2], s[3]});
    const NDArray unseen = added == -kInfinity;
    scores = where(unseen, -kInfinity, scores + added);
    dp = where(unseen, 0, dp);
  }
  if (a.causal) {
    const NDArray seen = arange(m).unsqueeze(0) <= arange(n).unsqueeze(1) + (m - n);
    scores = where(seen, scores, -kInfinity);
    dp = where(seen, dp, 0);
  }
  const NDArray sees = (c.output(1) > -kInfinity).reshape({batch, groups, of_group, n, 1});
  const NDArray p = where(sees, softmax(where(sees, scores, 0)), 0);
  const NDArray ds = p * (dp - sum(dp * p, -1, {.keep = true})) * a.scale;
  return {matmul(ds, keys).reshape(q.shape()), sum(matmul(ds, queries, {.transpose_a = true}), 2),
          sum(matmul(p, of_result, {.transpose_a = true}), 2)};
}

void attention_gradient(GradientContext& c) {
  if (c.create_graph()) {
    const ScopeGuard scope;  // what it makes from nothing lies beside q
    current_scope().device = c.input(0).device();
    const std::array<NDArray, 3> gradients = composed_gradients(c);
    for (int i = 0; i < 3; ++i) {
      if (c.wanted(i)) c.set(i, gradients[static_cast<std::size_t>(i)]);
    }
    return;
  }
  const Operator& row = detail::first_use([] { return &Registry::instance().get("attention_grad"); });
  std::vector<const NDArray*> inputs{&c.input(0), &c.input(1), &c.input(2), &c.output(0), &c.output(1), &c.gradient(0)};
  if (c.inputs() == 4) inputs.push_back(&c.input(3));
  const std::vector<NDArray> gradients = apply_all(row, inputs, c.attributes(), {.where = c.where()});
  for (int i = 0; i < 3; ++i) {
    if (c.wanted(i)) c.set(i, gradients[static_cast<std::size_t>(i)]);
  }
}

/// Batches may be cut; heads too, with those of keys that they share, and queries that see all keys. `mask` is its
/// input.
void place_attention(Placing& p, int mask) {
  const char head = 'h';
  p.groups(head);
  const char query = p.attributes<AttentionAttributes>().causal ? '_' : 'n';
  const std::string q{'b', head, query, '_'}, k{'b', head, '_', '_'}, logarithms{'b', head, query};
  const bool gradient = mask == 6;
  std::string seen = "____";
  if (p.inputs() > mask) {
    const Dims scores{p.shape(0)[0], p.shape(0)[1], p.shape(0)[2], p.shape(1)[2]};
    for (int i = 0; i < 3; ++i) {
      if (p.shape(mask)[i] == scores[i]) seen[static_cast<std::size_t>(i)] = q[static_cast<std::size_t>(i)];
    }
  }
  if (!gradient) return p.letters(q + "," + k + "," + k + "," + seen + "->" + q + "," + logarithms);
  p.letters(q + "," + k + "," + k + "," + q + "," + logarithms + "," + q + "," + seen + "->" + q + "," + k + "," + k);
  p.adds(ReduceOp::sum);  // of the keys' and values' gradients, over queries
  for (const int i : {1, 2, mask}) p.factor(i);
}

/// Pairs of a query and a key that it may see, whatever a mask says.
double pairs(const Signature& s) {
  const Dims &q = s.shape(0), &k = s.shape(1);
  const auto n = static_cast<double>(q[2]), m = static_cast<double>(k[2]), heads = static_cast<double>(q[0] * q[1]);
  if (!s.attributes<AttentionAttributes>().causal) return heads * n * m;
  // The last min(n, m) queries see m, m - 1, ... keys.
  const double seeing = std::min(n, m);
  return heads * seeing * (2 * m - seeing + 1) / 2;
}

/// Both products, and a softmax of the scores.
Cost attention_cost(const Signature& s) {
  const double products = 2 * static_cast<double>(s.shape(0)[3] + s.shape(2)[3]);
  return costs::of(pairs(s) * (products + 5), s);
}

/// The scores again, and four products: of the probabilities' gradient, and of those of q, k and v.
Cost attention_gradient_cost(const Signature& s) {
  const double products = 2 * static_cast<double>(3 * s.shape(0)[3] + 2 * s.shape(2)[3]);
  return costs::of(pairs(s) * (products + 5), s);
}

/// With axes of size 1 in front, until there are four.
NDArray of_four_axes(NDArray x) {
  while (x.rank() < 4) x = x.unsqueeze(0);
  return x;
}

}  // namespace

void builtin::add_attention_rows(Registry& registry) {
  // Inputs: q, k, v, and a mask to add, or none. Outputs: the result, and the logarithm of each query's sum of
  // exponentials, which the gradient needs.
  add_operator(registry, "attention", [](Operator& op) {
    op.place = [](Placing& p) { place_attention(p, 3); };
    op.cost = attention_cost;
    op.min_inputs = 3;
    op.max_inputs = 4;
    op.infer = infer_attention;
    const Needs all_of_it =
        needs::input(0) | needs::input(1) | needs::input(2) | needs::input(3) | needs::output(0) | needs::output(1);
    op.needs = {all_of_it, all_of_it, all_of_it, Needs()};
    op.joint_gradient = true;
    op.gradient = attention_gradient;
  });
  // Inputs: q, k, v, the result, the logarithms, the result's gradient, and the mask. Outputs: the gradients of q, k,
  // v.
  add_operator(registry, "attention_grad", [](Operator& op) {
    op.place = [](Placing& p) { place_attention(p, 6); };
    op.cost = attention_gradient_cost;
    op.min_inputs = 6;
    op.max_inputs = 7;
    op.infer = [](Signature& s) {
      for (int i = 0; i < 3; ++i) s.output(s.shape(i), s.dtype());
    };
  });
}

NDArray attention(const Operand& q, const NDArray& k, const NDArray& v, const AttentionOptions& options) {
  const builtin::Composition made("attention", q);
  k.checked("attention", made.where());
  v.checked("attention", made.where());
  const int rank = q.array.rank();
  if (rank < 2 || rank > 4 || k.rank() != rank || v.rank() != rank) {
    made.fail(to_string(q.array.shape()) + " x " + to_string(k.shape()) + " x " + to_string(v.shape()) +
              ": needs three arrays of 2 to 4 axes");
  }
  const NDArray queries = of_four_axes(q.array), keys = of_four_axes(k), values = of_four_axes(v);
  const double size = static_cast<double>(queries.shape()[3]);
  const AttentionAttributes attributes{options.scale != 0 ? options.scale : 1 / std::sqrt(size), options.causal};
  const Operator& row = detail::first_use([] { return &Registry::instance().get("attention"); });
  NDArray result;
  if (options.mask.defined()) {
    made.require(options.mask.rank() <= 4, "the mask has more than 4 axes");
    made.require(!options.mask.requires_grad(), "a mask gets no gradient; use detach()");
    const DType dtype = q.array.dtype();
    NDArray mask = of_four_axes(options.mask);
    if (mask.dtype() == DType::boolean) mask = where(mask, zeros({}, dtype), -kInfinity);
    if (!is_floating(mask.dtype()))
      made.fail("a mask is of bools or floating, not " + std::string(name_of(mask.dtype())));
    mask = mask.to(dtype);
    result = apply(row, {&queries, &keys, &values, &mask}, attributes);
  } else {
    result = apply(row, {&queries, &keys, &values}, attributes);
  }
  while (result.rank() > rank) result = result.squeeze(0);
  return result;
}

}  // namespace sluice
