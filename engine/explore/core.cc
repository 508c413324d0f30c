// The protocol on the explorer's policy: what an engine is made of in EngineMode::explore.
#include "sluice/engine/explore/explore.h"

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/core_setup.h"

namespace sluice::detail {

template class Core<ExplorePolicy>;

// The name that sluice::explore asks the linker for, so that it takes this file from a static library.
extern "C" const char sluice_explore_linked = 1;

std::shared_ptr<CoreBase> make_exploring_core(const CoreOptions& options, std::uint64_t seed) {
  Explorer::get().reset(seed);
  return Core<ExplorePolicy>::make(options);
}

}  // namespace sluice::detail
