// Modules: what has parameters and maps an array to an array.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// An array with a name, as optimisers and checkpoints take it.
struct NamedArray {
  std::string name;
  NDArray value;
};

/// A module's parameter: `value` points into the module, which must outlive its use.
struct NamedParameter {
  std::string name;  ///< "0.weight": the path to it, as PyTorch names it
  NDArray* value;
};

/// Base of layers and of what is made of them. For one thread at a time; forward() pushes and returns.
class Module {
 public:
  virtual ~Module() = default;
  /// The output for a batch of inputs (axis 0 counts samples). Throws ArrayError for shapes and dtypes that do not fit.
  virtual NDArray forward(const NDArray& x) = 0;
  NDArray operator()(const NDArray& x) { return forward(x); }

  /// Appends the parameters, their names after `prefix` ("", or "0." with its dot). The default: none.
  virtual void collect(const std::string& prefix, std::vector<NamedParameter>& out);
  /// All parameters, in the order of the layers.
  std::vector<NamedParameter> parameters();
  /// Moves the parameters and their gradients to a device. They stay leaves, but are new arrays where the device is
  /// another: make the optimiser afterwards. Pushes; does not wait.
  virtual void to(Device device);
};

using ModulePtr = std::shared_ptr<Module>;

}  // namespace sluice
