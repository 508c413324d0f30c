// Layers: the part of a model that pushes, as a path such as "encoder.2.attention". Errors and traces name it.
#pragma once

#include <source_location>
#include <string>
#include <string_view>

#include "sluice/engine/scope.h"

namespace sluice {

/// While the guard lives, the calling thread's pushes are in this layer, and so is what their bodies push. Guards nest:
/// the names are joined by '.', so "encoder", "2" and "attention" make "encoder.2.attention". An empty name changes
/// nothing. Gradients are in the layer of the operator that they are the gradient of. Layers of nets set it themselves
/// (nn/net/parameter.h).
///
/// Each distinct path is kept until the program ends: a name may be the number of a layer, but not that of a step.
/// Making a guard for a path that was used before allocates nothing and takes no lock.
class LayerScope {
 public:
  explicit LayerScope(std::string_view name);
  ~LayerScope() { current_scope().layer = saved_; }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  const detail::Layer* saved_;
};

/// The path of the calling thread's layer; empty outside of layers. Inside a body: that of the op's push. The text
/// lives as long as the program.
const char* current_layer();

/// A place in the source with the calling thread's layer, if there is one: "main.cc:41 in encoder.2". Errors of a call
/// name it.
std::string call_site(const std::source_location& where);

namespace detail {
/// The path; "" for null.
const char* path_of(const Layer* layer);
}  // namespace detail

}  // namespace sluice
