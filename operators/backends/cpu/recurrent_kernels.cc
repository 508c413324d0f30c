// LSTM of the CPU backend: a product with the hidden weight in each step, and the gates in one pass.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/fast_functors.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/packed_product.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

constexpr std::int64_t kUnits = 2048;  // that a thread takes at once, in whole rows

std::int64_t rows_at_once(std::int64_t size) {
  return std::max<std::int64_t>(1, kUnits / std::max<std::int64_t>(1, size));
}

/// The product with the hidden weight, which each step takes. In f32 the weight is packed once for all steps.
template <class T>
class StepProduct {
 public:
  /// Bytes of the packed weight; 0 where it is not packed.
  static std::size_t bytes(std::int64_t steps, std::int64_t rows, std::int64_t n, std::int64_t k) {
    if (!std::is_same_v<T, float> || steps < 4 || !PackedMatrix::pays(rows, n, k)) return 0;
    return static_cast<std::size_t>(PackedMatrix::size(n, k)) * sizeof(float);
  }
  /// As gemm's operand b.
  StepProduct(ArrayContext& c, std::int64_t steps, bool transposed, std::int64_t rows, std::int64_t n, std::int64_t k,
              const T* b, std::int64_t ldb)
      : transposed_(transposed), rows_(rows), n_(n), k_(k), b_(b), ldb_(ldb) {
    if constexpr (std::is_same_v<T, float>) {
      const std::size_t size = bytes(steps, rows, n, k);
      if (size == 0) return;
      memory_.emplace(c.scratch(size));
      packed_.emplace(transposed, n, k, b, ldb, memory_->as<float>());
    }
  }
  void operator()(const T* a, std::int64_t lda, bool add, T* out, std::int64_t ldc) const {
    if constexpr (std::is_same_v<T, float>) {
      if (packed_) return packed_->multiply(rows_, a, lda, add, out, ldc);
    }
    gemm(false, transposed_, rows_, n_, k_, T(1), a, lda, b_, ldb_, add ? T(1) : T(0), out, ldc);
  }

 private:
  bool transposed_;
  std::int64_t rows_, n_, k_;
  const T* b_;
  std::int64_t ldb_;
  std::optional<Scratch> memory_;
  std::optional<PackedMatrix> packed_;
};

/// A row's units: the sums in `gates` are replaced by the activated gates.
struct Units {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(T* __restrict gates, const T* __restrict before, T* __restrict cell,
                                     T* __restrict hidden, std::int64_t size) const {
    T *in = gates, *forget = gates + size, *fresh = gates + 2 * size, *out = gates + 3 * size;
    for (std::int64_t k = 0; k < 2 * size; ++k) gates[k] = FastSigmoid{}(gates[k]);
    for (std::int64_t k = 0; k < size; ++k) fresh[k] = fast_tanh(fresh[k]);
    for (std::int64_t k = 0; k < size; ++k) out[k] = FastSigmoid{}(out[k]);
    for (std::int64_t k = 0; k < size; ++k) cell[k] = forget[k] * before[k] + in[k] * fresh[k];
    for (std::int64_t k = 0; k < size; ++k) hidden[k] = out[k] * fast_tanh(cell[k]);
  }
};

template <class T>
struct Lstm {
  static std::size_t scratch(const Signature& call) {
    const Dims& gates = call.shape(0);  // of all steps
    return StepProduct<T>::bytes(gates[0], gates[1], gates[2], gates[2] / 4);
  }
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.output(0).shape[0], n = c.output(0).shape[1], size = c.output(0).shape[2];
    const T *x = c.input(0).as<T>(), *weight = c.input(3).as<T>();
    T *hidden = c.output(0).as<T>(), *cells = c.output(1).as<T>(), *gates = c.output(2).as<T>();
    const T *h = c.input(1).as<T>(), *cell = c.input(2).as<T>();  // of the step before
    const StepProduct<T> product(c, steps, true, n, 4 * size, size, weight, size);
    for (std::int64_t t = 0; t < steps; ++t) {
      std::copy_n(x, n * 4 * size, gates);
      product(h, size, true, gates, 4 * size);
      parallel_for(n, rows_at_once(size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          dispatch(Units{}, gates + r * 4 * size, cell + r * size, cells + r * size, hidden + r * size, size);
        }
      });
      h = hidden;
      cell = cells;
      x += n * 4 * size;
      gates += n * 4 * size;
      hidden += n * size;
      cells += n * size;
    }
  }
};

/// A row of a step. `hidden` and `carried` are the gradients that the step behind gives; carried becomes that for the
/// step before.
struct UnitsGrad {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* __restrict gates, const T* __restrict of_gates, const T* __restrict cell,
                                     const T* __restrict before, const T* __restrict of_hidden,
                                     const T* __restrict of_cell, const T* __restrict hidden, T* __restrict carried,
                                     T* __restrict dx, std::int64_t size) const {
    const T *in = gates, *forget = gates + size, *fresh = gates + 2 * size, *out = gates + 3 * size;
    for (std::int64_t k = 0; k < size; ++k) {
      const T squashed = fast_tanh(cell[k]), g = of_hidden[k] + hidden[k];
      const T c = carried[k] + of_cell[k] + g * out[k] * (T(1) - squashed * squashed);
      dx[k] = c * fresh[k];
      dx[size + k] = c * before[k];
      dx[2 * size + k] = c * in[k];
      dx[3 * size + k] = g * squashed;
      carried[k] = c * forget[k];
    }
    if (of_gates) {
      for (std::int64_t k = 0; k < 4 * size; ++k) dx[k] += of_gates[k];
    }
    for (std::int64_t k = 0; k < 4 * size; ++k) {
      const bool tanh = k >= 2 * size && k < 3 * size;
      dx[k] *= (tanh ? T(1) + gates[k] : gates[k]) * (T(1) - gates[k]);
    }
  }
};

template <class T>
struct LstmGrad {
  static std::size_t scratch(const Signature& call) {
    const Dims& cells = call.shape(3);
    return StepProduct<T>::bytes(cells[0], cells[1], cells[2], 4 * cells[2]);
  }
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.input(3).shape[0], n = c.input(3).shape[1], size = c.input(3).shape[2];
    const T *of_hidden = c.input(0).as<T>(), *of_cells = c.input(1).as<T>(), *gates = c.input(2).as<T>();
    const T *cells = c.input(3).as<T>(), *first = c.input(4).as<T>(), *weight = c.input(5).as<T>();
    const T* of_gates = c.inputs() == 7 ? c.input(6).as<T>() : nullptr;
    T *dx = c.output(0).as<T>(), *hidden = c.output(1).as<T>(), *carried = c.output(2).as<T>();
    std::fill_n(hidden, n * size, T(0));
    std::fill_n(carried, n * size, T(0));
    const StepProduct<T> product(c, steps, false, n, size, 4 * size, weight, size);
    for (std::int64_t t = steps; t-- > 0;) {
      const std::int64_t states = t * n * size, all = t * n * 4 * size;
      const T* before = t > 0 ? cells + states - n * size : first;
      parallel_for(n, rows_at_once(size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const std::int64_t at = r * size, of_row = all + r * 4 * size;
          dispatch(UnitsGrad{}, gates + of_row, of_gates ? of_gates + of_row : nullptr, cells + states + at,
                   before + at, of_hidden + states + at, of_cells + states + at, static_cast<const T*>(hidden + at),
                   carried + at, dx + of_row, size);
        }
      });
      product(dx + all, 4 * size, false, hidden, size);
    }
  }
};

}  // namespace

void add_recurrent_kernels(Registry& registry) {
  const auto add_for = [&]<class T>(Types<T> type) {
    Kernel forward = kDense, backward = kDense;
    forward.scratch = Lstm<T>::scratch;
    backward.scratch = LstmGrad<T>::scratch;
    add<Lstm>(registry.get("lstm"), kCpu, type, forward);
    add<LstmGrad>(registry.get("lstm_grad"), kCpu, type, backward);
  };
  add_for(Types<float>{});
  add_for(Types<double>{});
}

}  // namespace sluice::cpu_backend
