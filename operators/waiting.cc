// The list of functions that wait, and where they may not.
#include "sluice/operators/waiting.h"

#include <algorithm>
#include <array>
#include <string>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice {

namespace {
constexpr std::array kWaiting{
    WaitingFunction{"nonzero", "x", "give a size: nonzero(x, {.size = n})"},
    WaitingFunction{"masked_select", "the mask", "give a size: masked_select(x, mask, {.size = n})"},
    WaitingFunction{"index", "a mask: x(mask), and x(mask) = y of several elements",
                    "use masked_select(x, mask, {.size = n})"},
    WaitingFunction{"unique", "x", "give a size: unique(x, {.size = n})"},
    WaitingFunction{"bincount", "x, if no size is given", "give a size: bincount(x, n)"}};
}  // namespace

std::span<const WaitingFunction> waiting_functions() { return kWaiting; }

void builtin::check_may_wait(const char* name, const std::source_location& where) {
  const ScopeState& scope = current_scope();
  const bool captures = detail::capturing();
  if (!captures && (scope.flags & kNoWaitFlag) == 0 && !DryRun::current()) [[likely]]
    return;
  const auto* const known = std::find_if(kWaiting.begin(), kWaiting.end(),
                                         [&](const WaitingFunction& f) { return f.name == std::string_view(name); });
  throw ArrayError(name, where,
                   std::string("waits for values that decide the shape of its result, which ") +
                       (captures                           ? "a capture"
                        : (scope.flags & kNoWaitFlag) != 0 ? "a stage of a pipeline"
                                                           : "a function in shapes_of") +
                       " must not; " + known->instead);
}

}  // namespace sluice
