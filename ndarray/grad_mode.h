// Whether a thread's pushes are recorded for gradients: NoGrad, WithGrad.
#pragma once

#include <cstdint>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/scope_flags.h"

namespace sluice {

inline bool grad_mode() { return (current_scope().flags & kNoGradFlag) == 0; }

/// While it lives, the thread's pushes are not recorded, and leaves may be written in place.
class NoGrad : ScopeGuard {
 public:
  NoGrad() { current_scope().flags |= kNoGradFlag; }
};

/// While it lives, pushes are recorded even inside of a NoGrad scope.
class WithGrad : ScopeGuard {
 public:
  WithGrad() { current_scope().flags &= ~kNoGradFlag; }
};

}  // namespace sluice
