// SLUICE_HD marks a function that runs on the host and, compiled as CUDA, on the device as well. SLUICE_HD_INLINE marks
// one that is inlined besides, whatever its size: kernels compiled for an instruction set call it, and code of its own
// would be for the plain set.
#pragma once

#ifdef __CUDACC__
#define SLUICE_HD __host__ __device__
#define SLUICE_HD_INLINE __host__ __device__ __forceinline__
#else
#define SLUICE_HD
#ifdef __GNUC__
#define SLUICE_HD_INLINE [[gnu::always_inline]] inline
#else
#define SLUICE_HD_INLINE inline
#endif
#endif
