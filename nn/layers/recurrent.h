// Recurrent layers. The state is a value that the caller holds and passes on.
#pragma once

#include <source_location>

#include "sluice/nn/net/initialisers.h"
#include "sluice/nn/net/parameter.h"
#include "sluice/operators/network.h"

namespace sluice::nn {

/// Maps x (steps, n, in) and a state to outputs (steps, n, size) and the state after the last step. Gates are ordered
/// as in PyTorch (input, forget, cell, output).
struct Lstm {
  Size in, size;
  std::source_location where = std::source_location::current();
  Parameter weight_ih{{detail::times(4, size), in}, fan_in(size, where), where},
      weight_hh{{detail::times(4, size), size}, fan_in(size, where), where};
  Parameter bias_ih{{detail::times(4, size)}, fan_in(size, where), where},
      bias_hh{{detail::times(4, size)}, fan_in(size, where), where};
  /// A state of zeros for n sequences, of the weights' dtype, where they are.
  LstmState begin(std::int64_t n) const;
  LstmResult operator()(const NDArray& x, const LstmState& state) const;
};

/// The same with gates reset, update, new.
struct Gru {
  Size in, size;
  std::source_location where = std::source_location::current();
  Parameter weight_ih{{detail::times(3, size), in}, fan_in(size, where), where},
      weight_hh{{detail::times(3, size), size}, fan_in(size, where), where};
  Parameter bias_ih{{detail::times(3, size)}, fan_in(size, where), where},
      bias_hh{{detail::times(3, size)}, fan_in(size, where), where};
  NDArray begin(std::int64_t n) const;
  GruResult operator()(const NDArray& x, const NDArray& hidden) const;
};

}  // namespace sluice::nn
