// Modules: objects that have parameters and map an array to an array.
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

/// A module's parameter. `value` points into the module, which must live as long as the pointer is used.
struct NamedParameter {
  std::string name;  ///< "0.weight": the path to it, as PyTorch names it
  NDArray* value;
};

/// The base class of layers and of models made of them. Used by one thread at a time. forward() pushes and returns.
class Module {
 public:
  virtual ~Module() = default;
  /// The output for a batch of inputs (axis 0 counts samples). Throws ArrayError for shapes and dtypes that do not fit.
  virtual NDArray forward(const NDArray& x) = 0;
  NDArray operator()(const NDArray& x) { return forward(x); }

  /// Appends the parameters. Their names begin with `prefix` ("", or "0." with its dot). By default there are none.
  virtual void collect(const std::string& prefix, std::vector<NamedParameter>& out);
  /// All parameters, in the order of the layers.
  std::vector<NamedParameter> parameters();
  /// Moves the parameters and their gradients to a device. On another device they are new arrays, which are leaves
  /// again: so make the optimiser afterwards. Pushes; does not wait.
  virtual void to(Device device);
};

using ModulePtr = std::shared_ptr<Module>;

}  // namespace sluice
