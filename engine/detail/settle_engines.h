// For what must not be taken down while ops of any engine use it.
#pragma once

namespace sluice::detail {

/// Waits until what is ready or running in each engine of the process is over, for the time that the end of a process
/// may take; what takes a second is told. At once where the caller is in an op's body. For exit handlers: they run
/// before those of libraries that were loaded before them.
void settle_engines();

}  // namespace sluice::detail
