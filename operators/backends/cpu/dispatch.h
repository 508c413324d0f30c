// Instruction sets: one kernel body, compiled for several of them, chosen at run time.
#pragma once

namespace sluice::cpu_backend {

/// What kernels are compiled for: any CPU of the architecture; x86-64 with AVX2 and FMA; x86-64 with AVX-512 (F, VL,
/// BW, DQ).
enum class InstructionSet { plain, avx2, avx512 };

/// The set in use: the best that this CPU has, or the one that SLUICE_ISA (default, avx2, avx512) names, read once.
/// It bounds oneDNN too. Throws std::invalid_argument if SLUICE_ISA is another word or names a set that this CPU lacks.
/// Bits of results may differ between sets, never between thread counts. Thread-safe.
InstructionSet instruction_set_in_use();

/// "default", "avx2" or "avx512". Errors as above.
const char* instruction_set();

#if defined(__x86_64__) && defined(__GNUC__)
#define SLUICE_X86_KERNELS 1
#define SLUICE_TARGET_AVX2 "avx2,fma,bmi,bmi2"
#if defined(__clang__)
#define SLUICE_TARGET_AVX512 "avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512bw,avx512dq"
#else
#define SLUICE_TARGET_AVX512 "avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512"
#endif
#else
#define SLUICE_X86_KERNELS 0
#endif

/// Marks the body of a kernel (and its helpers), so that it is compiled inside of the callers below, for their sets.
#if defined(__GNUC__)
#define SLUICE_KERNEL_BODY [[gnu::always_inline]] inline
#else
#define SLUICE_KERNEL_BODY inline
#endif

namespace detail {
template <class Body, class... Args>
void run_plain(const Body& body, Args... args) {
  body(args...);
}
#if SLUICE_X86_KERNELS
// flatten: a functor that stayed outside would be compiled for the plain set, and called once per element.
template <class Body, class... Args>
[[gnu::target(SLUICE_TARGET_AVX2), gnu::flatten]] void run_avx2(const Body& body, Args... args) {
  body(args...);
}
template <class Body, class... Args>
[[gnu::target(SLUICE_TARGET_AVX512), gnu::flatten]] void run_avx512(const Body& body, Args... args) {
  body(args...);
}
#endif
}  // namespace detail

/// Calls body(args...) compiled for instruction_set_in_use(). Body is a functor whose operator() is a
/// SLUICE_KERNEL_BODY with plain loops that the compiler vectorises. Its arguments are values and raw pointers.
template <class Body, class... Args>
void dispatch(const Body& body, Args... args) {
#if SLUICE_X86_KERNELS
  switch (instruction_set_in_use()) {
    case InstructionSet::avx512:
      return detail::run_avx512<Body, Args...>(body, args...);
    case InstructionSet::avx2:
      return detail::run_avx2<Body, Args...>(body, args...);
    case InstructionSet::plain:
      break;
  }
#endif
  detail::run_plain<Body, Args...>(body, args...);
}

}  // namespace sluice::cpu_backend
