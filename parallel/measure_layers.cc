// What layers cost. Each layer is a stage of its own of a pipeline, so that the pipeline's trace has its times.
#include <cxxabi.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/halves.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/generators.h"
#include "sluice/parallel/plan.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/draw_notes.h"
#include "sluice/resources/memory_pool.h"

namespace sluice::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using Pieces = std::set<std::pair<const void*, std::size_t>>;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// A layer whose forward passes leave no traces once the arrays that they wrote are restored.
class Watched : public Module {
 public:
  Watched(ModulePtr layer, Rerun& written) : layer_(std::move(layer)), written_(written) {}
  NDArray forward(const NDArray& x) override {
    NDArray y;
    {
      const Rerun::Scope notes(written_, false);
      const DrawNotes::Still still;
      y = (*layer_)(x);
    }
    written_.forget_unwritten();
    return y;
  }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override { layer_->collect(prefix, out); }
  /// A move takes values along: those from before.
  void to(Device device) override {
    written_.restore();
    layer_->to(device);
  }

 private:
  ModulePtr layer_;
  Rerun& written_;
};

/// The layers, to be measured; when it goes they are what they were.
class Layers {
 public:
  /// `home` is where layers without parameters lie.
  Layers(const Sequential& network, Device home) : home_(home) {
    for (std::size_t i = 0; i < network.size(); ++i) {
      const auto layer = std::make_shared<Sequential>(network.slice(i, i + 1));
      Before before;
      for (const NamedParameter& p : layer->parameters()) {
        before.values.push_back(*p.value);
        before.gradients.push_back(p.value->requires_grad() ? p.value->grad() : NDArray());
      }
      before_.push_back(std::move(before));
      watched_.push_back(std::make_shared<Watched>(layer, written_));
      names_.push_back(std::to_string(i) + " " + type_of(network.layer(i)));
    }
    drop_gradients();
  }
  ~Layers() {
    try {
      put_back();
    } catch (...) {  // NOLINT(bugprone-empty-catch): there is an exception on its way that says more
    }
  }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  int size() const { return static_cast<int>(watched_.size()); }
  const ModulePtr& operator[](int i) const { return watched_[at(i)]; }
  const std::string& name(int i) const { return names_[at(i)]; }

  void drop_gradients() const {
    for (const ModulePtr& layer : watched_) {
      for (const NamedParameter& p : layer->parameters()) {
        if (p.value->requires_grad()) p.value->zero_grad();
      }
    }
  }
  /// Throws if a push does.
  void put_back() {
    if (std::exchange(is_back_, true)) return;
    drop_gradients();
    written_.restore();
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      const Before& before = before_[i];
      watched_[i]->to(before.values.empty() ? home_ : before.values.front().device());
      const std::vector<NamedParameter> parameters = watched_[i]->parameters();
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        *parameters[k].value = before.values[k];
        if (before.gradients[k].defined()) before.values[k].set_grad(before.gradients[k]);
      }
    }
  }

 private:
  struct Before {
    std::vector<NDArray> values, gradients;
  };
  static std::string type_of(const Module& layer) {
    int status = 0;
    char* const text = abi::__cxa_demangle(typeid(layer).name(), nullptr, nullptr, &status);
    std::string name = status == 0 ? text : typeid(layer).name();
    std::free(text);  // NOLINT: as the ABI wants it
    return name.substr(name.rfind(':') + 1);
  }

  Device home_;
  Rerun written_;
  std::vector<ModulePtr> watched_;
  std::vector<Before> before_;
  std::vector<std::string> names_;
  bool is_back_ = false;
};

LossFunction loss_or_default(const LossFunction& loss) {
  if (loss) return loss;
  return [](const NDArray& output, const NDArray& target, double divisor) {
    return cross_entropy(output, target, divisor);
  };
}

double bytes_in(const Pieces& pieces) {
  double bytes = 0;
  for (const auto& [id, size] : pieces) bytes += static_cast<double>(size);
  return bytes;
}

void add(Pieces& to, const KeptMemory& piece) { to.insert({piece.id, piece.bytes}); }
Pieces pieces_of(const std::vector<KeptMemory>& list) {
  Pieces pieces;
  for (const KeptMemory& piece : list) add(pieces, piece);
  return pieces;
}
Pieces without(const Pieces& these, const Pieces& those) {
  Pieces left;
  std::ranges::set_difference(these, those, std::inserter(left, left.end()));
  return left;
}

/// What is in use of a device's memory.
class Pool {
 public:
  explicit Pool(Device device) : device_(device) {}
  /// What an action takes at most beside what it found: `action` pushes and waits.
  template <class F>
  double peak_of(F&& action) const {
    const auto before = stats().in_use;
    device_.kind == DeviceKind::cpu ? memory_pool(device_).reset_peak()
                                    : device_pool(default_engine(), device_).reset_peak();
    action();
    return static_cast<double>(stats().peak) - static_cast<double>(before);
  }

 private:
  PoolStats stats() const {
    return device_.kind == DeviceKind::cpu ? memory_pool(device_).stats()
                                           : device_pool(default_engine(), device_).stats();
  }
  Device device_;
};

void wait_for_gradients(Module& layer) {
  for (const NamedParameter& p : layer.parameters()) {
    if (p.value->requires_grad() && p.value->grad().defined()) p.value->grad().wait();
  }
}

double gradient_bytes(Module& layer) {
  double bytes = 0;
  for (const NamedParameter& p : layer.parameters()) {
    if (p.value->requires_grad()) bytes += static_cast<double>(p.value->bytes());
  }
  return bytes;
}

/// Each layer's bytes for a microbatch of so many rows: a forward pass layer by layer, all of whose values stay, and a
/// backward pass in halves.
std::vector<LayerSample> bytes_of(const Layers& layers, const Batch& batch, std::int64_t rows, Device device,
                                  const LossFunction& loss) {
  const int n = layers.size();
  const DeviceScope scope(device);
  const auto part = [&](const NDArray& whole) {
    const NoGrad no_grad;
    return whole.narrow(0, 0, rows).detach().copy().to(device);
  };
  const NDArray target = part(batch.target);
  std::vector<NDArray> in, out;
  std::vector<Pieces> saved;
  const Pool pool(device);
  std::vector<double> beside(at(n));  // what is in use at most in each forward pass beside what was there
  for (int l = 0; l < n; ++l) {
    layers[l]->to(device);
    in.push_back(l == 0 ? part(batch.x) : out.back().detach().with_grad());
    in.back().wait();
    beside[at(l)] = pool.peak_of([&] {
      out.push_back((*layers[l])(in.back()));
      if (l == n - 1) out.back() = loss(out.back(), target, static_cast<double>(rows));
      out.back().wait();
    });
    saved.push_back(pieces_of(kept_memory({out.back()}, {in.back()})));
  }
  std::vector<LayerSample> samples(at(n));
  // An input that nobody's backward pass reads is gone after the forward pass, but for that of a stage.
  std::vector<Pieces> held = saved;
  Pieces needed;
  for (int l = n - 1; l >= 0; --l) {
    needed.insert(saved[at(l)].begin(), saved[at(l)].end());
    const KeptMemory input = memory_of(in[at(l)]);
    if (needed.count({input.id, input.bytes}) != 0) add(held[at(l)], input);
  }
  std::vector<Pieces> all = saved;
  for (int l = 0; l < n; ++l) {
    add(all[at(l)], memory_of(in[at(l)]));
    LayerSample& sample = samples[at(l)];
    sample.rows = static_cast<double>(rows);
    sample.saved = bytes_in(all[at(l)]);
    if (l > 0) sample.shared = sample.saved - bytes_in(without(held[at(l)], held[at(l) - 1]));
    const KeptMemory output = memory_of(out[at(l)]);
    if (all[at(l)].count({output.id, output.bytes}) == 0) sample.output = static_cast<double>(output.bytes);
    sample.input = static_cast<double>(in[at(l)].bytes());
    Pieces made = saved[at(l)];
    add(made, output);
    for (const KeptMemory& there : {memory_of(in[at(l)]), memory_of(target)}) made.erase({there.id, there.bytes});
    sample.work = std::max(0.0, beside[at(l)] - bytes_in(made));
  }
  NDArray gradient;
  Pieces kept_behind;
  for (int l = n - 1; l >= 0; --l) {
    const std::size_t i = at(l);
    // The first layer may be one without weights, and then nothing wants a gradient.
    if (!out[i].requires_grad()) break;
    WeightGradients later;
    const double half = pool.peak_of([&] {
      later = backward_inputs({out[i]}, {gradient}, {in[i]});
      gradient = l > 0 ? in[i].grad() : NDArray();
      if (gradient.defined()) gradient.wait();
    });
    const Pieces kept = pieces_of(later.memory({in[i]}));
    samples[i].kept = bytes_in(kept);
    if (l < n - 1) samples[i + 1].kept_shared = bytes_in(kept_behind) - bytes_in(without(kept_behind, kept));
    kept_behind = kept;
    samples[i].both = bytes_in(kept) - bytes_in(without(kept, all[i]));
    samples[i].work = std::max(samples[i].work, half - (samples[i].kept - samples[i].both));
    out[i] = {};
    const double rest = pool.peak_of([&] {
      later.run();
      wait_for_gradients(*layers[l]);
    });
    // The gradients themselves count as weights.
    samples[i].work = std::max(samples[i].work, rest - gradient_bytes(*layers[l]));
  }
  layers.drop_gradients();
  return samples;
}

/// A schedule of stages as one of their layers: each action is those of the layers, one after another.
Schedule in_layers(const Schedule& stages, const std::vector<int>& first_layer, int layers) {
  Schedule made = stages;
  made.stages = layers;
  for (auto& list : made.per_device) {
    std::vector<Action> all;
    for (const Action& a : list) {
      const int begin = first_layer[at(a.stage)];
      const int end = a.stage + 1 < stages.stages ? first_layer[at(a.stage) + 1] : layers;
      for (int i = 0; i < end - begin; ++i) {
        all.push_back({a.kind, a.kind == ActionKind::forward ? begin + i : end - 1 - i, a.microbatch});
      }
    }
    list = std::move(all);
  }
  return made;
}

constexpr ActionKind kHalves[] = {ActionKind::forward, ActionKind::input_gradient, ActionKind::weight_gradient};

/// The lengths of all boxes of a layer and a kind.
using Times = std::map<std::pair<int, ActionKind>, std::vector<double>>;

/// A pipeline whose stages are the layers, on some devices. Moves them there.
class Trial {
 public:
  Trial(const Layers& layers, const Batch& batch, const std::vector<Device>& devices, std::vector<int> first_layer,
        const LossFunction& loss)
      : layers_(layers), batch_(batch), first_layer_(std::move(first_layer)) {
    std::vector<Stage> stages;
    for (int l = 0, s = 0; l < layers.size(); ++l) {
      if (s + 1 < static_cast<int>(first_layer_.size()) && first_layer_[at(s) + 1] == l) ++s;
      stages.push_back({layers[l], devices[at(s)]});
    }
    net_.emplace(std::move(stages), loss);
  }

  /// One step of a few microbatches of so many rows.
  void step(std::int64_t rows, Times& times) {
    const int devices = static_cast<int>(first_layer_.size());
    const int m = static_cast<int>(std::clamp<std::int64_t>(batch_.x.size(0) / rows, 1, 4 * devices));
    Engine& engine = default_engine();
    const NDArray x = batch_.x.narrow(0, 0, m * rows), target = batch_.target.narrow(0, 0, m * rows);
    engine.start_trace();
    const NDArray loss = net_->step(
        x, target, {.microbatches = m, .schedule = in_layers(zb_h1(devices, m), first_layer_, layers_.size())});
    loss.wait();
    for (int l = 0; l < layers_.size(); ++l) wait_for_gradients(*layers_[l]);
    for (const TimelineBox& box : net_->boxes(engine.stop_trace(), net_->step_number())) {
      times[{box.stage, box.kind}].push_back(box.end - box.start);
    }
    layers_.drop_gradients();
  }

 private:
  const Layers& layers_;
  const Batch& batch_;
  std::vector<int> first_layer_;
  std::optional<Pipeline> net_;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void set_times(LayerSample& sample, const Times& times, int layer) {
  const auto of = [&](ActionKind kind) {
    const auto found = times.find({layer, kind});
    return found == times.end() ? 0 : median(found->second);
  };
  sample.forward = of(ActionKind::forward);
  sample.input_gradient = of(ActionKind::input_gradient);
  sample.weight_gradient = of(ActionKind::weight_gradient);
}

/// Seconds of a core that it takes to push a microbatch's actions, where stages are as long as they can be.
double push_of(const Layers& layers, const Batch& batch, const std::vector<Device>& devices,
               const std::vector<int>& first_layer, std::int64_t rows, const LossFunction& loss) {
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < first_layer.size(); ++s) {
    const auto part = std::make_shared<Sequential>();
    const int end = s + 1 < first_layer.size() ? first_layer[s + 1] : layers.size();
    for (int l = first_layer[s]; l < end; ++l) part->push_back(layers[l]);
    stages.push_back({part, devices[s]});
  }
  Pipeline net(std::move(stages), loss);
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const int m = static_cast<int>(std::clamp<std::int64_t>(batch.x.size(0) / rows, 1, 8));
  const NDArray x = batch.x.narrow(0, 0, m * rows), target = batch.target.narrow(0, 0, m * rows);
  std::vector<double> took;
  for (int round = 0; round < 6; ++round) {
    const double start = now();
    const NDArray loss_of_step = net.step(x, target, {.microbatches = m, .schedule = one_f_one_b});
    if (round > 0) took.push_back((now() - start) / m);
    loss_of_step.wait();
    for (int l = 0; l < layers.size(); ++l) wait_for_gradients(*layers[l]);
    layers.drop_gradients();
  }
  return median(std::move(took));
}

/// Layers for each device so that all have about as much to do.
std::vector<int> even_cut(const std::vector<LayerCost>& layers, int devices, std::int64_t rows) {
  return plan_layers(layers, {.devices = devices,
                              .rows = rows * 4 * devices,
                              .microbatches = {4 * devices},
                              .schedules = {"zb-h1"},
                              .recompute = false})
      .best()
      .first_layer;
}

/// What the layer holds always, and what its optimiser's step takes.
void add_weights(LayerCost& cost, Module& layer, std::set<const void*>& seen, const MeasureOptions& options) {
  std::vector<NDArray> copies;
  std::vector<NamedParameter> parameters;
  copies.reserve(layer.parameters().size());
  for (const NamedParameter& p : layer.parameters()) {
    if (!seen.insert(p.value->array().get()).second) continue;  // tied: another layer has it
    const auto bytes = static_cast<double>(p.value->bytes());
    cost.weights += bytes;
    if (!p.value->requires_grad()) continue;
    cost.weights += bytes;
    cost.gradients += bytes;
    copies.push_back(p.value->detach().copy().with_grad());
    parameters.push_back({p.name, &copies.back()});
  }
  if (!options.optimizer || copies.empty()) return;
  const std::unique_ptr<Optimizer> optimizer = options.optimizer(parameters);
  for (const NamedArray& state : optimizer->state()) cost.weights += static_cast<double>(state.value.bytes());
  std::vector<NDArray> gradients;
  for (const NDArray& copy : copies) gradients.push_back(zeros_like(copy));
  std::vector<double> times;
  constexpr std::uint64_t kTag = 0x57ED;
  for (int round = -1; round < std::max(5, options.rounds); ++round) {
    for (std::size_t i = 0; i < copies.size(); ++i) copies[i].set_grad(gradients[i]);
    for (const NDArray& copy : copies) copy.grad().wait();
    default_engine().start_trace();
    {
      const TagScope tag(kTag);
      optimizer->step();
    }
    for (const NDArray& copy : copies) copy.wait();
    double time = 0;
    for (const TraceEvent& e : default_engine().stop_trace()) {
      if (e.tag != kTag || e.lane != LaneKind::compute) continue;
      time += 1e-9 * static_cast<double>(e.device_end != 0 ? e.device_end - e.device_start : e.end - e.start);
    }
    if (round >= 0) times.push_back(time);
  }
  cost.step = median(times);
}

/// Seconds of one of many transfers to and fro, one after the other.
double hop(const NDArray& x, Device from, Device to) {
  constexpr int kHops = 32;
  double least = 0;
  for (int round = 0; round < 4; ++round) {
    NDArray value = x.to(from);
    value.wait();
    const auto start = Clock::now();
    for (int i = 0; i < kHops; ++i) value = value.to(i % 2 == 0 ? to : from);
    value.wait();
    const double took = std::chrono::duration<double>(Clock::now() - start).count() / kHops;
    if (round == 1 || (round > 1 && took < least)) least = took;
  }
  return least;
}

Link measure_link(const std::vector<Device>& devices, double bytes) {
  if (devices.size() < 2 || devices[0] == devices[1]) return {};
  const NoGrad no_grad;
  const DeviceScope scope(devices[0]);
  constexpr std::int64_t kSmall = 256;
  const std::int64_t large = std::max<std::int64_t>(static_cast<std::int64_t>(bytes / 4), 16 * kSmall);
  Link link;
  link.latency = hop(zeros({kSmall}), devices[0], devices[1]);
  const double more = hop(zeros({large}), devices[0], devices[1]) - link.latency;
  if (more > 0) link.bandwidth = 4 * static_cast<double>(large - kSmall) / more;
  return link;
}

/// Cores for CPU devices; of others each has what it is.
int cores_for(const std::vector<Device>& devices) {
  int cores = 0;
  for (const Device& device : devices) {
    if (device.kind != DeviceKind::cpu) return static_cast<int>(devices.size());
    cores += default_engine().threads(device);
  }
  return std::min(cores, static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
}

void check(const Sequential& network, const Batch& batch, const std::vector<Device>& devices,
           const MeasureOptions& options) {
  if (network.size() == 0) throw UsageError("[plan] a network without layers");
  if (devices.empty()) throw UsageError("[plan] no devices");
  if (options.rounds < 1) throw std::invalid_argument("to measure takes at least 1 round");
  std::int64_t before = 0;
  for (const std::int64_t rows : options.rows) {
    if (rows <= before || rows > batch.x.size(0)) {
      throw std::invalid_argument("microbatches of " + std::to_string(rows) +
                                  " rows cannot be measured: the numbers increase, and a batch has " +
                                  std::to_string(batch.x.size(0)));
    }
    before = rows;
  }
}

}  // namespace

Measured measure_layers(const Sequential& network, const Batch& batch, const std::vector<Device>& devices,
                        const MeasureOptions& options) {
  check(network, batch, devices, options);
  std::vector<std::int64_t> sizes = options.rows;
  if (sizes.empty()) {
    for (const int m : plannable_microbatches(batch.x.size(0))) sizes.insert(sizes.begin(), batch.x.size(0) / m);
  }
  const LossFunction loss = loss_or_default(options.loss);
  Device home = batch.x.device();
  for (std::size_t i = network.size(); i-- > 0;) {
    for (const NamedParameter& p : network.layer(i).parameters()) home = p.value->device();
  }
  Layers layers(network, home);
  Measured measured;
  std::set<const void*> seen;
  double widest = 0;
  for (int l = 0; l < layers.size(); ++l) {
    measured.layers.push_back({.name = layers.name(l)});
    layers[l]->to(devices[0]);
    add_weights(measured.layers.back(), *layers[l], seen, options);
  }
  for (const std::int64_t rows : sizes) {
    const std::vector<LayerSample> samples = bytes_of(layers, batch, rows, devices[0], loss);
    for (int l = 0; l < layers.size(); ++l) {
      measured.layers[at(l)].samples.push_back(samples[at(l)]);
      widest = std::max(widest, samples[at(l)].input);
    }
  }
  // A first try tells how to give all devices about as much to do.
  const int cores = cores_for(devices);
  const int busy = std::min({static_cast<int>(devices.size()), cores, layers.size()});
  std::vector<int> cut{0};
  if (busy > 1) {
    Times first;
    const std::int64_t rows = sizes[sizes.size() / 2];
    Trial trial(layers, batch, devices, cut, loss);
    for (int i = 0; i < 2; ++i) {
      first.clear();
      trial.step(rows, first);
    }
    std::vector<LayerCost> tried = measured.layers;
    for (int l = 0; l < layers.size(); ++l) {
      tried[at(l)].samples = {{.rows = static_cast<double>(rows)}};
      set_times(tried[at(l)].samples[0], first, l);
    }
    cut = even_cut(tried, busy, rows);
  }
  Trial trial(layers, batch, devices, cut, loss);
  std::vector<Times> times(sizes.size());
  for (int round = -1; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      trial.step(sizes[i], times[i]);
      if (round < 0) times[i].clear();  // it warms up
    }
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (int l = 0; l < layers.size(); ++l) set_times(measured.layers[at(l)].samples[i], times[i], l);
  }
  const double push = push_of(layers, batch, devices, cut, sizes.front(), loss);
  for (LayerCost& layer : measured.layers) layer.push = push / layers.size();
  layers.put_back();
  measured.link = measure_link(devices, widest);
  measured.cores = devices[0].kind == DeviceKind::cpu ? cores : 0;
  return measured;
}

}  // namespace sluice::parallel
