#include "sluice/operators/backends/cpu/onednn.h"

#include <dlfcn.h>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {
namespace {

// Looked up, not linked: oneDNN brings the OpenMP runtime that it was built with, or none.
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};
const OpenMp& open_mp() {
  return sluice::detail::first_use([] {
    static const OpenMp functions;
    return &functions;
  });
}

dnnl::engine make_engine() {
  // Without SLUICE_ISA oneDNN keeps its own choice, which knows more sets than we do.
  switch (instruction_set_in_use()) {
    case InstructionSet::plain:
      dnnl::set_max_cpu_isa(dnnl::cpu_isa::sse41);
      break;
    case InstructionSet::avx2:
      dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
      break;
    case InstructionSet::avx512:
      break;
  }
  return {dnnl::engine::kind::cpu, 0};
}

}  // namespace

OneThread::OneThread() {
  const OpenMp& functions = open_mp();
  if (functions.max_threads == nullptr || functions.set_threads == nullptr) return;
  const int now = functions.max_threads();
  if (now == 1) return;
  functions.set_threads(1);
  before_ = now;
}

OneThread::~OneThread() {
  if (before_ != 0) open_mp().set_threads(before_);
}

const dnnl::engine& onednn_engine() {
  return sluice::detail::first_use([] {
    static const dnnl::engine engine = make_engine();
    return &engine;
  });
}

dnnl::stream& onednn_stream() {
  thread_local dnnl::stream stream(onednn_engine());
  return stream;
}

}  // namespace sluice::cpu_backend
