// SLUICE_HD marks a function that runs on the host and, compiled as CUDA, on the device as well.
#pragma once

#ifdef __CUDACC__
#define SLUICE_HD __host__ __device__
#else
#define SLUICE_HD
#endif
