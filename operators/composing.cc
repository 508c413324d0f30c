#include "sluice/operators/composing.h"

#include <cstdlib>
#include <string>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/environment.h"

namespace sluice {

detail::Composing detail::composing() {
  return first_use([] {
    const char* const value = std::getenv("SLUICE_COMPOSE");
    if (value && std::string(value) == "always") return new Composing(Composing::always);
    return new Composing(switch_from_environment("SLUICE_COMPOSE", true) ? Composing::where_needed : Composing::never);
  });
}

}  // namespace sluice
