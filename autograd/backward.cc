// backward() and grad(): whole runs of the tape.
#include "sluice/autograd/gradients.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/operators/creation.h"

namespace sluice {
namespace autograd {
namespace {

std::vector<NDArray> seeds(const char* name, std::span<const NDArray> roots, std::span<const NDArray> gradients,
                           const std::source_location& where) {
  check_roots(name, roots, gradients, where);
  std::vector<NDArray> result;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    result.push_back(gradients[i].defined() ? gradients[i] : ones_like({roots[i], where}));
  }
  return result;
}

}  // namespace
}  // namespace autograd

void backward(const NDArrays& roots, const NDArrays& gradients, const BackwardOptions& wanted,
              std::source_location where) {
  const autograd::Mode mode(false);
  const autograd::Options options{.create_graph = false, .retain = wanted.retain, .where = where};
  std::vector<NDArray> first = autograd::seeds("backward", roots, gradients, where);
  autograd::Run run(options);
  for (std::size_t i = roots.size(); i-- > 0;) run.seed(autograd::edge_to(roots[i]), first[i]);
  first.clear();
  run.run();
}

std::vector<NDArray> grad(const NDArrays& roots, const NDArrays& gradients, const NDArrays& xs,
                          const GradOptions& wanted, std::source_location where) {
  const autograd::Mode mode(wanted.create_graph);
  const autograd::Options options{.create_graph = wanted.create_graph, .retain = wanted.retain, .where = where};
  for (const NDArray& x : xs) x.checked("grad", where);
  std::vector<NDArray> first = autograd::seeds("grad", roots, gradients, where);
  autograd::Run run(options);
  run.restrict_to(roots, xs);
  for (std::size_t i = roots.size(); i-- > 0;) run.seed(autograd::edge_to(roots[i]), first[i]);
  first.clear();
  run.run();
  std::vector<NDArray> result;
  for (const NDArray& x : xs) result.push_back(run.what(x));
  return result;
}

std::vector<NDArray> grad(const NDArray& y, const NDArrays& xs, const GradOptions& options,
                          std::source_location where) {
  const NDArray one;
  return grad(std::span(&y, 1), std::span(&one, 1), xs, options, where);
}

}  // namespace sluice
