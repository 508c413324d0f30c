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

/// The attributes of all our primitives: the caller brings their scratch memory.
inline dnnl::primitive_attr own_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// The description of an operation, such as describe<dnnl::matmul>(a, b, c), with own_scratch(). The parameters are the
/// same in all versions of oneDNN. Version 2 wants them as an object of their own, which version 3 no longer has.
/// Throws dnnl::error with dnnl_unimplemented where the library has no such kernel.
template <class Primitive, class... Parameters>
typename Primitive::primitive_desc describe(const Parameters&... parameters) {
#if DNNL_VERSION_MAJOR >= 3
  return {onednn_engine(), parameters..., own_scratch()};
#else
  return {typename Primitive::desc(parameters...), own_scratch(), onednn_engine()};
#endif
}

/// The same for a gradient, which oneDNN chooses by the description of its forward pass.
template <class Primitive, class Forward, class... Parameters>
typename Primitive::primitive_desc describe_gradient(const Forward& forward, const Parameters&... parameters) {
#if DNNL_VERSION_MAJOR >= 3
  return {onednn_engine(), parameters..., forward, own_scratch()};
#else
  return {typename Primitive::desc(parameters...), own_scratch(), onednn_engine(), forward};
#endif
}

}  // namespace sluice::cpu_backend
