// Our calls into OpenBLAS: each on one thread, while the number of threads stays the program's.
#pragma once

#include "sluice/operators/backends/cpu/onednn.h"

namespace sluice::cpu_backend {

/// Stands around every call into OpenBLAS. While one lives anywhere, OpenBLAS works on the thread that calls it:
/// parallel_for alone makes threads here, and the bits of a product do not depend on what the program has set. OpenBLAS
/// keeps one number of threads for the whole process, and it is the program's: the first call in notes it and sets 1,
/// the last one out puts it back. So the program may set it, and find it again, whenever none of its f64 products and
/// decompositions run; what it sets meanwhile may be lost, and may change the bits of those that run.
class InOpenBlas {
 public:
  InOpenBlas();
  ~InOpenBlas();
  InOpenBlas(const InOpenBlas&) = delete;
  InOpenBlas& operator=(const InOpenBlas&) = delete;

 private:
  OneThread one_;  // an OpenBLAS on OpenMP asks that for the number of each thread
};

}  // namespace sluice::cpu_backend
