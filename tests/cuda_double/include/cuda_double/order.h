// What a program tells the record of accesses that the double cannot see: which words that a stream wrote the host has
// read. Before the first of these calls the double takes what a thread has waited for (cudaEventSynchronize, ...) as
// known to that thread; from then on it believes this alone.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "cuda_runtime_api.h"
#include "sluice/engine/order_observer.h"

namespace cuda_double {

/// A stream, and a value: everything before its first write of at least that value (cuStreamWriteValue64) is over.
using Passed = std::pair<cudaStream_t, std::uint64_t>;

/// Whether a record is kept at all.
bool keeps_order();
/// All that is issued to the stream later comes after these.
void ordered_after(cudaStream_t stream, std::span<const Passed> passed);
/// All that the calling thread does later comes after these (OrderObserver::host_after).
void host_after(std::span<const Passed> passed, bool afresh);
/// The body that the last call with `afresh` began has returned (OrderObserver::host_returns).
void host_returns();
/// A block that a pool had kept goes to a new user (OrderObserver::block_reused).
void block_reused(const void* block);
/// The calling thread touches pinned memory now (OrderObserver::host_touches).
void host_touches(std::span<const sluice::MemoryUse> uses);

}  // namespace cuda_double
