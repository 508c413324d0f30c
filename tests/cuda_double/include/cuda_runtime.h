// The runtime for C++: what the toolkit adds to cuda_runtime_api.h.
#pragma once

#include "cuda_double/kernel.h"
#include "cuda_runtime_api.h"

template <class T>
cudaError_t cudaMalloc(T** block, std::size_t bytes) {
  return ::cudaMalloc(reinterpret_cast<void**>(block), bytes);
}
template <class T>
cudaError_t cudaMallocAsync(T** block, std::size_t bytes, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void**>(block), bytes, stream);
}
template <class T>
cudaError_t cudaHostAlloc(T** block, std::size_t bytes, unsigned flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(block), bytes, flags);
}
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
  return ::cudaHostGetDevicePointer(reinterpret_cast<void**>(device), host, flags);
}
template <class T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, T* kernel) {
  return ::cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags = cudaEventDefault) {
  return ::cudaEventCreateWithFlags(event, flags);
}
