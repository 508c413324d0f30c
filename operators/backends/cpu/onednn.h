// What all kernels on oneDNN share: its engine, and one thread per call.
#pragma once

#include <dnnl.hpp>

namespace sluice::cpu_backend {

/// While it lives, OpenMP regions that this thread opens have one thread: parallel_for alone makes threads here, and a
/// primitive made or run so has the same bits on any machine width. It stands around every call into oneDNN. OpenMP
/// keeps the number per thread, so other threads, and this one afterwards, keep what they had. Costs some nanoseconds.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;
};

/// The process's oneDNN CPU engine, its instruction set bounded by SLUICE_ISA. Thread-safe.
const dnnl::engine& onednn_engine();

/// This thread's stream; primitives on it run before execute returns.
dnnl::stream& onednn_stream();

}  // namespace sluice::cpu_backend
