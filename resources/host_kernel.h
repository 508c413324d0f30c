// Inside a kernel that is a function of the host (Stream::launch).
#pragma once

#include <exception>

namespace sluice {

/// Where the memory that a handle names can be touched. Memory of the host is returned as it is. Throws UsageError, and
/// reports, outside of kernels, and for memory of another device than the kernel's.
void* kernel_address(const void* handle);
template <class T>
T* kernel_pointer(T* handle) {
  return static_cast<T*>(kernel_address(handle));
}

/// Reports a late error of the kernel's op; the kernel goes on. `wrote_nothing`: the op's outputs are as they were.
/// Throws UsageError outside of kernels.
void report_late_error(std::exception_ptr what, bool wrote_nothing = false);

}  // namespace sluice
