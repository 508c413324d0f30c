// A small network for tests of pipelines, with all that must not depend on how it is cut and scheduled: random numbers,
// statistics, momentum, weights that stages share, uneven stages and microbatches. The oracle is one device that runs
// the microbatches one after another, without any pipeline.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/devices.h"
#include "sluice/nn/nn.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/parallel.h"

namespace sluice::test {

/// How a block uses its weight: a head that is the embedding again uses it transposed.
enum class Use { once, twice, transposed };

/// A layer with what must not depend on the schedule: random numbers, and statistics that a forward pass writes.
class Block : public Module {
 public:
  Block(std::int64_t in, std::int64_t out, DType dtype, std::uint64_t seed, Use use = Use::once,
        std::shared_ptr<RandomStream> draws = std::make_shared<RandomStream>(1, 77))
      : use_(use),
        draws_(std::move(draws)),
        weight_(make(in, out, dtype, seed)),
        mean_(zeros({out}, dtype)),
        variance_(ones({out}, dtype)) {}

  NDArray forward(const NDArray& x) override {
    NDArray y = matmul(x, use_ == Use::transposed ? weight_.permute({1, 0}) : weight_);
    if (use_ == Use::twice) y = matmul(y, weight_);
    return dropout(batch_norm(tanh(y), {mean_, variance_}), .25, *draws_);
  }
  std::vector<NDArray> statistics() const { return {mean_, variance_}; }
  NDArray& weight() { return weight_; }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
    out.push_back({prefix + "weight", &weight_});
  }
  void to(Device device) override {
    Module::to(device);
    mean_ = mean_.to(device);
    variance_ = variance_.to(device);
  }

 private:
  static NDArray make(std::int64_t in, std::int64_t out, DType dtype, std::uint64_t seed) {
    RandomStream random(seed, 5);
    return uniform({in, out}, random, -.5, .5, dtype).with_grad();
  }
  Use use_;
  std::shared_ptr<RandomStream> draws_;
  NDArray weight_, mean_, variance_;
};

inline constexpr int kBlocks = 8, kWidth = 6, kRows = 19;

/// The first block's weight is the last one's too; and the blocks 1, 3 and 5 share one. All draw from one stream.
struct Network {
  explicit Network(DType dtype) {
    for (int i = 0; i < kBlocks; ++i) {
      const Use use = i == kBlocks - 1 ? Use::transposed : i == 3 ? Use::twice : Use::once;
      blocks.push_back(std::make_shared<Block>(kWidth, kWidth, dtype, 40 + static_cast<std::uint64_t>(i), use, draws));
    }
    blocks[kBlocks - 1]->weight() = blocks[0]->weight();
    for (const int i : {3, 5}) blocks[static_cast<std::size_t>(i)]->weight() = blocks[1]->weight();
  }
  /// As one module.
  Sequential whole() const {
    Sequential all;
    for (const auto& block : blocks) all.push_back(ModulePtr(block));
    return all;
  }
  /// Uneven stages: the first ones have one block, the last one the rest.
  std::vector<parallel::Stage> stages(int count, const std::vector<int>& device_of) const {
    std::vector<parallel::Stage> all;
    for (int s = 0, block = 0; s < count; ++s) {
      Sequential part;
      const int end = s == count - 1 ? kBlocks : block + 1;
      for (; block < end; ++block) part.push_back(ModulePtr(blocks[static_cast<std::size_t>(block)]));
      all.push_back({std::make_shared<Sequential>(part), test::device(device_of[static_cast<std::size_t>(s)])});
    }
    return all;
  }
  std::shared_ptr<RandomStream> draws = std::make_shared<RandomStream>(4, 77);
  std::vector<std::shared_ptr<Block>> blocks;
};

inline NDArray loss_of(const NDArray& output, const NDArray& target, double divisor) {
  return sum(square(output - target)) / divisor;
}

using Bytes = std::vector<std::vector<std::byte>>;

inline Bytes state_of(const Network& network, const std::vector<NDArray>& losses) {
  Bytes bytes;
  for (const auto& block : network.blocks) {
    for (const NamedParameter& p : block->parameters()) bytes.push_back(p.value->to_bytes());
    for (const NDArray& s : block->statistics()) bytes.push_back(s.to_bytes());
  }
  for (const NDArray& loss : losses) bytes.push_back(loss.to_bytes());
  return bytes;
}

inline std::pair<NDArray, NDArray> batch(DType dtype, int step) {
  RandomStream random(900 + static_cast<std::uint64_t>(step), 3);
  const auto make = [&] { return uniform({kRows, kWidth}, random, -1, 1, dtype); };
  const NDArray x = make();
  return {x, make()};
}

inline constexpr SgdOptions kSgd{.lr = .05, .momentum = .9};

/// One device, no pipeline.
inline Bytes sequential(DType dtype, int microbatches, int steps) {
  test::DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  const Network network(dtype);
  Sgd sgd(network.whole().parameters(), kSgd);
  std::vector<NDArray> losses;
  for (int step = 0; step < steps; ++step) {
    const auto [x, y] = batch(dtype, step);
    std::vector<NDArray> parts;
    const MicrobatchDraws draws;
    std::int64_t begin = 0;
    for (int k = 0; k < microbatches; ++k) {
      const MicrobatchDraws::Scope microbatch(draws, k);
      const std::int64_t end = begin + kRows / microbatches + (k < kRows % microbatches ? 1 : 0);
      NDArray value = x.narrow(0, begin, end);
      for (const auto& block : network.blocks) value = (*block)(value);
      const NDArray loss = loss_of(value, y.narrow(0, begin, end), kRows);
      loss.backward();
      parts.push_back(loss.detach());
      begin = end;
    }
    losses.push_back(add_n(parts));
    sgd.step();
  }
  return state_of(network, losses);
}

inline std::vector<int> devices_of(const parallel::Schedule& schedule) {
  const parallel::Order order(schedule);
  std::vector<int> devices;
  for (int s = 0; s < schedule.stages; ++s) devices.push_back(order.device_of_stage(s));
  return devices;
}

inline Bytes pipelined(DType dtype, const parallel::Schedule& schedule, int steps, bool strict = true,
                       int threads = 2) {
  test::DefaultEngine engine({.threads = threads, .logical_cpus = schedule.devices()});
  const Network network(dtype);
  parallel::Pipeline net(network.stages(schedule.stages, devices_of(schedule)), loss_of);
  const bool updates = parallel::Order(schedule).has({parallel::ActionKind::step, 0, 0});
  Sgd sgd(net.parameters(), kSgd);
  std::deque<Sgd> of_stage;
  for (int s = 0; s < net.stages(); ++s) of_stage.emplace_back(net.parameters(s), kSgd);
  parallel::PipelineStep options{.microbatches = schedule.microbatches,
                                 .schedule = schedule,
                                 .order = strict ? parallel::ActionOrder::listed : parallel::ActionOrder::ready};
  if (updates) options.update = [&](int stage) { of_stage[static_cast<std::size_t>(stage)].step(); };
  std::vector<NDArray> losses;
  for (int step = 0; step < steps; ++step) {
    const auto [x, y] = batch(dtype, step);
    losses.push_back(net.step(x, y, options));
    if (!updates) sgd.step();
  }
  return state_of(network, losses);
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
