// DLPack: arrays to and from other libraries (NumPy, PyTorch, JAX, ...) without a copy.
#pragma once

#include <cstdint>
#include <source_location>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// The structs of DLPack's stable ABI (version 1.0, and the one before it, which has neither version nor flags), as its
/// dlpack.h declares them under the names DLDevice, DLDataType, DLTensor, DLManagedTensor, DLManagedTensorVersioned:
/// reinterpret_cast leads from one to the other.
namespace dlpack {
struct Device {
  std::int32_t type;  ///< 1: the host
  std::int32_t id;
};
struct DataType {
  std::uint8_t code;  ///< 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: row-major
  std::uint64_t byte_offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};
struct Version {
  std::uint32_t major, minor;
};
struct ManagedTensorVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1;
}  // namespace dlpack

/// The present value of an array on the host, for another library to read: a snapshot, no copy, flagged read-only.
/// Waits for the value. A later write in Sluice gives the array other memory, so that the other library keeps on seeing
/// this value; it must not write. Arrays whose memory cannot be left so (imports, parts of a partition, and snapshots
/// of these) are copied. Views keep their strides. The caller, or who gets it from him, calls the deleter once, on any
/// thread, before the engine ends. Throws ArrayError for an array on another device or an empty handle, and what
/// waiting throws. Blocking.
dlpack::ManagedTensorVersioned* to_dlpack(const NDArray& x,
                                          std::source_location where = std::source_location::current());
/// The same for those who know only the old struct, which cannot say that it is read-only.
dlpack::ManagedTensor* to_dlpack_unversioned(const NDArray& x,
                                             std::source_location where = std::source_location::current());
/// The array's memory for another library to read and write. It is a borrow (NDArray::borrow): until the deleter is
/// called ops on this array wait, and those that are pushed after it see what was written. So Sluice's values are never
/// written unseen. Throws and blocks as to_dlpack() and borrow() do.
dlpack::ManagedTensorVersioned* to_dlpack_writable(const NDArray& x,
                                                   std::source_location where = std::source_location::current());

/// An array over another library's memory on the host, without a copy, whatever the strides. It takes the tensor over,
/// also when it throws: the deleter is called on the I/O lane when the array and the last op on it are gone. As
/// from_memory() says, imports may overlap, and writes go to this memory; but one that is flagged read-only copies at
/// its first write. Between calls into Sluice the other library must not touch the memory unless the array is borrowed.
/// Throws ArrayError for a device, dtype, version, rank or sizes that Sluice does not have, and memory that is not
/// aligned.
NDArray from_dlpack(dlpack::ManagedTensorVersioned* tensor,
                    std::source_location where = std::source_location::current());
NDArray from_dlpack(dlpack::ManagedTensor* tensor, std::source_location where = std::source_location::current());

}  // namespace sluice
