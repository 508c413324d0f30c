#include "sluice/nn/clip.h"

#include <string>
#include <utility>
#include <vector>

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/called.h"
#include "sluice/operators/operators.h"

namespace sluice {

NDArray clip_gradients(const ParameterList& parameters, double max_norm, std::source_location where) {
  const detail::Called called("clip_gradients", where);
  if (!(max_norm > 0))
    throw ArrayError("clip_gradients", where, "max_norm is " + std::to_string(max_norm) + ", which is not above 0");
  const NoGrad no_grad;
  std::vector<NDArray> gradients;
  for (const NamedArray& p : parameters.arrays()) {
    if (p.value.grad(where).defined()) gradients.push_back(p.value.grad(where));
  }
  if (gradients.empty()) return zeros({}, DType::f32, where);

  const Device home = gradients.front().device();
  NDArray total;
  for (const NDArray& g : gradients) {
    const DType dtype = g.dtype() == DType::f64 ? DType::f64 : DType::f32;
    NDArray squares;
    {
      const DeviceScope scope(g.device());
      squares = sum(square(Operand(g.to(dtype), where)));
    }
    squares = squares.to(home);
    const DeviceScope scope(home);
    total = total.defined() ? total + squares : squares;
  }
  NDArray norm, scale;
  {
    const DeviceScope scope(home);
    norm = sqrt(total);
    scale = minimum(max_norm / (norm + 1e-6), 1);
  }
  for (NDArray& g : gradients) {
    const DeviceScope scope(g.device());
    const NDArray factor = scale.to(g.device());
    if (computes_in_itself(g.dtype())) {
      g *= factor.to(g.dtype());
    } else {
      g.assign((g.to(DType::f32) * factor.to(DType::f32)).to(g.dtype()));  // the factor may be 0 in f16
    }
  }
  return norm;
}

}  // namespace sluice
