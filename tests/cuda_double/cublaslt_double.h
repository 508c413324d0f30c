// The descriptors of the double's cuBLASLt, and its product.
#pragma once

#include <cstring>
#include <new>

#include "cublasLt.h"
#include "libraries.h"

struct cublasLtContext {
  cuda_double::LibraryHandle handle;
};

namespace cuda_double {

struct Layout {
  std::uint64_t rows, columns, stride;
  std::int64_t leading;
  std::int32_t batch;
  std::uint32_t type, order;
};
struct Desc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t pointer_mode, transpose_a, transpose_b;
  std::uint32_t epilogue;
  void* bias;
  std::int64_t bias_stride;
  std::int32_t bias_type;  ///< -1: D's
};
struct Preference {
  std::uint64_t workspace;
  std::uint32_t alignment[4];
  std::uint32_t schemes;  ///< by which partial sums may be joined
};
/// What a chosen algorithm relies on.
struct Algorithm {
  std::uint64_t mark, workspace;
  std::uint32_t alignment[4];
  std::uint64_t m, n, k;
};
inline constexpr std::uint64_t kMark = 0x53'4C'55'49'43'45'4C'54;

template <class T, class Opaque>
T read(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(opaque->data));
  T value;
  std::memcpy(&value, opaque->data, sizeof value);
  return value;
}
template <class T, class Opaque>
void write(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(opaque->data));
  std::memcpy(opaque->data, &value, sizeof value);
}
template <class T>
bool take(T& field, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof field) return false;
  std::memcpy(&field, value, bytes);
  return true;
}
template <class Opaque, class T>
cublasStatus_t make(Opaque** made, const T& value) {
  if (!made) return CUBLAS_STATUS_INVALID_VALUE;
  *made = new (std::nothrow) Opaque{};
  if (!*made) return CUBLAS_STATUS_ALLOC_FAILED;
  write(*made, value);
  return CUBLAS_STATUS_SUCCESS;
}

/// The shape of a call, and the types that it computes with.
struct Product {
  Desc desc;
  Layout a, b, c, d;
  std::uint64_t m, n, k;
};

inline bool has_bias(std::uint32_t epilogue) { return (epilogue & (4 | 256 | 512)) != 0; }

/// The addresses are those of kernels.
struct Work {
  Product p;
  const void *a, *b, *c;
  void *d, *bias, *workspace;
  std::size_t workspace_bytes;
  double alpha, beta;
};

/// Runs it, as a kernel.
void multiply(const Work& work);

cublasStatus_t status_of(cudaError_t error);

}  // namespace cuda_double
