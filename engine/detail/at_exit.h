// The end of the process, and its forks, while ops are in flight.
#pragma once

#include <memory>

namespace sluice::detail {

class CoreBase;

/// Whatever is ready or running in this engine is waited for before the first static object of the process goes; and
/// the engine hears of it in a forked child.
void settle_at_exit(const std::weak_ptr<CoreBase>& core);
/// Called by each thread at its first use of an engine; the main thread's call arms the wait.
void arm_exit_wait();

}  // namespace sluice::detail
