// Layers. A layer draws its weights from the stream when it is made, uniform in [-b, b] with b = 1 / sqrt(number of
// inputs of one output), as PyTorch does. They are on the device of the thread's scope and want gradients. Bad
// arguments throw ArrayError. forward() throws ArrayError for shapes that do not fit, and names the place where the
// layer was made.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/nn/module.h"
#include "sluice/resources/random.h"

namespace sluice {

struct LinearLayerOptions {
  bool relu = false;  ///< negative results become 0 in the same pass
  bool bias = true;
  DType dtype = DType::f32;
};

/// Maps (n, in) to (n, out): x . transpose(weight) + bias.
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, RandomStream& stream, const LinearLayerOptions& options = {},
         std::source_location where = std::source_location::current());
  NDArray forward(const NDArray& x) override;
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override;

  NDArray weight;  ///< (out, in)
  NDArray bias;    ///< (out,), or an empty handle

 private:
  bool relu_;
  std::source_location where_;
};

struct ConvOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool relu = false;  ///< negative results become 0 in the same pass
  bool bias = true;
  DType dtype = DType::f32;
};

/// Maps (n, in, height, width) to (n, out, ...) by a square kernel.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, RandomStream& stream, const ConvOptions& options = {},
         std::source_location where = std::source_location::current());
  NDArray forward(const NDArray& x) override;
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override;

  NDArray weight;  ///< (out, in, kernel, kernel)
  NDArray bias;    ///< (out,), or an empty handle

 private:
  ConvOptions options_;
  std::source_location where_;
};

/// The largest element of each kernel x kernel window, for (n, channels, height, width). Stride 0 means `kernel`.
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(std::int64_t kernel, std::int64_t stride = 0,
                     std::source_location where = std::source_location::current());
  NDArray forward(const NDArray& x) override;

 private:
  std::int64_t kernel_, stride_;
  std::source_location where_;
};

/// Negative elements become 0.
class Relu : public Module {
 public:
  explicit Relu(std::source_location where = std::source_location::current()) : where_(where) {}
  NDArray forward(const NDArray& x) override;

 private:
  std::source_location where_;
};

/// Maps (n, a, b, ...) to (n, a * b * ...).
class Flatten : public Module {
 public:
  explicit Flatten(std::source_location where = std::source_location::current()) : where_(where) {}
  NDArray forward(const NDArray& x) override;

 private:
  std::source_location where_;
};

/// Layers that are applied one after the other. A parameter's name begins with the number of its layer: "0.weight";
/// what that layer pushes is in the layer "0".
///   Sequential net{Flatten(), Linear(784, 128, stream, {.relu = true}), Linear(128, 10, stream)};
class Sequential : public Module {
 public:
  Sequential() = default;
  Sequential(std::initializer_list<ModulePtr> layers) : Sequential(std::vector<ModulePtr>(layers)) {}
  explicit Sequential(const std::vector<ModulePtr>& layers);
  /// Takes layers by value.
  template <class... M>
  requires(std::derived_from<M, Module>&&...) && (sizeof...(M) > 0) &&
      (sizeof...(M) > 1 || !(std::same_as<M, Sequential> || ...)) explicit Sequential(M... layers) {
    (push_back(std::move(layers)), ...);
  }

  NDArray forward(const NDArray& x) override;
  std::vector<NamedModule> children() override;
  /// Calls to() of each layer. A layer that lies on several devices may throw.
  void to(Device device) override;

  /// Throws UsageError for a null layer.
  void push_back(ModulePtr layer);
  template <class M>
  requires std::derived_from<M, Module>
  void push_back(M layer) { push_back(ModulePtr(std::make_shared<M>(std::move(layer)))); }
  /// The layers [begin, end) as a Sequential of their own, for the stage of a pipeline. It shares the layers with this
  /// one, and they keep the numbers that they have here. Throws UsageError if begin > end or end > size().
  Sequential slice(std::size_t begin, std::size_t end) const;
  std::size_t size() const { return layers_.size(); }
  /// Throws std::out_of_range.
  Module& layer(std::size_t i) const { return *layers_.at(i).module; }

 private:
  struct Layer {
    std::string name;
    ModulePtr module;
  };
  std::vector<Layer> layers_;
  std::size_t next_name_ = 0;
};

}  // namespace sluice
