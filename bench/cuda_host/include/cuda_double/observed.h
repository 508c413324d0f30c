// No record of accesses, as on a card.
#pragma once

#include <memory>
#include <utility>

#include "sluice/engine/provider.h"

namespace cuda_double {
template <class P, class Core>
std::shared_ptr<sluice::Provider> make_provider(std::shared_ptr<Core> core) {
  return std::make_shared<P>(std::move(core));
}
}  // namespace cuda_double
