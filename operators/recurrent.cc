// Recurrent layers: cells made of operators, and the rows of LSTM and GRU for whole sequences.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/scope.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/compose.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/linear_rows.h"
#include "sluice/operators/network.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"
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
  /// What the inputs of all steps add to the gates: (steps, n, gates * size), without the steps for a cell.
  NDArray of_inputs(const NDArray& x) const { return linear(x, weights.input, weights.input_bias); }
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

/// Whether they are for a row: all that are there have one dtype. Where nothing is recorded and there is no kernel,
/// steps take less memory than the row made of other rows, which gives what its gradient needs. Owners other than a
/// mesh may not know the row.
bool for_row(const Operator& row, const NDArray& x, const RecurrentWeights& w,
             std::initializer_list<const NDArray*> states) {
  const auto fits = [&](const NDArray* array) {
    return !array->defined() ||
           (array->dtype() == x.dtype() && (!array->array()->owned() || builtin::Placed::of(*array)));
  };
  return std::ranges::all_of(states, fits) &&
         std::ranges::all_of(std::array{&x, &w.input, &w.hidden, &w.input_bias, &w.hidden_bias}, fits) &&
         (grad_mode() || row.kernel(x.device().kind, x.dtype()) != nullptr);
}

/// By cells: `step` takes what a step's inputs add to the gates, and gives the hidden state behind it.
template <class Step>
NDArray each_step(const NDArray& inputs, const Step& step) {
  std::vector<NDArray> outputs;
  for (std::int64_t t = 0; t < inputs.shape()[0]; ++t) outputs.push_back(step(inputs(t)));
  return stack(outputs);
}

/// The last of the states that a row gives. A copy: who keeps it does not keep all steps, nor write to them.
NDArray last_of(const NDArray& states, const builtin::Composition& made) {
  const std::int64_t steps = states.shape()[0];
  return states.narrow(0, steps - 1, steps).squeeze(0).copy(made.where());
}

/// Gate i of step t.
NDArray gate_of(const NDArray& all, std::int64_t t, std::int64_t i, std::int64_t size) {
  return all(t).narrow(1, i * size, (i + 1) * size);
}

/// Gates are activated ones. What reaches a gate before its activation, of what reaches it behind that.
NDArray before_sigmoid(const NDArray& g, const NDArray& y) { return g * y * (1 - y); }
NDArray before_tanh(const NDArray& g, const NDArray& y) { return g * (1 - y * y); }

/// lstm: a product with the hidden weight in each step.
void compose_lstm(ComposeContext& c) {
  const NDArray &inputs = c.input(0), &weight = c.input(3);
  NDArray hidden = c.input(1), cell = c.input(2);
  const std::int64_t size = hidden.shape()[1];
  std::vector<NDArray> all_hidden, all_cells, all_gates;
  for (std::int64_t t = 0; t < inputs.shape()[0]; ++t) {
    const NDArray before = inputs(t) + matmul(hidden, weight, {.transpose_b = true});
    const auto gate = [&](std::int64_t i) { return before.narrow(1, i * size, (i + 1) * size); };
    const NDArray in = sigmoid(gate(0)), forget = sigmoid(gate(1)), fresh = tanh(gate(2)), out = sigmoid(gate(3));
    cell = forget * cell + in * fresh;
    hidden = out * tanh(cell);
    all_hidden.push_back(hidden);
    all_cells.push_back(cell);
    all_gates.push_back(concat({in, forget, fresh, out}, 1));
  }
  c.set(0, stack(all_hidden));
  c.set(1, stack(all_cells));
  c.set(2, stack(all_gates));
}

/// lstm_grad: of the inputs to the gates, and of the first state.
void compose_lstm_grad(ComposeContext& c) {
  const NDArray &of_hidden = c.input(0), &of_cells = c.input(1), &gates = c.input(2), &cells = c.input(3),
                &cell = c.input(4), &weight = c.input(5), of_gates = c.input_or_none(6);
  const std::int64_t steps = cells.shape()[0], size = cells.shape()[2];
  const auto gate = [&](const NDArray& all, std::int64_t t, std::int64_t i) { return gate_of(all, t, i, size); };
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
  c.set(0, stack(before));
  c.set(1, hidden);
  c.set(2, carried);
}

/// Of what the hidden states give to the gates, (steps, n, gates * size): the gradient of the hidden weight.
NDArray weight_gradient(const NDArray& of_gates, const NDArray& first, const NDArray& hidden,
                        const std::source_location& where) {
  const std::int64_t steps = hidden.shape()[0];
  NDArray before = first.unsqueeze(0);  // the hidden state before each step
  if (steps > 1) before = concat({before, hidden.narrow(0, 0, steps - 1)}, 0);
  return builtin::rows_product(of_gates, before, where);
}

void lstm_gradient(GradientContext& c) {
  const NDArray &cell = c.input(2), &weight = c.input(3), &cells = c.output(1), &gates = c.output(2);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("lstm_grad"); });
  std::vector<const NDArray*> inputs{&c.gradient(0), &c.gradient(1), &gates, &cells, &cell, &weight};
  if (c.has_gradient(2)) inputs.push_back(&c.gradient(2));
  const std::vector<NDArray> gradients = builtin::gradient_by(row, inputs, {}, c);
  for (int i = 0; i < 3; ++i) {
    if (c.wanted(i)) c.set(i, gradients[static_cast<std::size_t>(i)]);
  }
  if (c.wanted(3)) c.set(3, weight_gradient(gradients[0], c.input(1), c.output(0), c.where()));
}

/// gru: a product with the hidden weight in each step.
void compose_gru(ComposeContext& c) {
  const NDArray &inputs = c.input(0), &weight = c.input(2), bias = c.input_or_none(3);
  NDArray hidden = c.input(1);
  const std::int64_t size = hidden.shape()[1];
  std::vector<NDArray> all_hidden, all_gates;
  for (std::int64_t t = 0; t < inputs.shape()[0]; ++t) {
    const NDArray of_inputs = inputs(t), of_hidden = linear(hidden, weight, bias);
    const auto gate = [&](const NDArray& of, std::int64_t i) { return of.narrow(1, i * size, (i + 1) * size); };
    const NDArray reset = sigmoid(gate(of_inputs, 0) + gate(of_hidden, 0)),
                  update = sigmoid(gate(of_inputs, 1) + gate(of_hidden, 1)), before = gate(of_hidden, 2),
                  fresh = tanh(gate(of_inputs, 2) + reset * before);
    hidden = fresh + update * (hidden - fresh);
    all_hidden.push_back(hidden);
    all_gates.push_back(concat({reset, update, before, fresh}, 1));
  }
  c.set(0, stack(all_hidden));
  c.set(1, stack(all_gates));
}

/// gru_grad: of the inputs to the gates, of the first state, and of what hidden states give to the gates.
void compose_gru_grad(ComposeContext& c) {
  const NDArray &of_hidden = c.input(0), &gates = c.input(1), &hidden = c.input(2), &first = c.input(3),
                &weight = c.input(4), of_gates = c.input_or_none(5);
  const std::int64_t steps = hidden.shape()[0], size = hidden.shape()[2];
  NDArray behind;  // the gradient that the step behind gives
  std::vector<NDArray> of_inputs(static_cast<std::size_t>(steps)), of_before(of_inputs.size());
  for (std::int64_t t = steps; t-- > 0;) {
    const auto gate = [&](std::int64_t i) { return gate_of(gates, t, i, size); };
    const auto with_given = [&](const NDArray& g, std::int64_t i) {
      return of_gates.defined() ? g + gate_of(of_gates, t, i, size) : g;
    };
    const NDArray reset = gate(0), update = gate(1), before = gate(2), fresh = gate(3);
    const NDArray of_h = sum_of(of_hidden(t), behind), state = t > 0 ? hidden(t - 1) : first;
    const NDArray of_update = before_sigmoid(with_given(of_h * (state - fresh), 1), update),
                  of_fresh = before_tanh(with_given(of_h * (1 - update), 3), fresh),
                  of_reset = before_sigmoid(with_given(of_fresh * before, 0), reset);
    const std::size_t at = static_cast<std::size_t>(t);
    of_inputs[at] = concat({of_reset, of_update, of_fresh}, 1);
    of_before[at] = concat({of_reset, of_update, with_given(of_fresh * reset, 2)}, 1);
    behind = of_h * update + matmul(of_before[at], weight);
  }
  c.set(0, stack(of_inputs));
  c.set(1, behind);
  c.set(2, stack(of_before));
}

void gru_gradient(GradientContext& c) {
  const NDArray &first = c.input(1), &weight = c.input(2), &hidden = c.output(0), &gates = c.output(1);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("gru_grad"); });
  std::vector<const NDArray*> inputs{&c.gradient(0), &gates, &hidden, &first, &weight};
  if (c.has_gradient(1)) inputs.push_back(&c.gradient(1));
  const std::vector<NDArray> gradients = builtin::gradient_by(row, inputs, {}, c);
  if (c.wanted(0)) c.set(0, gradients[0]);
  if (c.wanted(1)) c.set(1, gradients[1]);
  if (c.wanted(2)) c.set(2, weight_gradient(gradients[2], first, hidden, c.where()));
  if (c.inputs() == 4 && c.wanted(3)) c.set(3, sum(gradients[2], {0, 1}));
}

/// Inputs: (steps, n, gates * size) for the gates, the first states, the hidden weight. The shape of all states.
Dims infer_states(Signature& s, std::int64_t gates, int weight) {
  s.same_dtypes();
  s.floating();
  s.rank(0, 3);
  const Dims& x = s.shape(0);
  const std::int64_t size = x[2] / gates;
  const std::string rows = std::to_string(gates) + " size";
  if (x[0] < 1 || x[2] != gates * size) s.fail("the gates' inputs are not (steps, n, " + rows + ")");
  for (int i = 1; i < weight; ++i) {
    if (!(s.shape(i) == Dims{x[1], size})) s.fail("a state is not (n, size)");
  }
  if (!(s.shape(weight) == Dims{gates * size, size})) s.fail("the hidden weight is not (" + rows + ", size)");
  return {x[0], x[1], size};
}

/// Of a row that computes gradients: states of all steps are the first of `all` and like it; there are four numbers for
/// each unit in `kept` and in what comes behind `weight`, or nothing. The shape of all states.
const Dims& infer_gradient(Signature& s, std::int64_t gates, std::initializer_list<int> all, int kept, int first,
                           int weight) {
  s.same_dtypes();
  s.floating();
  s.rank(0, 3);
  const Dims& states = s.shape(0);
  const Dims numbers{states[0], states[1], 4 * states[2]};
  for (const int i : all) {
    if (!(s.shape(i) == states)) s.fail("states of all steps are not (steps, n, size)");
  }
  if (!(s.shape(kept) == numbers) || (s.inputs() > weight + 1 && !(s.shape(weight + 1) == numbers))) {
    s.fail("what is kept of the gates, and its gradient, are not (steps, n, 4 size)");
  }
  if (!(s.shape(first) == Dims{states[1], states[2]})) s.fail("the first state is not (n, size)");
  if (!(s.shape(weight) == Dims{gates * states[2], states[2]})) {
    s.fail("the hidden weight is not (" + std::to_string(gates) + " size, size)");
  }
  return states;
}

void infer_lstm(Signature& s) {
  const Dims states = infer_states(s, 4, 3);
  s.output(states, s.dtype());
  s.output(states, s.dtype());
  s.output(s.shape(0), s.dtype());
}

void infer_gru(Signature& s) {
  const Dims states = infer_states(s, 3, 2);
  if (s.inputs() == 4 && !(s.shape(3) == Dims{3 * states[2]})) s.fail("the hidden bias is not (3 size)");
  s.output(states, s.dtype());
  s.output({states[0], states[1], 4 * states[2]}, s.dtype());
}

/// A product with the hidden weight in each step, and some five operations for each gate of a unit.
Cost cost_of(const Dims& states, int gates, const Signature& s) {
  return costs::of(gates * costs::count(states) * (2 * static_cast<double>(states[2]) + 5), s);
}

}  // namespace

void builtin::add_recurrent_rows(Registry& registry) {
  // Outputs: the hidden states and the cells behind each step, and the activated gates, which the gradient needs.
  add_operator(registry, "lstm", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("_b_,b_,b_,__->_b_,_b_,_b_"); };
    op.cost = [](const Signature& s) { return cost_of(s.outputs()[0].shape, 4, s); };
    op.min_inputs = op.max_inputs = 4;
    op.infer = infer_lstm;
    const Needs kept =
        needs::input(1) | needs::input(2) | needs::input(3) | needs::output(0) | needs::output(1) | needs::output(2);
    op.needs = {kept, kept, kept, kept};
    op.joint_gradient = true;
    op.gradient = lstm_gradient;
    op.compose = compose_lstm;
  });
  // Inputs: the gradients of the hidden states and of the cells, the gates, the cells, the first cell, the hidden
  // weight, and the gates' gradient, or none. Outputs: the gradients of the gates' inputs and of the first state.
  add_operator(registry, "lstm_grad", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("_b_,_b_,_b_,_b_,b_,__,_b_->_b_,b_,b_"); };
    op.cost = [](const Signature& s) { return cost_of(s.shape(0), 4, s); };
    op.compose = compose_lstm_grad;
    op.min_inputs = 6;
    op.max_inputs = 7;
    op.infer = [](Signature& s) {
      const Dims& states = infer_gradient(s, 4, {0, 1, 3}, 2, 4, 5);
      s.output(s.shape(2), s.dtype());
      s.output({states[1], states[2]}, s.dtype());
      s.output({states[1], states[2]}, s.dtype());
    };
  });
  // The hidden bias, or none, is the last input: reset multiplies what it adds to the new gate. Outputs: the hidden
  // states, and for each unit reset, update, what hidden states give to the new gate, and the new gate, activated.
  add_operator(registry, "gru", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("_b_,b_,__,_->_b_,_b_"); };
    op.cost = [](const Signature& s) { return cost_of(s.outputs()[0].shape, 3, s); };
    op.min_inputs = 3;
    op.max_inputs = 4;
    op.infer = infer_gru;
    const Needs kept = needs::input(1) | needs::input(2) | needs::output(0) | needs::output(1);
    op.needs = {kept, kept, kept, kept};
    op.joint_gradient = true;
    op.gradient = gru_gradient;
    op.compose = compose_gru;
  });
  // Inputs: the gradient of the hidden states, gru's second output and its first, the first state, the hidden weight,
  // and the gradient of the second output, or none. Outputs: the gradients of the gates' inputs, of the first state,
  // and of what hidden states give to the gates.
  add_operator(registry, "gru_grad", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("_b_,_b_,_b_,b_,__,_b_->_b_,b_,_b_"); };
    op.cost = [](const Signature& s) { return cost_of(s.shape(0), 3, s); };
    op.compose = compose_gru_grad;
    op.min_inputs = 5;
    op.max_inputs = 6;
    op.infer = [](Signature& s) {
      const Dims& states = infer_gradient(s, 3, {0, 2}, 1, 3, 4);
      const Dims of_gates{states[0], states[1], 3 * states[2]};
      s.output(of_gates, s.dtype());
      s.output(s.shape(3), s.dtype());
      s.output(of_gates, s.dtype());
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
  made.require(x.array.shape()[0] > 0, "needs a step at least");
  const Operator& row = detail::first_use([] { return &Registry::instance().get("lstm"); });
  if (for_row(row, x.array, weights, {&state.hidden, &state.cell})) {
    RecurrentWeights of_inputs = weights;  // both biases are added to what the inputs give
    of_inputs.input_bias = sum_of(weights.input_bias, weights.hidden_bias);
    const NDArray inputs = Recurrent(made, x.array, 3, state.hidden, of_inputs, 4).of_inputs(x.array);
    const std::vector<NDArray> results =
        apply_all(row, std::array{&inputs, &state.hidden, &state.cell, &weights.hidden}, {}, {.where = made.where()});
    return {results[0], {last_of(results[0], made), last_of(results[1], made)}};
  }
  LstmState now = state;
  const NDArray outputs = each_step(layer.of_inputs(x.array),
                                    [&](const NDArray& inputs) { return (now = layer.lstm_step(inputs, now)).hidden; });
  return {outputs, now};
}

GruResult gru(const Operand& x, const NDArray& hidden, const RecurrentWeights& weights) {
  const builtin::Composition made("gru", x);
  const Recurrent layer(made, x.array, 3, hidden, weights, 3);
  made.require(x.array.shape()[0] > 0, "needs a step at least");
  const NDArray inputs = layer.of_inputs(x.array);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("gru"); });
  if (for_row(row, x.array, weights, {&hidden})) {
    std::vector<const NDArray*> operands{&inputs, &hidden, &weights.hidden};
    if (weights.hidden_bias.defined()) operands.push_back(&weights.hidden_bias);
    const NDArray outputs = apply_all(row, operands, {}, {.where = made.where()})[0];
    return {outputs, last_of(outputs, made)};
  }
  NDArray now = hidden;
  const NDArray outputs = each_step(inputs, [&](const NDArray& of_step) { return now = layer.gru_step(of_step, now); });
  return {outputs, now};
}

}  // namespace sluice
