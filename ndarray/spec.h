// Spec: what is known of an array without its elements.
#pragma once

#include <string>

#include "sluice/engine/device.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"

namespace sluice {

/// Shape, element type and device of an array. Shape rules read and give specs, so that what a call would give is
/// known without an array (operators/infer.h).
struct Spec {
  Dims shape;
  DType dtype = DType::f32;
  Device device = {};
  friend bool operator==(const Spec&, const Spec&) = default;
};

/// "(64, 10) f32 on cpu(0)".
inline std::string to_string(const Spec& spec) {
  return to_string(spec.shape) + " " + std::string(name_of(spec.dtype)) + " on " + to_string(spec.device);
}

}  // namespace sluice
