// What the functions of a net ("layers") cost. Each is a stage of its own of a pipeline, so that the pipeline's trace
// has its times.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/engine/cpu_limits.h"
#include "sluice/ndarray/push.h"
#include "sluice/ndarray/scope_flags.h"
#include "sluice/nn/net/mode.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/layer_bytes.h"
#include "sluice/parallel/plan.h"
#include "sluice/resources/draw_notes.h"
#include "sluice/schedule/generators.h"

namespace sluice::parallel {
namespace {

using Clock = std::chrono::steady_clock;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

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
        all.push_back({a.kind, gives(a.kind, Result::output) ? begin + i : end - 1 - i, a.microbatch});
      }
    }
    list = std::move(all);
  }
  return made;
}

/// A trace that ends with it, whatever is thrown meanwhile.
class Trace {
 public:
  explicit Trace(Engine& engine) : engine_(engine) { engine_.start_trace(); }
  ~Trace() {
    if (!ended_) engine_.stop_trace();
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  std::vector<TraceEvent> end() {
    ended_ = true;
    return engine_.stop_trace();
  }

 private:
  Engine& engine_;
  bool ended_ = false;
};

/// The lengths of all boxes of a layer and a kind.
using Times = std::map<std::pair<int, ActionKind>, std::vector<double>>;

NDArray rows_of(const NDArray& whole, std::int64_t rows) { return whole.narrow(0, 0, rows); }
nn::Arrays rows_of(const nn::Arrays& whole, std::int64_t rows) {
  nn::Arrays list;
  for (const NDArray& x : whole) list.push_back(rows_of(x, rows));
  return list;
}

/// A pipeline whose stages are the layers, on some devices.
class Trial {
 public:
  Trial(const detail::TrialNet& net, const Batch& batch, const std::vector<Device>& devices,
        std::vector<int> first_layer, const Loss& loss)
      : net_(net), batch_(batch), first_layer_(std::move(first_layer)) {
    PipelineOptions options{.devices = {}, .cut = {}, .loss = loss};
    for (int l = 0, s = 0; l < net.size(); ++l) {
      if (s + 1 < static_cast<int>(first_layer_.size()) && first_layer_[at(s) + 1] == l) ++s;
      options.devices.push_back(devices[at(s)]);
      options.cut.push_back(l);
    }
    pipeline_.emplace(std::make_unique<detail::NetFunctions>(net.functions()), std::move(options),
                      std::source_location::current());
  }

  /// One step of a few microbatches of so many rows.
  void step(std::int64_t rows, Times& times) {
    const int devices = static_cast<int>(first_layer_.size());
    const int m = static_cast<int>(std::clamp<std::int64_t>(batch_.target.size(0) / rows, 1, 4 * devices));
    Trace trace(batch_.target.engine());
    const NDArray loss =
        pipeline_->step(rows_of(batch_.x, m * rows), rows_of(batch_.target, m * rows),
                        {.microbatches = m, .schedule = in_layers(zb_h1(devices, m), first_layer_, net_.size())});
    loss.wait();
    for (int l = 0; l < net_.size(); ++l) net_.wait_for_gradients(l);
    for (const TimelineBox& box : pipeline_->boxes(trace.end(), pipeline_->step_number())) {
      times[{box.stage, box.kind}].push_back(box.end - box.start);
    }
    net_.drop_gradients();
  }

 private:
  const detail::TrialNet& net_;
  const Batch& batch_;
  std::vector<int> first_layer_;
  std::optional<Pipeline> pipeline_;
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
double push_of(const detail::TrialNet& net, const Batch& batch, const std::vector<Device>& devices,
               const std::vector<int>& first_layer, std::int64_t rows, const Loss& loss) {
  const std::vector<Device> used(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(first_layer.size()));
  Pipeline pipeline(std::make_unique<detail::NetFunctions>(net.functions()),
                    {.devices = used, .cut = first_layer, .loss = loss}, std::source_location::current());
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const int m = static_cast<int>(std::clamp<std::int64_t>(batch.target.size(0) / rows, 1, 8));
  const nn::Arrays x = rows_of(batch.x, m * rows);
  const NDArray target = rows_of(batch.target, m * rows);
  std::vector<double> took;
  for (int round = 0; round < 6; ++round) {
    const double start = now();
    const NDArray loss_of_step = pipeline.step(x, target, {.microbatches = m, .schedule = one_f_one_b});
    if (round > 0) took.push_back((now() - start) / m);
    loss_of_step.wait();
    for (int l = 0; l < net.size(); ++l) net.wait_for_gradients(l);
    net.drop_gradients();
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
void add_weights(LayerCost& cost, const detail::TrialNet& net, int layer, std::set<std::size_t>& seen,
                 const MeasureOptions& options) {
  nn::Contents trained;
  for (const std::size_t slot : net.functions().reads(layer, layer + 1)) {
    if (!seen.insert(slot).second) continue;  // tied: another layer has it
    const nn::State& state = net.functions().state(slot);
    const auto bytes = static_cast<double>(state.value.bytes());
    cost.weights += bytes;
    if (state.kind == nn::Kind::statistic) cost.weights += bytes;  // a step writes a copy
    if (!state.value.requires_grad()) continue;
    cost.weights += bytes;
    cost.gradients += bytes;
    trained.slots.push_back(net.functions().slots()[slot]);
  }
  if (!options.optimizer || trained.slots.empty()) return;
  nn::Optimizer optimizer(trained, *options.optimizer);
  std::vector<NDArray> values, gradients, before;
  for (const nn::Named& slot : trained.slots) {
    values.push_back(slot.state->value);
    gradients.push_back(zeros_like(values.back()));
    before.push_back(values.back().detach().copy());
  }
  std::vector<double> times;
  constexpr std::uint64_t kTag = 0x57ED;
  for (int round = -1; round < std::max(5, options.rounds); ++round) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i].set_grad(gradients[i]);
    for (const NDArray& gradient : gradients) gradient.wait();
    Trace trace(values[0].engine());
    {
      const TagScope tag(kTag);
      optimizer.step();
    }
    for (const NDArray& value : values) value.wait();
    double time = 0;
    for (const TraceEvent& e : trace.end()) {
      if (e.tag != kTag || e.lane != LaneKind::compute) continue;
      time += 1e-9 * static_cast<double>(e.device_end != 0 ? e.device_end - e.device_start : e.end - e.start);
    }
    if (round >= 0) times.push_back(time);
  }
  for (const nn::SavedArray& kept : optimizer.saved_arrays()) cost.weights += static_cast<double>(kept.value.bytes());
  cost.step = median(times);
  const NoGrad no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) values[i].assign(before[i]);
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

/// Seconds from the end of a CPU's operation to the start of the next device's that waits for it, which had nothing to
/// do for as long as an action takes: its threads may be asleep.
double late_hop(const std::vector<Device>& devices) {
  constexpr int kHops = 32;
  static constexpr auto kBusy = std::chrono::microseconds(400);
  std::vector<double> took;
  for (int round = 0; round < 3; ++round) {
    NDArray value = zeros({256});
    value.wait();
    const auto start = Clock::now();
    for (int i = 0; i < kHops; ++i) {
      const Device device = devices[at(i % 2)];
      const DeviceScope scope(device);
      const NDArray next = empty({256}, DType::f32), input = value.to(device);
      push_op(
          [](ArrayContext&) {
            for (const auto begin = Clock::now(); Clock::now() - begin < kBusy;) continue;
          },
          {input}, {next}, {.name = "busy"});
      value = next;
    }
    value.wait();
    took.push_back(std::chrono::duration<double>(Clock::now() - start - kHops * kBusy).count() / kHops);
  }
  return std::max(0.0, median(took));
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
  if (devices[0].kind == DeviceKind::cpu) link.latency = late_hop(devices);
  return link;
}

/// Cores for CPU devices; of others each has what it is.
int cores_for(const Engine& engine, const std::vector<Device>& devices) {
  int cores = 0;
  for (const Device& device : devices) {
    if (device.kind != DeviceKind::cpu) return static_cast<int>(devices.size());
    cores += engine.threads(device);
  }
  return std::min(cores, cpu_limit().cpus);
}

void check(const Batch& batch, const std::vector<Device>& devices, const MeasureOptions& options) {
  if (devices.empty()) throw UsageError("[plan] no devices");
  if (batch.x.empty() || batch.target.size(0) < 1) throw UsageError("[plan] a batch without rows");
  if ((current_scope().flags & (kNoGradFlag | kEvaluationFlag)) == kNoGradFlag) {
    throw UsageError("[plan] in a NoGrad scope nothing has gradients");
  }
  for (const NDArray& x : batch.x) {
    if (x.size(0) == batch.target.size(0)) continue;
    throw UsageError("[plan] " + to_string(x.shape()) + " with targets " + to_string(batch.target.shape()) +
                     ": lengths differ");
  }
  if (options.rounds < 1) throw std::invalid_argument("to measure takes at least 1 round");
  std::int64_t before = 0;
  for (const std::int64_t rows : options.rows) {
    if (rows <= before || rows > batch.target.size(0)) {
      throw std::invalid_argument("microbatches of " + std::to_string(rows) +
                                  " rows cannot be measured: the numbers increase, and a batch has " +
                                  std::to_string(batch.target.size(0)));
    }
    before = rows;
  }
}

}  // namespace

Measured detail::measure_layers(const nn::Contents& contents, const nn::Stages& functions, const Batch& batch,
                                const std::vector<Device>& devices, const MeasureOptions& options,
                                std::source_location where) {
  batch.target.checked("measure_layers", where);
  for (const NDArray& x : batch.x) x.checked("measure_layers", where);
  check(batch, devices, options);
  std::vector<std::int64_t> sizes = options.rows;
  if (sizes.empty()) {
    for (const int m : plannable_microbatches(batch.target.size(0))) {
      sizes.insert(sizes.begin(), batch.target.size(0) / m);
    }
  }
  const Loss& loss = options.loss;
  // The program's random streams stay where they are, and so do its mode and its gradients.
  const DrawNotes::Still still;
  RandomStream stream(0);
  const nn::Training training(stream);
  std::vector<Spec> input;
  for (const NDArray& x : batch.x) input.push_back(rows_of(x, sizes.front()).spec());
  const TrialNet net(NetFunctions(contents, functions, input, "measure_layers", where).trial());
  net.to(devices[0]);
  Measured measured;
  std::set<std::size_t> seen;
  double widest = 0;
  for (int l = 0; l < net.size(); ++l) {
    measured.layers.push_back({.name = net.functions().name(l)});
    add_weights(measured.layers.back(), net, l, seen, options);
  }
  for (const std::int64_t rows : sizes) {
    const std::vector<LayerSample> samples = layer_bytes(net, batch, rows, devices[0], loss);
    for (int l = 0; l < net.size(); ++l) {
      measured.layers[at(l)].samples.push_back(samples[at(l)]);
      widest = std::max(widest, samples[at(l)].input);
    }
  }
  // A first try tells how to give all devices about as much to do.
  const int cores = cores_for(batch.target.engine(), devices);
  const int busy = std::min({static_cast<int>(devices.size()), cores, net.size()});
  std::vector<int> cut{0};
  if (busy > 1) {
    Times first;
    const std::int64_t rows = sizes[sizes.size() / 2];
    Trial trial(net, batch, devices, cut, loss);
    for (int i = 0; i < 2; ++i) {
      first.clear();
      trial.step(rows, first);
    }
    std::vector<LayerCost> tried = measured.layers;
    for (int l = 0; l < net.size(); ++l) {
      tried[at(l)].samples = {{.rows = static_cast<double>(rows)}};
      set_times(tried[at(l)].samples[0], first, l);
    }
    cut = even_cut(tried, busy, rows);
  }
  Trial trial(net, batch, devices, cut, loss);
  std::vector<Times> times(sizes.size());
  for (int round = -1; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      trial.step(sizes[i], times[i]);
      if (round < 0) times[i].clear();  // it warms up
    }
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (int l = 0; l < net.size(); ++l) set_times(measured.layers[at(l)].samples[i], times[i], l);
  }
  const double push = push_of(net, batch, devices, cut, sizes.front(), loss);
  for (LayerCost& layer : measured.layers) layer.push = push / net.size();
  measured.link = measure_link(devices, widest);
  measured.cores = devices[0].kind == DeviceKind::cpu ? cores : 0;
  return measured;
}

}  // namespace sluice::parallel
