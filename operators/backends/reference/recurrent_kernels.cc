// LSTM and GRU of the reference backend, step by step as its definition says; sums in double.
#include <cmath>
#include <vector>

#include "sluice/operators/backends/reference/kernels.h"

namespace sluice::reference {
namespace {

using namespace backends;

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

template <class T>
struct Lstm {
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.output(0).shape[0], n = c.output(0).shape[1], size = c.output(0).shape[2];
    const T *x = c.input(0).as<T>(), *weight = c.input(3).as<T>();
    T *hidden = c.output(0).as<T>(), *cells = c.output(1).as<T>(), *gates = c.output(2).as<T>();
    const T *h = c.input(1).as<T>(), *cell = c.input(2).as<T>();  // of the step before
    for (std::int64_t t = 0; t < steps; ++t) {
      for (std::int64_t r = 0; r < n; ++r) {
        double gate[4];
        for (std::int64_t k = 0; k < size; ++k) {
          const std::int64_t at = r * size + k;
          for (std::int64_t i = 0; i < 4; ++i) {
            const std::int64_t row = i * size + k;
            double sum = static_cast<double>(x[r * 4 * size + row]);
            for (std::int64_t j = 0; j < size; ++j) {
              sum += static_cast<double>(h[r * size + j]) * static_cast<double>(weight[row * size + j]);
            }
            gate[i] = i == 2 ? std::tanh(sum) : sigmoid(sum);
            gates[r * 4 * size + row] = static_cast<T>(gate[i]);
          }
          const double now = gate[1] * static_cast<double>(cell[at]) + gate[0] * gate[2];
          cells[at] = static_cast<T>(now);
          hidden[at] = static_cast<T>(gate[3] * std::tanh(now));
        }
      }
      h = hidden;
      cell = cells;
      x += n * 4 * size;
      gates += n * 4 * size;
      hidden += n * size;
      cells += n * size;
    }
  }
};

template <class T>
struct LstmGrad {
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.input(3).shape[0], n = c.input(3).shape[1], size = c.input(3).shape[2];
    const T *of_hidden = c.input(0).as<T>(), *of_cells = c.input(1).as<T>(), *gates = c.input(2).as<T>();
    const T *cells = c.input(3).as<T>(), *first = c.input(4).as<T>(), *weight = c.input(5).as<T>();
    const T* of_gates = c.inputs() == 7 ? c.input(6).as<T>() : nullptr;
    T *dx = c.output(0).as<T>(), *dh = c.output(1).as<T>(), *dc = c.output(2).as<T>();
    std::vector<double> h(static_cast<std::size_t>(n * size)), carried(h.size());
    for (std::int64_t t = steps; t-- > 0;) {
      const std::int64_t states = t * n * size, all = t * n * 4 * size;
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t k = 0; k < size; ++k) {
          const std::int64_t at = r * size + k;
          const auto gate = [&](const T* of, std::int64_t i) {
            return static_cast<double>(of[all + r * 4 * size + i * size + k]);
          };
          const double in = gate(gates, 0), forget = gate(gates, 1), fresh = gate(gates, 2), out = gate(gates, 3);
          const double squashed = std::tanh(static_cast<double>(cells[states + at]));
          const double before = static_cast<double>(t > 0 ? cells[states - n * size + at] : first[at]);
          const double g = static_cast<double>(of_hidden[states + at]) + h[static_cast<std::size_t>(at)];
          double& of_cell = carried[static_cast<std::size_t>(at)];
          of_cell += static_cast<double>(of_cells[states + at]) + g * out * (1 - squashed * squashed);
          double of[4] = {of_cell * fresh, of_cell * before, of_cell * in, g * squashed};
          of_cell *= forget;
          for (std::int64_t i = 0; i < 4; ++i) {
            if (of_gates) of[i] += gate(of_gates, i);
            const double y = gate(gates, i);
            dx[all + r * 4 * size + i * size + k] = static_cast<T>(of[i] * (i == 2 ? 1 - y * y : y * (1 - y)));
          }
        }
      }
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t j = 0; j < size; ++j) {
          double sum = 0;
          for (std::int64_t row = 0; row < 4 * size; ++row) {
            sum += static_cast<double>(dx[all + r * 4 * size + row]) * static_cast<double>(weight[row * size + j]);
          }
          h[static_cast<std::size_t>(r * size + j)] = sum;
        }
      }
    }
    for (std::size_t i = 0; i < h.size(); ++i) {
      dh[i] = static_cast<T>(h[i]);
      dc[i] = static_cast<T>(carried[i]);
    }
  }
};

template <class T>
struct Gru {
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.output(0).shape[0], n = c.output(0).shape[1], size = c.output(0).shape[2];
    const T *x = c.input(0).as<T>(), *weight = c.input(2).as<T>();
    const T* bias = c.inputs() == 4 ? c.input(3).as<T>() : nullptr;
    T *hidden = c.output(0).as<T>(), *gates = c.output(1).as<T>();
    const T* h = c.input(1).as<T>();  // of the step before
    for (std::int64_t t = 0; t < steps; ++t) {
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t k = 0; k < size; ++k) {
          double of_x[3], of_h[3];
          for (std::int64_t i = 0; i < 3; ++i) {
            const std::int64_t row = i * size + k;
            of_x[i] = static_cast<double>(x[r * 3 * size + row]);
            of_h[i] = bias ? static_cast<double>(bias[row]) : 0;
            for (std::int64_t j = 0; j < size; ++j) {
              of_h[i] += static_cast<double>(h[r * size + j]) * static_cast<double>(weight[row * size + j]);
            }
          }
          const double reset = sigmoid(of_x[0] + of_h[0]), update = sigmoid(of_x[1] + of_h[1]);
          const double fresh = std::tanh(of_x[2] + reset * of_h[2]), before = static_cast<double>(h[r * size + k]);
          const double unit[4] = {reset, update, of_h[2], fresh};
          for (std::int64_t i = 0; i < 4; ++i) gates[r * 4 * size + i * size + k] = static_cast<T>(unit[i]);
          hidden[r * size + k] = static_cast<T>(fresh + update * (before - fresh));
        }
      }
      h = hidden;
      x += n * 3 * size;
      gates += n * 4 * size;
      hidden += n * size;
    }
  }
};

template <class T>
struct GruGrad {
  static void run(ArrayContext& c) {
    const std::int64_t steps = c.input(0).shape[0], n = c.input(0).shape[1], size = c.input(0).shape[2];
    const T *of_hidden = c.input(0).as<T>(), *gates = c.input(1).as<T>(), *states = c.input(2).as<T>();
    const T *first = c.input(3).as<T>(), *weight = c.input(4).as<T>();
    const T* of_gates = c.inputs() == 6 ? c.input(5).as<T>() : nullptr;
    T *dx = c.output(0).as<T>(), *dh = c.output(1).as<T>(), *of_products = c.output(2).as<T>();
    std::vector<double> h(static_cast<std::size_t>(n * size));
    for (std::int64_t t = steps; t-- > 0;) {
      for (std::int64_t r = 0; r < n; ++r) {
        const std::int64_t of_row = (t * n + r) * size;
        double* carried = h.data() + r * size;  // the gradient that the step behind gives
        for (std::int64_t k = 0; k < size; ++k) {
          const auto unit = [&](const T* of, std::int64_t i) {
            return of ? static_cast<double>(of[4 * of_row + i * size + k]) : 0;
          };
          const double reset = unit(gates, 0), update = unit(gates, 1), of_h = unit(gates, 2), fresh = unit(gates, 3);
          const double before = static_cast<double>(t > 0 ? states[of_row - n * size + k] : first[r * size + k]);
          const double g = static_cast<double>(of_hidden[of_row + k]) + carried[k];
          const double of_update = (g * (before - fresh) + unit(of_gates, 1)) * update * (1 - update);
          const double of_fresh = (g * (1 - update) + unit(of_gates, 3)) * (1 - fresh * fresh);
          const double of_reset = (of_fresh * of_h + unit(of_gates, 0)) * reset * (1 - reset);
          const double of_inputs[3] = {of_reset, of_update, of_fresh};
          const double of_product[3] = {of_reset, of_update, of_fresh * reset + unit(of_gates, 2)};
          for (std::int64_t i = 0; i < 3; ++i) {
            dx[3 * of_row + i * size + k] = static_cast<T>(of_inputs[i]);
            of_products[3 * of_row + i * size + k] = static_cast<T>(of_product[i]);
          }
          carried[k] = g * update;
        }
        for (std::int64_t j = 0; j < size; ++j) {
          for (std::int64_t row = 0; row < 3 * size; ++row) {
            carried[j] +=
                static_cast<double>(of_products[3 * of_row + row]) * static_cast<double>(weight[row * size + j]);
          }
        }
      }
    }
    for (std::size_t i = 0; i < h.size(); ++i) dh[i] = static_cast<T>(h[i]);
  }
};

}  // namespace

void add_recurrent_kernels(Registry& registry) {
  add<Lstm>(registry.get("lstm"), kReference, Types<float, double>{}, kDense);
  add<LstmGrad>(registry.get("lstm_grad"), kReference, Types<float, double>{}, kDense);
  add<Gru>(registry.get("gru"), kReference, Types<float, double>{}, kDense);
  add<GruGrad>(registry.get("gru_grad"), kReference, Types<float, double>{}, kDense);
}

}  // namespace sluice::reference
