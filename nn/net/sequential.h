// Sequential: layers one after the other; Layer: any function of one array, with its parameters.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "sluice/nn/net/clone.h"
#include "sluice/nn/net/stages.h"
#include "sluice/nn/net/walk.h"

namespace sluice::nn {

/// Holds a net, an operator such as relu, or a lambda without captures, that maps an array to an array. It is walked,
/// cloned and moved as what it holds.
class Layer {
 public:
  template <class M>
  requires(std::is_invocable_r_v<NDArray, const M&, const NDArray&> && !std::same_as<std::remove_cvref_t<M>, Layer> &&
           !std::is_pointer_v<M>) Layer(M module)  // NOLINT: Sequential{Linear{2, 3}, relu}
      : held_(std::make_unique<Of<M>>(std::move(module))) {}
  Layer(NDArray (*f)(const Operand&)) : held_(std::make_unique<Of<NDArray (*)(const Operand&)>>(f)) {}  // NOLINT
  Layer(NDArray (*f)(const NDArray&)) : held_(std::make_unique<Of<NDArray (*)(const NDArray&)>>(f)) {}  // NOLINT

  NDArray operator()(const NDArray& x) const { return held_->call(x); }
  /// The name of what it holds, "Linear"; "" for functions.
  std::string name() const { return held_->name(); }
  void walk_parts(const std::string& path, Visitor& visitor) { held_->walk(path, visitor); }
  Layer clone_parts(detail::Clones& clones) const { return Layer(held_->clone(clones)); }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual NDArray call(const NDArray& x) const = 0;
    virtual std::string name() const = 0;
    virtual void walk(const std::string& path, Visitor& visitor) = 0;
    virtual std::unique_ptr<Held> clone(detail::Clones& clones) const = 0;
  };
  template <class M>
  struct Of final : Held {
    explicit Of(M m) : module(std::move(m)) {}
    NDArray call(const NDArray& x) const override { return module(x); }
    std::string name() const override { return detail::plain_name(typeid(M)); }
    void walk(const std::string& path, Visitor& visitor) override { detail::walk(module, path, visitor); }
    std::unique_ptr<Held> clone(detail::Clones& clones) const override {
      return std::make_unique<Of>(detail::clone(module, clones));
    }
    M module;
  };
  explicit Layer(std::unique_ptr<Held> held) : held_(std::move(held)) {}

  std::unique_ptr<Held> held_;
};

/// Sequential net{Linear{784, 512}, relu, Dropout{0.1}, Linear{512, 10}}: parameters are "0.weight", "3.weight", ...
class Sequential {
 public:
  Sequential() = default;
  template <class... M>
  requires(sizeof...(M) > 0 && (std::constructible_from<Layer, M> && ...)) explicit Sequential(M... modules) {
    layers_.reserve(sizeof...(M));
    (layers_.push_back(Layer(std::move(modules))), ...);
  }
  void push_back(Layer layer) { layers_.push_back(std::move(layer)); }
  std::size_t size() const { return layers_.size(); }
  /// Throws std::out_of_range.
  const Layer& operator[](std::size_t i) const { return layers_.at(i); }

  NDArray operator()(const NDArray& x) const {
    NDArray y = x;
    for (const Layer& layer : layers_) y = layer(y);
    return y;
  }
  /// One function for each layer. They refer to the layers, which must stay where they are.
  Stages stages() const {
    Stages list;
    for (const Layer& layer : layers_) list.add(layer.name(), layer);
    return list;
  }
  void walk_parts(const std::string& path, Visitor& visitor) { detail::walk(layers_, path, visitor); }
  Sequential clone_parts(detail::Clones& clones) const {
    Sequential made;
    made.layers_ = detail::clone(layers_, clones);
    return made;
  }

 private:
  std::vector<Layer> layers_;
};

}  // namespace sluice::nn
