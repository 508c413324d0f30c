#include "sluice/nn/loss.h"

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/called.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/reduction.h"

namespace sluice {

NDArray accuracy(const Operand& logits, const Operand& labels) {
  const detail::Called called("accuracy", logits.where);
  logits.array.checked("accuracy", logits.where);
  labels.array.checked("accuracy", logits.where);
  const Dims& shape = logits.array.shape();
  if (shape.rank() != 2 || labels.array.shape() != Dims{shape[0]}) {
    throw ArrayError("accuracy", logits.where,
                     to_string(shape) + " and " + to_string(labels.array.shape()) + ": wants (n, classes) and (n,)");
  }
  NoGrad no_grad;
  const NDArray best = argmax(logits, -1);
  const NDArray hits = equal({best, logits.where}, {labels.array.to(DType::i64, labels.where), logits.where});
  return sum({hits.to(DType::i64, logits.where), logits.where});
}

}  // namespace sluice
