// A small network for tests of pipelines, with all that must not depend on how it is cut and scheduled: random numbers,
// statistics, momentum, weights that stages share, uneven stages and microbatches. The oracle is one device that runs
// the microbatches one after another, without any pipeline.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/devices.h"
#include "sluice/nn/nets.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/parallel.h"

namespace sluice::test {

inline constexpr int kBlocks = 8, kWidth = 6, kRows = 19;

/// How a block uses its weight: a head that is the embedding again uses it transposed.
enum class Use { once, twice, transposed };

/// A net with what must not depend on the schedule: random numbers, and statistics that a forward pass writes.
struct Block {
  Use use = Use::once;
  nn::Parameter weight{{kWidth, kWidth}, nn::uniform(-.5, .5)};
  nn::BatchNorm norm{kWidth};
  nn::Dropout drop{.25};
  nn::Place place{};
  NDArray operator()(const NDArray& x) const {
    const nn::Here here = place();
    NDArray y = matmul(x, use == Use::transposed ? weight.value().permute({1, 0}) : weight.value());
    if (use == Use::twice) y = matmul(y, weight);
    return drop(norm(tanh(y)));
  }
};

/// The first block's weight is the last one's too; and the blocks 1, 3 and 5 share one.
struct Network {
  explicit Network(DType dtype) : blocks(kBlocks) {
    blocks[3].use = Use::twice;
    blocks.back().use = Use::transposed;
    blocks.back().weight = blocks[0].weight.tied();
    for (const std::size_t i : {3, 5}) blocks[i].weight = blocks[1].weight.tied();
    nn::initialise(*this, 40, {}, {.dtype = dtype});
  }
  auto parts() { return nn::parts("blocks", blocks); }
  nn::Stages stages() const {
    nn::Stages list;
    for (const Block& block : blocks) list.add("block", block);
    return list;
  }
  NDArray operator()(const NDArray& x) const { return nn::run(stages(), x); }

  std::vector<Block> blocks;
};

/// Functions one after the other, for nets of a test's own: each is a lambda, or a std::shared_ptr of a net that the
/// test keeps a hold of. Their parameters are "0.weight", "1.weight", ... A pipeline may outlive it.
class Chain {
 public:
  template <class... F>
  explicit Chain(F... functions) {
    (add(std::move(functions)), ...);
  }
  template <class F>
  void add(F function) {
    list_.push_back({[function](const NDArray& x) -> NDArray { return function(x); }, nullptr});
  }
  template <class Net>
  void add(std::shared_ptr<Net> net) {
    list_.push_back({[net](const NDArray& x) -> NDArray { return (*net)(x); },
                     [net](const std::string& path, nn::Visitor& visitor) { nn::detail::walk(*net, path, visitor); }});
  }
  void walk_parts(const std::string& path, nn::Visitor& visitor) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (list_[i].walk) list_[i].walk(nn::join(path, std::to_string(i)), visitor);
    }
  }
  nn::Stages stages() const {
    nn::Stages list;
    for (const Function& f : list_) list.add("", f.call);
    return list;
  }
  NDArray operator()(const NDArray& x) const { return nn::run(stages(), x); }

 private:
  struct Function {
    std::function<NDArray(const NDArray&)> call;
    std::function<void(const std::string&, nn::Visitor&)> walk;  ///< null: it has no parts
  };
  std::vector<Function> list_;
};

inline NDArray loss_of(const NDArray& output, const NDArray& target, double divisor) {
  return sum(square(output - target)) / divisor;
}

/// test::device(i) for each i.
inline std::vector<Device> on_devices(const std::vector<int>& numbers) {
  std::vector<Device> devices;
  for (const int i : numbers) devices.push_back(test::device(i));
  return devices;
}

/// A pipeline for the rows of batch(). The net must have values.
template <class Net>
parallel::Pipeline pipeline(const Net& net, std::vector<Device> devices, std::vector<int> cut = {},
                            DType dtype = DType::f32, parallel::Loss loss = loss_of) {
  return parallel::Pipeline(net, Spec{{kRows, kWidth}, dtype, test::device()},
                            {.devices = std::move(devices), .cut = std::move(cut), .loss = std::move(loss)});
}

/// Uneven stages: the first ones have one function, the last one the rest.
inline std::vector<int> uneven_cut(int stages) {
  std::vector<int> cut;
  for (int s = 0; s < stages; ++s) cut.push_back(s);
  return cut;
}

using Bytes = std::vector<std::vector<std::byte>>;

/// Of all values of a net, in its order: parameters and statistics.
template <class Net>
Bytes values_of(const Net& net) {
  Bytes bytes;
  for (const nn::Named& slot : nn::contents(net).slots) bytes.push_back(slot.state->value.to_bytes());
  return bytes;
}

/// Of all gradients; empty where there is none.
template <class Net>
Bytes gradients_of(const Net& net) {
  Bytes bytes;
  for (const nn::Named& p : nn::parameters(net)) {
    const NDArray gradient = p.state->value.grad();
    bytes.push_back(gradient.defined() ? gradient.to_bytes() : std::vector<std::byte>());
  }
  return bytes;
}

/// Of values, of what the optimiser keeps, and of these losses.
template <class Net>
Bytes state_of(const Net& net, const nn::Optimizer& opt, const std::vector<NDArray>& losses = {}) {
  Bytes bytes = values_of(net);
  for (const nn::SavedArray& kept : opt.saved_arrays()) bytes.push_back(kept.value.to_bytes());
  for (const NDArray& loss : losses) bytes.push_back(loss.to_bytes());
  return bytes;
}

inline std::pair<NDArray, NDArray> batch(DType dtype, int step) {
  RandomStream random(900 + static_cast<std::uint64_t>(step), 3);
  const auto make = [&] { return uniform({kRows, kWidth}, random, -1, 1, dtype); };
  const NDArray x = make();
  return {x, make()};
}

inline const nn::Sgd kSgd{.lr = .05, .momentum = .9};

/// The gradients of a batch on one device, without a pipeline, and its loss. In the caller's nn::Training.
template <class Net>
NDArray accumulate(const Net& net, const NDArray& x, const NDArray& y, int microbatches) {
  std::vector<NDArray> parts;
  std::int64_t begin = 0;
  for (int k = 0; k < microbatches; ++k) {
    const nn::Microbatch microbatch(k);
    const std::int64_t end = begin + kRows / microbatches + (k < kRows % microbatches ? 1 : 0);
    const NDArray loss = loss_of(net(x.narrow(0, begin, end)), y.narrow(0, begin, end), kRows);
    loss.backward();
    parts.push_back(loss.detach());
    begin = end;
  }
  return add_n(parts);
}

/// One device, no pipeline. Above 0, max_norm clips; then the gradients' norms stand behind the losses.
inline Bytes sequential(DType dtype, int microbatches, int steps, double max_norm = 0) {
  test::DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  const Network network(dtype);
  nn::Optimizer opt(network, kSgd);
  RandomStream stream(4, 77);
  std::vector<NDArray> losses, norms;
  for (int step = 0; step < steps; ++step) {
    const auto [x, y] = batch(dtype, step);
    const nn::Training on(stream);
    losses.push_back(accumulate(network, x, y, microbatches));
    if (max_norm > 0) norms.push_back(nn::clip_gradients(network, max_norm));
    opt.step();
  }
  losses.insert(losses.end(), norms.begin(), norms.end());
  return state_of(network, opt, losses);
}

inline std::vector<int> devices_of(const parallel::Schedule& schedule) {
  const parallel::Order order(schedule);
  std::vector<int> devices;
  for (int s = 0; s < schedule.stages; ++s) devices.push_back(order.device_of_stage(s));
  return devices;
}

/// The network in as many stages as the schedule has, on its devices.
inline parallel::Pipeline pipeline_for(const Network& network, const parallel::Schedule& schedule, DType dtype) {
  return pipeline(network, on_devices(devices_of(schedule)), uneven_cut(schedule.stages), dtype);
}

/// Who steps: the program, behind the pipeline's step; the pipeline, behind all stages; or each stage in its U.
enum class By { hand, optimizer, stages };

inline Bytes pipelined(DType dtype, const parallel::Schedule& schedule, int steps, bool strict = true, int threads = 2,
                       By by = By::hand, double max_norm = 0) {
  test::DefaultEngine engine({.threads = threads, .logical_cpus = schedule.devices()});
  const Network network(dtype);
  parallel::Pipeline net = pipeline_for(network, schedule, dtype);
  nn::Optimizer opt(network, kSgd);
  RandomStream stream(4, 77);
  const parallel::PipelineStep options{.microbatches = schedule.microbatches,
                                       .schedule = schedule,
                                       .order = strict ? parallel::ActionOrder::listed : parallel::ActionOrder::ready,
                                       .optimizer = by == By::hand ? nullptr : &opt,
                                       .max_norm = max_norm,
                                       .gate = by == By::stages ? parallel::Gate::none : parallel::Gate::all};
  std::vector<NDArray> losses, norms;
  for (int step = 0; step < steps; ++step) {
    const auto [x, y] = batch(dtype, step);
    const nn::Training on(stream);
    losses.push_back(net.step(x, y, options));
    if (max_norm > 0) norms.push_back(net.gradient_norm());
    if (by == By::hand) opt.step();
  }
  losses.insert(losses.end(), norms.begin(), norms.end());
  return state_of(network, opt, losses);
}

inline std::vector<parallel::Schedule> schedules(int stages, int microbatches) {
  std::vector<parallel::Schedule> all;
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2", "dynamic", "dynamic:1,1", "dynamic:3,2", "interleaved:2",
                           "zbv", "dynamic-v", "dynamic-v:2,3"}) {
    try {
      all.push_back(parallel::make_schedule(name, stages, microbatches));
    } catch (const std::invalid_argument&) {
      continue;  // not defined here
    }
  }
  return all;
}

/// What f throws, in words.
template <class F>
std::string message(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing thrown";
}

}  // namespace sluice::test
