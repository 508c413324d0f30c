// Modules: objects that have parameters and map an array to an array.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

class Module;

/// A module that is a part of another, and its name there. `module` points to the part, which the other one owns.
struct NamedModule {
  std::string name;
  Module* module;
};

/// The base class of layers and of models made of them. Used by one thread at a time. forward() pushes and returns.
///
/// A model of one's own lists its parts once, and calls them like functions:
///   struct Encoder : Module {
///     explicit Encoder(RandomStream& s) : attention(8, 8, s), output(8, 4, s) {}
///     NDArray forward(const NDArray& x) override { return output(relu(attention(x))); }
///     std::vector<NamedModule> children() override { return {{"attention", &attention}, {"output", &output}}; }
///     Linear attention, output;
///   };
/// Then its parameters are "attention.weight", ..., and what `attention` pushes is in the layer "attention", below the
/// layer of the encoder itself ("encoder.2.attention"): errors and traces name it, forward and backward
/// (engine/layer.h).
class Module {
 public:
  Module() = default;
  Module(const Module&) = default;
  /// The layer's name stays: it is that of the place. So `net.output = Linear(...)` is "output" still.
  Module& operator=(const Module&) {
    named_children_ = false;
    return *this;
  }
  virtual ~Module() = default;
  /// The output for a batch of inputs (axis 0 counts samples). Throws ArrayError for shapes and dtypes that do not fit.
  virtual NDArray forward(const NDArray& x) = 0;
  /// forward(x) in the layer of this module: as the module above named it when that was called, else in none.
  NDArray operator()(const NDArray& x) { return call(name_, x); }
  /// The same in the layer `name`, below the present one. For parts that children() does not list.
  NDArray call(std::string_view name, const NDArray& x);

  /// The parts, with their names. By default there are none.
  virtual std::vector<NamedModule> children() { return {}; }
  /// Appends the parameters; an empty handle among them is one that the module does without, and stays empty. Their
  /// names begin with `prefix` ("", or "0." with its dot). By default they are those of
  /// the children. A module with parameters of its own overrides this, and calls Module::collect for its children.
  virtual void collect(const std::string& prefix, std::vector<NamedParameter>& out);
  /// All parameters, in the order of the layers. An array that several parts hold (head.weight = embedding.weight) is
  /// listed once, with the first of its names.
  std::vector<NamedParameter> parameters();
  /// Moves the parameters and their gradients to a device. On another device they are new arrays, which are leaves
  /// again: so make the optimiser afterwards. What several parts hold stays one array; another view of it becomes an
  /// array of its own. Pushes; does not wait.
  virtual void to(Device device);

 private:
  std::string name_;  ///< its name in the module above; empty: not known
  bool named_children_ = false;
};

using ModulePtr = std::shared_ptr<Module>;

namespace detail {

/// Which parameters of a module are one array, noted before its parts are moved one by one.
class SharedParameters {
 public:
  explicit SharedParameters(Module& module);
  /// Makes them one array again.
  void rejoin() const;

 private:
  std::vector<std::pair<NDArray*, const NDArray*>> of_;  ///< a handle, and the first one of the same array
};

/// True if both handles show the same elements of one array.
bool same_view(const NDArray& x, const NDArray& y);

}  // namespace detail

}  // namespace sluice
