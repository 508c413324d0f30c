// checkpoint: less memory for the tape, for computing a part of a program twice.
#pragma once

#include <source_location>
#include <vector>

#include "sluice/autograd/array_function.h"

namespace sluice {

/// f(xs), whose operators keep nothing for backward but what f finds: when backward first comes to one of them, f is
/// called again, on the thread that runs backward, and then they have what they need. Gradients have the same bits as
/// without, also those of arrays that f reads beside its arguments, and gradients of gradients. Outside of backward f
/// is called once; where nothing is recorded, this is a plain call.
///
/// The second call sees every array that f found at the first with the value that it had then, whatever was written
/// since, and the same random numbers; streams do not move. What it writes to arrays that f found is discarded, as are
/// statistics of a batch norm. Other effects of f happen twice. f must push the same operators both times (else
/// backward throws ArrayError), and what it finds must not be written by other threads while it runs.
///
/// The tape keeps f, and the values that f found, until backward has come to the first operator of f; then, as without
/// checkpoint, what operators need, which is freed as backward goes. A checkpoint inside of another is part of the
/// outer one. The scope of the call (device, layer, line) stands around the second one too. Throws what f throws; a
/// second call in backward().
std::vector<NDArray> checkpoint(const ArrayFunction& f, const NDArrays& xs,
                                std::source_location where = std::source_location::current());
/// The same for a function with one result.
NDArray checkpoint(const ArrayFunction& f, const NDArray& x,
                   std::source_location where = std::source_location::current());

/// Calls again now what backward would call again later: the function of the checkpoint that made y, on this thread and
/// in its present scope of priority, tag and sequence. Backward then finds all that it needs. So a program says itself
/// when it computes again, as a pipeline's R actions do. Nothing happens for an array that no checkpoint made, or whose
/// checkpoint was called again before; backward in the meantime is no error. What follows y's checkpoint is not looked
/// at: y is a result of it. Throws as the function does.
void compute_again(const NDArray& y, std::source_location where = std::source_location::current());

}  // namespace sluice
