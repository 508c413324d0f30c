// A change of low rank beside a Linear: what Linear::lora is. add_lora.h has how one is made.
#pragma once

#include <source_location>

#include "sluice/nn/net/initialisers.h"
#include "sluice/nn/net/parameter.h"

namespace sluice::nn {

/// Maps x (..., in) to scale (x . transpose(a)) . transpose(b), scale = alpha / rank, which Linear adds to what it
/// gives (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021). b begins as 0, so that nothing is
/// changed before the first step.
struct Lora {
  Size in, out, rank;
  double scale = 1;
  std::source_location where = std::source_location::current();
  Parameter a{{rank, in}, fan_in(), where}, b{{out, rank}, constant(0), where};
  NDArray operator()(const NDArray& x) const;
};

}  // namespace sluice::nn
