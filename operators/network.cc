// Dropout, embeddings, recurrent cells and positions, made of operators.
#include "sluice/operators/network.h"

#include <cmath>
#include <vector>

#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/shaping.h"

namespace sluice {

NDArray dropout(const Operand& x, double p, RandomStream& stream, const DropoutOptions& options) {
  const builtin::Composition made("dropout", x);
  made.require(p >= 0 && p <= 1, "p must be from 0 to 1");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  if (p == 0 || !options.training) return x.array;
  // f32 for every dtype of x: the same elements are dropped.
  const NDArray kept = builtin::uniform_like(x.array, stream, options.first, made.where()) >= static_cast<float>(p);
  return where(kept, x.array * (p < 1 ? 1 / (1 - p) : 0), 0);
}

NDArray embedding(const Operand& weight, const NDArray& indices) {
  const builtin::Composition made("embedding", weight);
  indices.checked("embedding", made.where());
  made.require(weight.array.rank() > 0, "a scalar has no rows");
  const Dims& rows = weight.array.shape();
  if (indices.rank() + rows.rank() - 1 > kMaxRank) made.fail("the result has too many axes");
  Dims shape = indices.shape();
  for (int i = 1; i < rows.rank(); ++i) shape.push_back(rows[i]);
  return take_rows(weight.array, indices.reshape({indices.count()})).reshape(shape);
}

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

}  // namespace

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

NDArray rotary_embedding(const Operand& x, const RotaryOptions& options) {
  const builtin::Composition made("rotary_embedding", x);
  const Dims& shape = x.array.shape();
  const int rank = shape.rank();
  if (rank < 2 || shape[rank - 1] % 2 != 0) made.fail(to_string(shape) + " is not (..., positions, an even size)");
  made.require(options.base > 0, "base must be above 0");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  const std::int64_t positions = shape[rank - 2], half = shape[rank - 1] / 2;
  std::int64_t end = 0;
  if (__builtin_add_overflow(options.first, positions, &end)) {
    made.fail(std::to_string(positions) + " positions from " + std::to_string(options.first) + " on cannot be counted");
  }
  const NDArray t = arange(options.first, end, 1, DType::f64).unsqueeze(1);
  const NDArray turn = exp(arange(0, half, 1, DType::f64) *
                           (-std::log(options.base) / static_cast<double>(std::max<std::int64_t>(half, 1))));
  const DType dtype = x.array.dtype();
  const NDArray angles = t * turn, cosine = cos(angles).to(dtype), sine = sin(angles).to(dtype);
  if (options.interleaved) {
    Dims pairs = shape;
    pairs[rank - 1] = half;
    if (rank == kMaxRank) made.fail("too many axes");
    pairs.push_back(2);
    const NDArray seen = x.array.reshape(pairs), a = seen.narrow(rank, 0, 1).squeeze(rank),
                  b = seen.narrow(rank, 1, 2).squeeze(rank);
    return stack({a * cosine - b * sine, a * sine + b * cosine}, rank).reshape(shape);
  }
  const NDArray a = x.array.narrow(rank - 1, 0, half), b = x.array.narrow(rank - 1, half, 2 * half);
  return concat({a * cosine - b * sine, a * sine + b * cosine}, rank - 1);
}

}  // namespace sluice
