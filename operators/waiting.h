// Functions that wait, because values decide the shape of their results (docs/semantics.md, 13). They throw the poison
// of these values at the call, and are refused where nothing may wait: in captures, in the stages of pipelines, and in
// shapes_of.
#pragma once

#include <cstdint>
#include <source_location>
#include <span>

#include "sluice/ndarray/scope_flags.h"

namespace sluice {

struct WaitingFunction {
  const char* name = "";       ///< as errors have it
  const char* waits_for = "";  ///< the values that decide the shape
  const char* instead = "";    ///< what does not wait
};
/// All of them.
std::span<const WaitingFunction> waiting_functions();

namespace builtin {
/// Throws ArrayError where nothing may wait. `name` is one of waiting_functions(), and the error names it.
void check_may_wait(const char* name, const std::source_location& where);
}  // namespace builtin

}  // namespace sluice
