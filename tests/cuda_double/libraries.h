// What the double's cuBLASLt and cuDNN have in common: handles, and their kernels on streams.
#pragma once

#include <functional>
#include <string>

#include "double.h"
#include "library_types.h"

namespace cuda_double {

/// A handle's owner: one device, and the stream that it was used on first.
struct LibraryHandle {
  std::uint64_t world = 0;
  int device = 0;
  std::atomic<cudaStream_t> stream{nullptr};
};

/// Memory that a call of a library touches.
struct Operand {
  const void* at = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
  bool declared = true;  ///< the op must have named it; not so for workspaces
};

/// Fills in a handle that is being made on the current device, and reports where that is not its start.
void make_library_handle(World& world, ThreadState& thread, LibraryHandle& handle, const char* call);
/// Checks the handle, the current device and the stream. Refuses what is wrong.
StreamHandle library_stream(World& world, ThreadState& thread, LibraryHandle& handle, cudaStream_t stream,
                            const char* call);
/// Enqueues the call's work. `run` finds the operands' memory by detail::resolve, which is to be asked before.
void issue_library_kernel(World& world, const StreamHandle& stream, const std::string& call,
                          std::span<const Operand> operands, std::function<void()> run);
/// Keeps a handle that was made, so that one that a program leaves behind is no leak of the double's.
void keep_handle(World& world, void* handle);
/// Reports a destruction that a card would not survive, or wait for for ever. Whether the handle was a live one.
bool end_handle(const LibraryHandle& handle, const void* made, const char* call);
/// A number that is not 0 where a call that could be served is refused at random, as the options say.
std::uint64_t is_refused_at_random(World& world);

// ---- elements
std::size_t element_bytes(cudaDataType_t type);
double load(const void* base, std::size_t index, cudaDataType_t type);
void store(void* base, std::size_t index, cudaDataType_t type, double value);
/// The value with the 10 bits of fraction that TF32 keeps.
float to_tf32(float value);

}  // namespace cuda_double
