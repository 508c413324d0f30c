// Recurrent layers: cells made of operators, and LSTM's row for whole sequences.
#include <array>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/scope.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/network.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

/// Sizes of a recurrent layer, checked.
struct Recurrent {
  const builtin::Composition& made;
  const RecurrentWeights& weights;
  std::int64_t size, gates;

  Recurrent(const builtin::Composition& m, const NDArray& x, int rank, const NDArray& hidden, const RecurrentWeights& w,
            std::int64_t n_gates)
      : made(m), weights(w), gates(n_gates) {
    for (const NDArray* array : {&hidden, &w.input, &w.hidden}) array->checked("weights", made.where());
    if (hidden.rank() != 2) made.fail("the state " + to_string(hidden.shape()) + " is not (n, size)");
    size = hidden.shape()[1];
    const Dims of_gates{gates * size};
    if (x.rank() != rank || x.shape()[rank - 2] != hidden.shape()[0]) {
      made.fail(to_string(x.shape()) + " with a state of " + to_string(hidden.shape()) + ": " +
                (rank == 2 ? "x is (n, in)" : "x is (steps, n, in)"));
    }
    if (!(w.hidden.shape() == Dims{gates * size, size})) {
      made.fail("the hidden weight is " + to_string(w.hidden.shape()) + ", not " + to_string(Dims{gates * size, size}));
    }
    if (!(w.input.shape() == Dims{gates * size, x.shape().back()})) {
      made.fail("the input weight is " + to_string(w.input.shape()) + ", not " +
                to_string(Dims{gates * size, x.shape().back()}));
    }
    for (const NDArray* bias : {&w.input_bias, &w.hidden_bias}) {
      if (bias->defined() && !(bias->shape() == of_gates)) made.fail("a bias is not " + to_string(of_gates));
    }
  }
  /// What the inputs of all steps add to the gates: (steps * n, gates * size).
  NDArray of_inputs(const NDArray& x) const {
    const std::int64_t in = x.shape().back();
    return linear(x.reshape({x.rank() == 2 ? x.shape()[0] : x.shape()[0] * x.shape()[1], in}), weights.input,
                  weights.input_bias);
  }
  NDArray of_hidden(const NDArray& hidden) const { return linear(hidden, weights.hidden, weights.hidden_bias); }
  NDArray gate(const NDArray& all_gates, std::int64_t i) const { return all_gates.narrow(1, i * size, (i + 1) * size); }

  /// `inputs`: one step's part of of_inputs.
  LstmState lstm_step(const NDArray& inputs, const LstmState& state) const {
    const NDArray all_gates = inputs + of_hidden(state.hidden);
    const NDArray cell =
        sigmoid(gate(all_gates, 1)) * state.cell + sigmoid(gate(all_gates, 0)) * tanh(gate(all_gates, 2));
    return {sigmoid(gate(all_gates, 3)) * tanh(cell), cell};
  }
  NDArray gru_step(const NDArray& inputs, const NDArray& hidden) const {
    const NDArray before = of_hidden(hidden);
    const NDArray reset = sigmoid(gate(inputs, 0) + gate(before, 0)),
                  update = sigmoid(gate(inputs, 1) + gate(before, 1));
    const NDArray fresh = tanh(gate(inputs, 2) + reset * gate(before, 2));
    return fresh + update * (hidden - fresh);
  }
};

void check_cell(const builtin::Composition& made, const LstmState& state) {
  state.cell.checked("lstm", made.where());
  made.require(state.hidden.shape() == state.cell.shape(), "the cell's state has another shape than the hidden one");
}

NDArray sum_of(const NDArray& a, const NDArray& b) { return !b.defined() ? a : !a.defined() ? b : a + b; }

/// Whether the row takes them: plain arrays of f32 or f64, on a device with kernels for it.
bool has_row(const NDArray& x, const LstmState& state, const RecurrentWeights& w) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("lstm"); });
  for (const NDArray* array : {&x, &state.hidden, &state.cell, &w.input, &w.hidden, &w.input_bias, &w.hidden_bias}) {
    if (array->defined() && (owner_of(*array) || array->dtype() != x.dtype())) return false;
  }
  return row.kernel(x.device().kind, x.dtype()) != nullptr;
}

/// Gates are activated ones. What reaches a gate before its activation, of what reaches it behind that.
NDArray before_sigmoid(const NDArray& g, const NDArray& y) { return g * y * (1 - y); }
NDArray before_tanh(const NDArray& g, const NDArray& y) { return g * (1 - y * y); }

/// lstm_grad by operators, for gradients of gradients: of the inputs to the gates, and of the first state.
std::array<NDArray, 3> composed_gradients(const NDArray& of_hidden, const NDArray& of_cells, const NDArray& of_gates,
                                          const NDArray& gates, const NDArray& cells, const NDArray& cell,
                                          const NDArray& weight) {
  const std::int64_t steps = cells.shape()[0], size = cells.shape()[2];
  const auto gate = [&](const NDArray& all, std::int64_t t, std::int64_t i) {
    return all(t).narrow(1, i * size, (i + 1) * size);
  };
  NDArray hidden, carried;  // gradients that the step behind gives
  std::vector<NDArray> before(static_cast<std::size_t>(steps));
  for (std::int64_t t = steps; t-- > 0;) {
    const NDArray in = gate(gates, t, 0), forget = gate(gates, t, 1), fresh = gate(gates, t, 2),
                  out = gate(gates, t, 3), squashed = tanh(cells(t));
    const NDArray of_h = sum_of(of_hidden(t), hidden);
    const NDArray of_c = sum_of(of_cells(t) + before_tanh(of_h * out, squashed), carried);
    std::array<NDArray, 4> of_gate{of_c * fresh, of_c * (t > 0 ? cells(t - 1) : cell), of_c * in, of_h * squashed};
    if (of_gates.defined()) {
      for (std::size_t i = 0; i < 4; ++i) of_gate[i] = of_gate[i] + gate(of_gates, t, static_cast<std::int64_t>(i));
    }
    const NDArray of_step = concat({before_sigmoid(of_gate[0], in), before_sigmoid(of_gate[1], forget),
                                    before_tanh(of_gate[2], fresh), before_sigmoid(of_gate[3], out)},
                                   1);
    hidden = matmul(of_step, weight);
    carried = of_c * forget;
    before[static_cast<std::size_t>(t)] = of_step;
  }
  return {stack(before), hidden, carried};
}

void lstm_gradient(GradientContext& c) {
  const NDArray &first = c.input(1), &cell = c.input(2), &weight = c.input(3);
  const NDArray &hidden = c.output(0), &cells = c.output(1), &gates = c.output(2);
  const std::int64_t steps = hidden.shape()[0], n = hidden.shape()[1], size = hidden.shape()[2];
  std::array<NDArray, 3> gradients;
  if (c.create_graph()) {
    gradients = composed_gradients(c.gradient(0), c.gradient(1), c.has_gradient(2) ? c.gradient(2) : NDArray(), gates,
                                   cells, cell, weight);
  } else {
    const Operator& row = detail::first_use([] { return &Registry::instance().get("lstm_grad"); });
    std::vector<const NDArray*> inputs{&c.gradient(0), &c.gradient(1), &gates, &cells, &cell, &weight};
    if (c.has_gradient(2)) inputs.push_back(&c.gradient(2));
    const std::vector<NDArray> made = apply_all(row, inputs, {}, {.where = c.where()});
    std::copy(made.begin(), made.end(), gradients.begin());
  }
  for (int i = 0; i < 3; ++i) {
    if (c.wanted(i)) c.set(i, gradients[static_cast<std::size_t>(i)]);
  }
  if (!c.wanted(3)) return;
  NDArray before = first.unsqueeze(0);  // the hidden state before each step
  if (steps > 1) before = concat({before, hidden.narrow(0, 0, steps - 1)}, 0);
  c.set(3,
        matmul(gradients[0].reshape({steps * n, 4 * size}), before.reshape({steps * n, size}), {.transpose_a = true}));
}

/// Inputs: (steps, n, 4 size) for the gates, the first state, the hidden weight.
void infer_lstm(Signature& s) {
  s.same_dtypes();
  s.floating();
  s.rank(0, 3);
  const Dims& x = s.shape(0);
  const std::int64_t steps = x[0], n = x[1], size = x[2] / 4;
  if (steps < 1 || x[2] != 4 * size) s.fail("the gates' inputs are not (steps, n, 4 size)");
  for (const int i : {1, 2}) {
    if (!(s.shape(i) == Dims{n, size})) s.fail("a state is not (n, size)");
  }
  if (!(s.shape(3) == Dims{4 * size, size})) s.fail("the hidden weight is not (4 size, size)");
  s.output({steps, n, size}, s.dtype());
  s.output({steps, n, size}, s.dtype());
  s.output(x, s.dtype());
}

/// A product with the hidden weight in each step, and some twenty operations for each unit.
Cost lstm_cost(const Signature& s) {
  const Dims& gates = s.outputs().size() == 3 && s.inputs() == 4 ? s.shape(0) : s.shape(2);
  return costs::of(costs::count(gates) * (2 * static_cast<double>(gates[2] / 4) + 5), s);
}

}  // namespace

void builtin::add_recurrent_rows(Registry& registry) {
  // Outputs: the hidden states and the cells behind each step, and the activated gates, which the gradient needs.
  add_operator(registry, "lstm", [](Operator& op) {
    op.cost = lstm_cost;
    op.min_inputs = op.max_inputs = 4;
    op.infer = infer_lstm;
    const Needs kept =
        needs::input(1) | needs::input(2) | needs::input(3) | needs::output(0) | needs::output(1) | needs::output(2);
    op.needs = {kept, kept, kept, kept};
    op.joint_gradient = true;
    op.gradient = lstm_gradient;
  });
  // Inputs: the gradients of the hidden states and of the cells, the gates, the cells, the first cell, the hidden
  // weight, and the gates' gradient, or none. Outputs: the gradients of the gates' inputs and of the first state.
  add_operator(registry, "lstm_grad", [](Operator& op) {
    op.cost = lstm_cost;
    op.min_inputs = 6;
    op.max_inputs = 7;
    op.infer = [](Signature& s) {
      s.output(s.shape(2), s.dtype());
      s.output(s.shape(4), s.dtype());
      s.output(s.shape(4), s.dtype());
    };
  });
}

LstmState lstm_cell(const Operand& x, const LstmState& state, const RecurrentWeights& weights) {
  const builtin::Composition made("lstm_cell", x);
  const Recurrent layer(made, x.array, 2, state.hidden, weights, 4);
  check_cell(made, state);
  return layer.lstm_step(layer.of_inputs(x.array), state);
}

NDArray gru_cell(const Operand& x, const NDArray& hidden, const RecurrentWeights& weights) {
  const builtin::Composition made("gru_cell", x);
  const Recurrent layer(made, x.array, 2, hidden, weights, 3);
  return layer.gru_step(layer.of_inputs(x.array), hidden);
}

LstmResult lstm(const Operand& x, const LstmState& state, const RecurrentWeights& weights) {
  const builtin::Composition made("lstm", x);
  const Recurrent layer(made, x.array, 3, state.hidden, weights, 4);
  check_cell(made, state);
  const std::int64_t steps = x.array.shape()[0], n = x.array.shape()[1];
  made.require(steps > 0, "needs a step at least");
  if (has_row(x.array, state, weights)) {
    RecurrentWeights of_inputs = weights;  // both biases are added to what the inputs give
    of_inputs.input_bias = sum_of(weights.input_bias, weights.hidden_bias);
    const NDArray inputs =
        Recurrent(made, x.array, 3, state.hidden, of_inputs, 4).of_inputs(x.array).reshape({steps, n, 4 * layer.size});
    const Operator& row = detail::first_use([] { return &Registry::instance().get("lstm"); });
    const std::vector<NDArray> results =
        apply_all(row, std::array{&inputs, &state.hidden, &state.cell, &weights.hidden}, {}, {.where = made.where()});
    // A copy: who keeps the state does not keep all steps, nor write to them.
    const auto last = [&](const NDArray& y) { return y.narrow(0, steps - 1, steps).squeeze(0).copy(made.where()); };
    return {results[0], {last(results[0]), last(results[1])}};
  }
  const NDArray inputs = layer.of_inputs(x.array);
  std::vector<NDArray> outputs;
  LstmState now = state;
  for (std::int64_t t = 0; t < steps; ++t) {
    now = layer.lstm_step(inputs.narrow(0, t * n, (t + 1) * n), now);
    outputs.push_back(now.hidden);
  }
  return {stack(outputs), now};
}

GruResult gru(const Operand& x, const NDArray& hidden, const RecurrentWeights& weights) {
  const builtin::Composition made("gru", x);
  const Recurrent layer(made, x.array, 3, hidden, weights, 3);
  const std::int64_t steps = x.array.shape()[0], n = x.array.shape()[1];
  made.require(steps > 0, "needs a step at least");
  const NDArray inputs = layer.of_inputs(x.array);
  std::vector<NDArray> outputs;
  NDArray now = hidden;
  for (std::int64_t t = 0; t < steps; ++t) {
    now = layer.gru_step(inputs.narrow(0, t * n, (t + 1) * n), now);
    outputs.push_back(now);
  }
  return {stack(outputs), now};
}

}  // namespace sluice
