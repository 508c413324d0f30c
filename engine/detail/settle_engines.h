// For what must not be taken down while ops of any engine use it.
#pragma once

namespace sluice::detail {

/// Waits until what is ready or running in each engine of the process is over, for the time that the end of a process
/// may take; what takes a second is told. Not for ops that wait for a Completion or a borrow. At once where the caller
/// is in an op's body.
void settle_engines();
/// Lets the end of the process do that before the exit handlers that were registered so far: those of a library that
/// was loaded. A body that calls exit() ends the process there.
void settle_engines_at_exit();

}  // namespace sluice::detail
