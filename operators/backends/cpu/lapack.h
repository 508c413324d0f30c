// The functions of LAPACK that kernels call. OpenBLAS has them, and its package no header of them. Matrices are
// column-major; integers have 32 bits; the trailing sizes are those of the texts. A call runs on the calling thread.
#pragma once

#include <cstddef>

#include "sluice/operators/backends/cpu/openblas.h"

#define SLUICE_LAPACK_CALL(name, function)   \
  template <class... Arguments>              \
  static void name(Arguments... arguments) { \
    const InOpenBlas inside;                 \
    function(arguments...);                  \
  }

#define SLUICE_LAPACK(letter, T)                                                                                       \
  extern "C" {                                                                                                         \
  void letter##potrf_(const char* uplo, const int* n, T* a, const int* lda, int* info, std::size_t);                   \
  void letter##getrf_(const int* m, const int* n, T* a, const int* lda, int* pivots, int* info);                       \
  void letter##getrs_(const char* trans, const int* n, const int* k, const T* a, const int* lda, const int* pivots,    \
                      T* b, const int* ldb, int* info, std::size_t);                                                   \
  void letter##geqrf_(const int* m, const int* n, T* a, const int* lda, T* tau, T* work, const int* lwork, int* info); \
  void letter##orgqr_(const int* m, const int* n, const int* k, T* a, const int* lda, const T* tau, T* work,           \
                      const int* lwork, int* info);                                                                    \
  void letter##gesdd_(const char* job, const int* m, const int* n, T* a, const int* lda, T* s, T* u, const int* ldu,   \
                      T* vt, const int* ldvt, T* work, const int* lwork, int* iwork, int* info, std::size_t);          \
  void letter##syevd_(const char* job, const char* uplo, const int* n, T* a, const int* lda, T* w, T* work,            \
                      const int* lwork, int* iwork, const int* liwork, int* info, std::size_t, std::size_t);           \
  }                                                                                                                    \
  namespace sluice::cpu_backend {                                                                                      \
  template <>                                                                                                          \
  struct Lapack<T> {                                                                                                   \
    SLUICE_LAPACK_CALL(potrf, letter##potrf_)                                                                          \
    SLUICE_LAPACK_CALL(getrf, letter##getrf_)                                                                          \
    SLUICE_LAPACK_CALL(getrs, letter##getrs_)                                                                          \
    SLUICE_LAPACK_CALL(geqrf, letter##geqrf_)                                                                          \
    SLUICE_LAPACK_CALL(orgqr, letter##orgqr_)                                                                          \
    SLUICE_LAPACK_CALL(gesdd, letter##gesdd_)                                                                          \
    SLUICE_LAPACK_CALL(syevd, letter##syevd_)                                                                          \
  };                                                                                                                   \
  }

namespace sluice::cpu_backend {
template <class T>
struct Lapack;
}

SLUICE_LAPACK(s, float)
SLUICE_LAPACK(d, double)
#undef SLUICE_LAPACK
#undef SLUICE_LAPACK_CALL
