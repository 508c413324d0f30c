// Attention.
#pragma once

#include <array>

#include "sluice/ndarray/attribute_fields.h"
#include "sluice/operators/registry.h"

namespace sluice {

struct AttentionOptions {
  /// A query sees the keys up to its own place. The last query stands at the last key, whether or not there are as many
  /// queries as keys: query i of n sees keys 0 to i + m - n of m.
  bool causal = false;
  double scale = 0;  ///< of the scores; 0: 1 / sqrt(size)
  /// Broadcasts to the scores (batch, heads, n, m). Of bools: true where a query sees a key. Floating: added to the
  /// scores; it gets no gradient, and an array that wants one throws. An empty handle: none.
  NDArray mask = {};
};
/// softmax(scale q . transpose(k) + mask) . v for q (batch, heads, n, size), k (batch, groups, m, size) and v (batch,
/// groups, m, value size), of one floating dtype; the result is (batch, heads, n, value size). Batch, and then heads,
/// may be left out in all of them. Each group of keys and values serves heads / groups heads that follow each other. A
/// query that sees no key gives zeros.
///
/// Takes no memory for the scores: they are computed block by block, and once more for the gradient, from the logarithm
/// of each query's sum, which is kept. (A gradient that is recorded itself, create_graph, is made of matmul and softmax
/// and does take it.) On GPUs heads of up to 128 elements (f64: 64) go through tiles of
/// shared memory, f16 and bf16 on tensor cores from compute capability 8 on; of larger ones each query is one thread:
/// right, but not fast. With 16 bits probabilities, and the gradients of scores, are rounded to the dtype before they
/// are multiplied on GPUs.
NDArray attention(const Operand& q, const NDArray& k, const NDArray& v, const AttentionOptions& options = {});

/// For the rows attention and attention_grad.
struct AttentionAttributes {
  double scale = 1;
  bool causal = false;
  static constexpr auto fields() {
    return std::array{field<&AttentionAttributes::scale>("scale"), field<&AttentionAttributes::causal>("causal")};
  }
  friend bool operator==(const AttentionAttributes&, const AttentionAttributes&) = default;
};

}  // namespace sluice
