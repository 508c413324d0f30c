// LSTM and GRU of the CPU backend: a product with the hidden weight in each step, and the gates in one pass.
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
struct LstmUnits {
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
          dispatch(LstmUnits{}, gates + r * 4 * size, cell + r * size, cells + r * size, hidden + r * size, size);
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
struct LstmUnitsGrad {
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
          dispatch(LstmUnitsGrad{}, gates + of_row, of_gates ? of_gates + of_row : nullptr, cells + states + at,
                   before + at, of_hidden + states + at, of_cells + states + at, static_cast<const T*>(hidden + at),
                   carried + at, dx + of_row, size);
        }
      });
      product(dx + all, 4 * size, false, hidden, size);
    }
  }
};

/// A row's units: what the hidden state gives to the gates, in `gates`, is replaced by the activated gates reset and
/// update and, for the new gate, is followed by that gate.
struct GruUnits {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(T* __restrict gates, const T* __restrict x, const T* __restrict bias,
                                     const T* __restrict before, T* __restrict hidden, std::int64_t size) const {
    const T *reset = gates, *update = gates + size, *product = gates + 2 * size;
    T* fresh = gates + 3 * size;
    if (bias) {
      for (std::int64_t k = 0; k < 3 * size; ++k) gates[k] += bias[k];
    }
    for (std::int64_t k = 0; k < 2 * size; ++k) gates[k] = FastSigmoid{}(gates[k] + x[k]);
    for (std::int64_t k = 0; k < size; ++k) fresh[k] = fast_tanh(x[2 * size + k] + reset[k] * product[k]);
    for (std::int64_t k = 0; k < size; ++k) hidden[k] = fresh[k] + update[k] * (before[k] - fresh[k]);
  }
};

template <class T>
struct Gru {
  static std::size_t scratch(const Signature& call) {
    const Dims& x = call.shape(0);
    return StepProduct<T>::bytes(x[0], x[1], x[2], x[2] / 3);
  }
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.output(0).shape[0], n = c.output(0).shape[1], size = c.output(0).shape[2];
    const T *x = c.input(0).as<T>(), *weight = c.input(2).as<T>();
    const T* bias = c.inputs() == 4 ? c.input(3).as<T>() : nullptr;
    T *hidden = c.output(0).as<T>(), *gates = c.output(1).as<T>();
    const T* h = c.input(1).as<T>();  // of the step before
    const StepProduct<T> product(c, steps, true, n, 3 * size, size, weight, size);
    for (std::int64_t t = 0; t < steps; ++t) {
      product(h, size, false, gates, 4 * size);
      parallel_for(n, rows_at_once(size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          dispatch(GruUnits{}, gates + r * 4 * size, x + r * 3 * size, bias, h + r * size, hidden + r * size, size);
        }
      });
      h = hidden;
      x += n * 3 * size;
      gates += n * 4 * size;
      hidden += n * size;
    }
  }
};

/// A row of a step. `hidden` is the gradient that the step behind gives, and becomes what goes to the step before past
/// the gates. dx and `product` are those of the gates' inputs and of what the hidden state gives to the gates.
struct GruUnitsGrad {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* __restrict gates, const T* __restrict of_gates,
                                     const T* __restrict before, const T* __restrict of_hidden, T* __restrict hidden,
                                     T* __restrict dx, T* __restrict product, std::int64_t size) const {
    const T *reset = gates, *update = gates + size, *of_state = gates + 2 * size, *fresh = gates + 3 * size;
    T *of_update = dx + size, *of_fresh = dx + 2 * size, *of_product = product + 2 * size;
    for (std::int64_t k = 0; k < size; ++k) {
      const T g = of_hidden[k] + hidden[k];
      of_update[k] = g * (before[k] - fresh[k]);
      of_fresh[k] = g * (T(1) - update[k]);
      hidden[k] = g * update[k];
    }
    if (of_gates) {
      for (std::int64_t k = 0; k < size; ++k) {
        of_update[k] += of_gates[size + k];
        of_fresh[k] += of_gates[3 * size + k];
      }
    }
    for (std::int64_t k = 0; k < size; ++k) {
      of_fresh[k] *= (T(1) + fresh[k]) * (T(1) - fresh[k]);
      dx[k] = of_fresh[k] * of_state[k];
      of_product[k] = of_fresh[k] * reset[k];
    }
    if (of_gates) {
      for (std::int64_t k = 0; k < size; ++k) {
        dx[k] += of_gates[k];
        of_product[k] += of_gates[2 * size + k];
      }
    }
    for (std::int64_t k = 0; k < 2 * size; ++k) product[k] = dx[k] *= gates[k] * (T(1) - gates[k]);
  }
};

template <class T>
struct GruGrad {
  static std::size_t scratch(const Signature& call) {
    const Dims& states = call.shape(0);
    return StepProduct<T>::bytes(states[0], states[1], states[2], 3 * states[2]);
  }
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.input(0).shape[0], n = c.input(0).shape[1], size = c.input(0).shape[2];
    const T *of_hidden = c.input(0).as<T>(), *gates = c.input(1).as<T>(), *states = c.input(2).as<T>();
    const T *first = c.input(3).as<T>(), *weight = c.input(4).as<T>();
    const T* of_gates = c.inputs() == 6 ? c.input(5).as<T>() : nullptr;
    T *dx = c.output(0).as<T>(), *hidden = c.output(1).as<T>(), *of_products = c.output(2).as<T>();
    std::fill_n(hidden, n * size, T(0));
    const StepProduct<T> product(c, steps, false, n, size, 3 * size, weight, size);
    for (std::int64_t t = steps; t-- > 0;) {
      const std::int64_t of_step = t * n * size;
      const T* before = t > 0 ? states + of_step - n * size : first;
      parallel_for(n, rows_at_once(size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const std::int64_t at = of_step + r * size;
          dispatch(GruUnitsGrad{}, gates + 4 * at, of_gates ? of_gates + 4 * at : nullptr, before + r * size,
                   of_hidden + at, hidden + r * size, dx + 3 * at, of_products + 3 * at, size);
        }
      });
      product(of_products + 3 * of_step, 3 * size, true, hidden, size);
    }
  }
};

}  // namespace

void add_recurrent_kernels(Registry& registry) {
  const auto add_for = [&]<class T>(Types<T> type) {
    const auto with_scratch = [](std::size_t (*scratch)(const Signature&)) {
      Kernel kernel = kDense;
      kernel.scratch = scratch;
      return kernel;
    };
    add<Lstm>(registry.get("lstm"), kCpu, type, with_scratch(Lstm<T>::scratch));
    add<LstmGrad>(registry.get("lstm_grad"), kCpu, type, with_scratch(LstmGrad<T>::scratch));
    add<Gru>(registry.get("gru"), kCpu, type, with_scratch(Gru<T>::scratch));
    add<GruGrad>(registry.get("gru_grad"), kCpu, type, with_scratch(GruGrad<T>::scratch));
  };
  add_for(Types<float>{});
  add_for(Types<double>{});
}

}  // namespace sluice::cpu_backend
