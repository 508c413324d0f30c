// Optimiser steps over many tensors in one launch, their gate, and sums of terms.
#include <algorithm>
#include <span>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

/// As many tensors as a kernel's 4 KiB of arguments hold.
constexpr int kMostTensors = 56;
constexpr std::int64_t kChunk = 4096;  ///< elements of a block

template <class T>
struct Tensor {
  T *w, *first, *second;  ///< the parameter and its states, if there are any
  std::int64_t* steps;    ///< Adam's count, or null
  const T* g;
  std::int64_t count, first_block;
};

/// Settings of SGD and of Adam.
template <class C>
struct Rates {
  double lr = 0, eps = 0;
  C rate = 0, momentum = 0, decay = 0, beta1 = 0, beta2 = 0;
  bool adam = false, decoupled = false;
  std::int64_t step = 0;
};

template <class T>
struct StepTensors {
  Tensor<T> tensors[kMostTensors];
  int count = 0;
  const std::uint8_t* gate = nullptr;
  Reporter reporter;
  Rates<compute_of<T>> rates;
  template <class Visit>
  void each_pointer(Visit visit) {
    for (int i = 0; i < count; ++i) {
      visit(tensors[i].w);
      visit(tensors[i].first);
      visit(tensors[i].second);
      visit(tensors[i].steps);
      visit(tensors[i].g);
    }
    visit(gate);
    reporter.each_pointer(visit);
  }
};

/// d = g + decay w; v = momentum v + d; w = w - lr v.
template <class T, class C>
__device__ void sgd(const Tensor<T>& t, std::int64_t i, const Rates<C>& r) {
  C d = number(t.g[i]) + r.decay * number(t.w[i]);
  if (t.first) {
    d = r.momentum * number(t.first[i]) + d;
    t.first[i] = T(d);
  }
  t.w[i] = T(number(t.w[i]) - r.rate * d);
}

template <class T, class C>
__device__ void adam(const Tensor<T>& t, std::int64_t i, const Rates<C>& r, double correction1, double correction2) {
  const C old = r.decoupled ? number(t.w[i]) * (1 - r.rate * r.decay) : number(t.w[i]);
  const C d = r.decoupled ? number(t.g[i]) : number(t.g[i]) + r.decay * old;
  const C first = r.beta1 * number(t.first[i]) + (1 - r.beta1) * d;
  const C second = r.beta2 * number(t.second[i]) + (1 - r.beta2) * (d * d);
  t.first[i] = T(first);
  t.second[i] = T(second);
  const double corrected = static_cast<double>(first) / correction1;
  const double root = std::sqrt(static_cast<double>(second) / correction2);
  t.w[i] = T(static_cast<C>(static_cast<double>(old) - static_cast<double>(r.rate) * corrected / (root + r.eps)));
}

/// One thread for each tensor: counts Adam's step. The first says so if the gate is shut.
template <class T>
__global__ void begin_steps(StepTensors<T> s) {
  const auto i = static_cast<int>(thread_number());
  if (s.gate && *s.gate != 1) {
    if (i == 0) report(s.reporter, Finding::gate_shut, 0, 0, 0, true);
    return;
  }
  if (i < s.count && s.tensors[i].steps) ++*s.tensors[i].steps;
}

template <class T>
__global__ void step_tensors(StepTensors<T> s) {
  if (s.gate && *s.gate != 1) return;
  int tensor = 0;
  while (tensor + 1 < s.count && s.tensors[tensor + 1].first_block <= static_cast<std::int64_t>(blockIdx.x)) ++tensor;
  const Tensor<T>& t = s.tensors[tensor];
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - t.first_block) * kChunk;
  const std::int64_t end = begin + kChunk < t.count ? begin + kChunk : t.count;
  if (!s.rates.adam) {
    for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) sgd(t, i, s.rates);
    return;
  }
  const auto step = static_cast<double>(t.steps ? *t.steps : s.rates.step);
  const double correction1 = 1 - std::pow(static_cast<double>(s.rates.beta1), step);
  const double correction2 = 1 - std::pow(static_cast<double>(s.rates.beta2), step);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) adam(t, i, s.rates, correction1, correction2);
}

/// Puts the new values, which stand in the place of gradients, into the parameters.
template <class T>
__global__ void commit_tensors(StepTensors<T> s) {
  if (s.gate && *s.gate != 1) return;
  int tensor = 0;
  while (tensor + 1 < s.count && s.tensors[tensor + 1].first_block <= static_cast<std::int64_t>(blockIdx.x)) ++tensor;
  const Tensor<T>& t = s.tensors[tensor];
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - t.first_block) * kChunk;
  const std::int64_t end = begin + kChunk < t.count ? begin + kChunk : t.count;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) t.w[i] = t.g[i];
}

template <class T>
void issue_steps(ArrayContext& c, const Rates<compute_of<T>>& rates, void (*kernel)(StepTensors<T>)) {
  const Issue issue(c);
  int gradients = c.inputs();
  const std::uint8_t* gate = nullptr;
  if (const TensorView& last = c.input(gradients - 1); last.dtype == DType::u8) {
    gate = last.as<std::uint8_t>();
    --gradients;
  }
  const int width = c.outputs() / gradients;
  for (int from = 0; from < gradients; from += kMostTensors) {
    StepTensors<T> s;
    s.gate = gate;
    s.reporter = issue.reporter();
    s.rates = rates;
    s.count = std::min(kMostTensors, gradients - from);
    std::int64_t blocks = 0;
    for (int i = 0; i < s.count; ++i) {
      const TensorView& g = c.input(from + i);
      const TensorView* const y = &c.output((from + i) * width);
      s.tensors[i] = {y[0].as<T>(),
                      width > 1 ? y[1].as<T>() : nullptr,
                      width > 2 ? y[2].as<T>() : nullptr,
                      width > 3 ? y[3].as<std::int64_t>() : nullptr,
                      g.as<T>(),
                      g.count(),
                      blocks};
      blocks += (g.count() + kChunk - 1) / kChunk;
    }
    // Behind a gate that is shut all launches do nothing, and the first says so.
    if (from == 0 || width > 3) issue.launch(begin_steps<T>, {.blocks = 1, .threads = 64}, s);
    if (blocks > 0) issue.launch(kernel, {.blocks = static_cast<unsigned>(blocks), .threads = 256}, s);
  }
}

template <class T>
struct Sgd {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const auto& a = c.attributes<SgdAttributes>();
    Rates<C> rates;
    rates.rate = static_cast<C>(a.lr);
    rates.momentum = static_cast<C>(a.momentum);
    rates.decay = static_cast<C>(a.weight_decay);
    issue_steps<T>(c, rates, step_tensors<T>);
  }
};
template <class T>
struct Adam {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const auto& a = c.attributes<AdamStep>();
    Rates<C> rates;
    rates.adam = true;
    rates.decoupled = a.decoupled;
    rates.eps = a.eps;
    rates.step = a.step;
    rates.rate = static_cast<C>(a.lr);
    rates.beta1 = static_cast<C>(a.beta1);
    rates.beta2 = static_cast<C>(a.beta2);
    rates.decay = static_cast<C>(a.weight_decay);
    issue_steps<T>(c, rates, step_tensors<T>);
  }
};

template <class T>
struct Commit {
  static void run(ArrayContext& c) { issue_steps<T>(c, {}, commit_tensors<T>); }
};

/// Opens the gate if the devices have found no error that the host did not know of as this was issued.
struct OpenGate {
  static constexpr int kMostDevices = 64;
  std::uint8_t* gate;
  KernelErrors* rings[kMostDevices];
  unsigned long long known[kMostDevices];
  int count = 0;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(gate);
    for (int i = 0; i < count; ++i) visit(rings[i]);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t) const {
    for (int i = 0; i < count; ++i) {
      const volatile KernelErrors& ring = *rings[i];
      if (ring.count + ring.lost != known[i]) return report(reporter, Finding::device_had_error);
    }
    *gate = 1;
  }
};
void open_gate(ArrayContext& c) {
  const Issue issue(c);
  OpenGate open{c.output().as<std::uint8_t>(), {}, {}, 0, issue.reporter()};
  for (int i = 0; i < issue.provider().devices(); ++i) {
    const Device device{DeviceKind::gpu, static_cast<std::uint8_t>(i)};
    open.rings[open.count] = issue.provider().core().at(i).errors;
    open.known[open.count] = issue.issuing().settled_errors(device);
    ++open.count;
  }
  issue.launch(indexed<OpenGate>, {.blocks = 1, .threads = 1}, std::int64_t{1}, open);
}

/// total = before + the terms in their order; `before` may be null.
template <class T>
struct AddTerms {
  static constexpr int kMostTerms = 400;
  compute_of<T>* total;  ///< null: y gets it
  const compute_of<T>* before;
  T* y;
  bool into;
  int count = 0;
  const T* terms[kMostTerms];
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(total);
    visit(before);
    visit(y);
    for (int k = 0; k < count; ++k) visit(terms[k]);
  }
  __device__ void operator()(std::int64_t i) const {
    using C = compute_of<T>;
    C sum = before ? before[i] : number(terms[0][i]);
    for (int k = before ? 0 : 1; k < count; ++k) sum = functors::plus(sum, number(terms[k][i]));
    if (total) {
      total[i] = sum;
    } else {
      y[i] = T(into ? functors::plus(number(y[i]), sum) : sum);
    }
  }
};
template <bool into>
struct Terms {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using C = compute_of<T>;
      const Issue issue(c);
      const std::int64_t n = c.output().count();
      if (n == 0) return;
      C* const total = c.inputs() > AddTerms<T>::kMostTerms ? issue.scratch<C>(n) : nullptr;
      for (int from = 0; from < c.inputs(); from += AddTerms<T>::kMostTerms) {
        AddTerms<T> add{};
        add.before = from > 0 ? total : nullptr;
        add.count = std::min(AddTerms<T>::kMostTerms, c.inputs() - from);
        add.total = from + add.count < c.inputs() ? total : nullptr;
        add.y = c.output().template as<T>();
        add.into = into;
        for (int k = 0; k < add.count; ++k) add.terms[k] = c.input(from + k).template as<T>();
        for_index(issue, n, add);
      }
    }
  };
};

}  // namespace

void add_optimizer_kernels(const Rows& rows) {
  rows.add<Sgd>("sgd_step", backends::Floating{}, kDense);
  rows.add<Sgd>("sgd_momentum_step", backends::Floating{}, kDense);
  rows.add<Adam>("adam_step", backends::Floating{}, kDense);
  rows.add<Commit>("commit", Committed{}, kDense);
  rows.add("gate", {DType::u8}, open_gate);
  rows.add<Terms<false>::Make>("add_n", backends::Sums{}, kDense);
  rows.add<Terms<true>::Make>("accumulate", backends::Sums{}, kDense);
}

}  // namespace sluice::cuda
