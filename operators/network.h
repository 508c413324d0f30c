// Operators of networks: dropout, embeddings, recurrent layers, positions. All have gradients and gradients of
// gradients on every device: they are rows that can be written in other rows, or functions made of operators. They
// throw ArrayError where shapes or dtypes do not fit.
#pragma once

#include "sluice/operators/registry.h"
#include "sluice/resources/random.h"

namespace sluice {

struct DropoutOptions {
  bool training = true;     ///< false: x itself is the result, no copy but a view
  std::uint64_t first = 0;  ///< for an x that is a part of a larger array: the index of its first element there
};
/// Zeros in the place of each element of x with probability p, and the others divided by 1 - p. Which elements depends
/// on the stream's draw, of which each call takes one (none where p is 0 or it is not trained), and on their row-major
/// indices: so it is the same on every device and in every dtype. Nothing is kept for the gradient, which draws the
/// same numbers again. Where p is 0 the result is x itself, a view. Throws for p outside of [0, 1].
NDArray dropout(const Operand& x, double p, RandomStream& stream, const DropoutOptions& options = {});

/// The rows of weight (rows, ...) with these numbers: indices (i64, i32 or u8) of any shape (a, b, ...) give
/// (a, b, ..., ...). The op fails for a number out of range. The gradient adds in the order of the indices. Of a weight
/// on a mesh that is cut by rows each place takes those that it has, and zeros for others: the result is partial(sum).
NDArray embedding(const Operand& weight, const NDArray& indices);

/// Weights of a recurrent layer of `size` units. The gates follow each other along axis 0, as PyTorch orders them.
struct RecurrentWeights {
  NDArray input;             ///< (gates * size, in)
  NDArray hidden;            ///< (gates * size, size)
  NDArray input_bias = {};   ///< (gates * size,), or an empty handle
  NDArray hidden_bias = {};  ///< likewise
};
struct LstmState {
  NDArray hidden;  ///< (n, size)
  NDArray cell;    ///< (n, size)
};
/// One step: x (n, in). Gates are input, forget, cell, output.
LstmState lstm_cell(const Operand& x, const LstmState& state, const RecurrentWeights& weights);
/// One step: x (n, in), hidden (n, size). Gates are reset, update, new.
NDArray gru_cell(const Operand& x, const NDArray& hidden, const RecurrentWeights& weights);

struct LstmResult {
  NDArray outputs;  ///< (steps, n, size)
  LstmState state;  ///< after the last step
};
/// All steps of x (steps, n, in), one at least: one operator, with a kernel on CPUs, and made of products and gates by
/// the step elsewhere and where dtypes differ.
LstmResult lstm(const Operand& x, const LstmState& state, const RecurrentWeights& weights);
struct GruResult {
  NDArray outputs;  ///< (steps, n, size)
  NDArray hidden;   ///< after the last step
};
/// The same of a gru_cell.
GruResult gru(const Operand& x, const NDArray& hidden, const RecurrentWeights& weights);

struct RotaryOptions {
  double base = 10000;
  std::int64_t first = 0;    ///< the position of the first row
  bool interleaved = false;  ///< elements 2i and 2i + 1 are turned together; else i and i + size / 2
};
/// Rotary position embedding of x (..., positions, size), size even: pair i of the row at position t is turned by the
/// angle t base^(-2 i / size). Angles are computed in f64.
NDArray rotary_embedding(const Operand& x, const RotaryOptions& options = {});

}  // namespace sluice
