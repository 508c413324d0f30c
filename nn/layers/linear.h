// Linear and Embedding.
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <utility>

#include "sluice/nn/layers/lora.h"
#include "sluice/nn/net/initialisers.h"
#include "sluice/nn/net/parameter.h"

namespace sluice::nn {

// Layers are structs as a program's own are: sizes and options first, then parameters, which are made of them. Call
// operators push and return, and throw ArrayError for shapes and dtypes that do not fit, with the layer's path and the
// line where the layer stands. Parameters have PyTorch's names, shapes and first values, unless a layer says otherwise.

/// A bias, or none: for layers.
inline std::optional<Parameter> optional_parameter(bool wanted, const Dims& shape, Init init,
                                                   std::source_location where) {
  if (!wanted) return std::nullopt;
  return std::optional<Parameter>(std::in_place, shape, std::move(init), where);
}
/// Its array; an empty handle without one.
inline NDArray value_of(const std::optional<Parameter>& parameter) {
  return parameter ? parameter->value() : NDArray();
}

/// Maps (..., in) to (..., out): x . transpose(weight) + bias, and + lora(x) once nn::add_lora gave it one.
struct Linear {
  Size in, out;
  bool use_bias = true;
  bool relu = false;  ///< negative results become 0 in the same pass
  std::source_location where = std::source_location::current();
  Parameter weight{{out, in}, fan_in(), where};
  std::optional<Parameter> bias = optional_parameter(use_bias, {out}, fan_in(weight), where);
  std::optional<Lora> lora{};
  NDArray operator()(const NDArray& x) const;
};

/// Maps indices (...) of an integer dtype to rows (..., width). Rows begin normal with deviation 1.
struct Embedding {
  Size rows, width;
  std::source_location where = std::source_location::current();
  Parameter weight{{rows, width}, normal(1), where};
  NDArray operator()(const NDArray& indices) const;
  /// x (..., width) to (..., rows): the head of a model whose embedding and head are tied.
  NDArray logits(const NDArray& x) const;
};

}  // namespace sluice::nn
