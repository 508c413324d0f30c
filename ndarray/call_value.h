// CallValue: an operator's call as a value, which is kept and compared after the call is over.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "sluice/ndarray/attributes.h"
#include "sluice/ndarray/spec.h"

namespace sluice {

struct OperatorInfo;

/// What an interpreter saw, without arrays and their elements: Call::value() makes it.
struct CallValue {
  /// A window on an array.
  struct Operand {
    Spec spec;
    Dims strides;             ///< in elements
    std::int64_t offset = 0;  ///< of the first element, in elements
    bool updated = false;     ///< of a target: it is read too
    friend bool operator==(const Operand&, const Operand&) = default;
  };
  const OperatorInfo* row = nullptr;
  Attributes attributes;
  std::vector<Operand> inputs;
  std::vector<Operand> targets;  ///< the arrays that it writes to; empty: it makes new ones
  std::vector<Spec> results;
  std::source_location where;
  std::string layer;

  /// Equal rows, attributes, operands, results, lines and layers. An attribute without == (a closure) is equal to
  /// itself alone.
  friend bool operator==(const CallValue& a, const CallValue& b);
};

/// One line: "linear(relu=true) of (64, 784) f32, (256, 784) f32 gives (64, 256) f32 on cpu(0); train.cc:41 in 0".
/// Strides and offsets are left out where the window is a contiguous array from its beginning, devices where they are
/// the result's. A target is "into" or, where it is read too, "updates".
std::string to_string(const CallValue& call);

}  // namespace sluice
