// The protocol on the explorer's policy.
#include "sluice/engine/detail/explore.h"

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/core_setup.h"

namespace sluice::detail {

template class Core<ExplorePolicy>;

std::shared_ptr<CoreBase> make_exploring_core(const CoreOptions& options, std::uint64_t seed) {
  Explorer::get().reset(seed);
  return Core<ExplorePolicy>::make(options);
}

}  // namespace sluice::detail
