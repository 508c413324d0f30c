// What the devices of a pipeline have in use at most, beside what the prover says that its schedule needs.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <vector>

#include "pipeline_support.h"
#include "sluice/parallel/plan.h"
#include "sluice/resources/device_pool.h"

namespace sluice {
namespace {

using namespace test;  // NOLINT: network.h

constexpr int kDevices = 4, kMicrobatches = 8, kLayers = 32;
constexpr std::int64_t kUnits = 32, kRowsEach = 32;
constexpr double kActivation = kUnits * kRowsEach * sizeof(float);

/// tanh(x . weight).
struct Dense {
  nn::Parameter weight{{kUnits, kUnits}, nn::constant(.01)};
  NDArray operator()(const NDArray& x) const { return tanh(matmul(x, weight)); }
};

/// Peaks of a step by the schedule, with stages of equal numbers of layers, beside the prover's bytes.
class Steps {
 public:
  Steps() : where_(devices(kDevices)) {
    for (int i = 0; i < kLayers; ++i) net_.push_back(Dense());
    nn::initialise(net_, 1);
    optimizer_.emplace(net_, nn::Sgd{.lr = 1e-3});
    x_ = ones({kMicrobatches * kRowsEach, kUnits}).to(cpu(0));
    y_ = zeros({kMicrobatches * kRowsEach, kUnits}).to(cpu(0));
    measured_ = parallel::measure_layers(
        net_, {x_, y_}, where_,
        {.rows = {kRowsEach}, .rounds = 1, .loss = {mse_loss}, .optimizer = nn::Sgd{.lr = 1e-3}});
  }

  void run(const char* name, bool recompute) {
    const int stages = kDevices * parallel::stages_of_a_device(name);
    std::vector<int> first;
    for (int s = 0; s < stages; ++s) first.push_back(s * kLayers / stages);
    parallel::PlanOptions options;
    options.devices = kDevices;
    options.rows = kMicrobatches * kRowsEach;
    const parallel::Candidate row = parallel::time_cut(measured_.layers, options, name, kMicrobatches, first,
                                                       std::vector<bool>(static_cast<std::size_t>(stages), recompute));
    parallel::Pipeline pipeline(net_, x_.spec(), parallel::pipeline_options(row, where_, {mse_loss}));
    step(pipeline, row);
    for (const Device d : where_) {
      device_pool(default_engine(), d).trim();
      device_pool(default_engine(), d).reset_peak();
    }
    step(pipeline, row);
    for (int d = 0; d < kDevices; ++d) {
      const PoolStats stats = device_pool(default_engine(), where_[static_cast<std::size_t>(d)]).stats();
      const double wanted = row.peak[static_cast<std::size_t>(d)];
      const auto asked = static_cast<double>(stats.peak_asked), held = static_cast<double>(stats.peak_held);
      std::printf("%-13s %s %d %10.0f %10.0f %5.2f %10.0f %5.2f\n", name, recompute ? "R" : " ", d, wanted, asked,
                  asked / wanted, held, held / wanted);
      const double most = wanted + beside(pipeline, d, recompute) * kActivation;
      EXPECT_LE(asked, most) << name << ", device " << d;
      EXPECT_LE(held, 1.5 * most) << name << ", device " << d;
      sum_ += asked / wanted;
      ++count_;
    }
  }
  double mean() const { return sum_ / count_; }

 private:
  /// What a device has at most beside what the prover counts, in activations: what two actions receive before they
  /// begin, and of each stage two outputs and two gradients that are not sent yet (Pipeline::bound_transfers). With
  /// recomputation also the stage's outputs, to which the program has handles until it has pushed their backward
  /// actions: how far it is ahead of the devices, nobody can say.
  int beside(const parallel::Pipeline& pipeline, int d, bool recompute) const {
    const Device device = where_[static_cast<std::size_t>(d)];
    const int last = pipeline.stages() - 1;
    int most = 2;
    for (int s = 0; s <= last; ++s) {
      if (pipeline.device(s) != device) continue;
      most += 2 * (s > 0) + 2 * (s < last);
      if (s == last) most += 2;  // the targets, which are as large here
      if (recompute && s < last) most += kMicrobatches;
    }
    return most;
  }
  void step(parallel::Pipeline& pipeline, const parallel::Candidate& row) {
    pipeline.step(x_, y_, {.microbatches = kMicrobatches, .schedule = row.make(), .optimizer = &*optimizer_}).wait();
    default_engine().wait_all();
  }

  std::vector<Device> where_;
  nn::Sequential net_;
  std::optional<nn::Optimizer> optimizer_;
  NDArray x_, y_;
  parallel::Measured measured_;
  double sum_ = 0;
  int count_ = 0;
};

TEST(PipelineMemory, PeaksAreWhatTheProverSays) {
  if (!on_streams()) GTEST_SKIP() << "of devices with streams";
  ManyDevices engine(kDevices);
  Steps steps;
  std::printf("%-17s %10s %10s %16s\n", "schedule, device", "prover", "in use", "held");
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-h2", "zbv"}) {
    for (const bool recompute : {false, true}) steps.run(name, recompute);
  }
  std::printf("in use / prover: %.3f on average\n", steps.mean());
}

}  // namespace
}  // namespace sluice
