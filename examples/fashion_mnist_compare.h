// --compare of examples/fashion_mnist.cc: each schedule on the same batch, in turns.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fashion_mnist_arguments.h"
#include "fashion_mnist_model.h"
#include "fashion_mnist_report.h"
#include "sluice/resources/memory_pool.h"
#include "sluice/sluice.h"

namespace compared {

/// A network in the stages that a schedule wants.
struct Trained {
  Trained(const Arguments& a, const sluice::parallel::Candidate& candidate)
      : net(make_network(a)),
        pipeline(make_pipeline(a, net, candidate)),
        opt(net, sluice::nn::Sgd{.lr = a.lr, .momentum = 0.9}) {}
  sluice::nn::Sequential net;
  sluice::parallel::Pipeline pipeline;
  sluice::nn::Optimizer opt;
};

/// A schedule with a network of its own.
struct Side {
  sluice::parallel::Candidate candidate;
  std::unique_ptr<Trained> trained = {};  ///< null: refused, and what is below is empty
  std::vector<double> throughput = {}, ratio = {}, bubble = {};
  std::vector<double> peak = {};  ///< bytes of each device, measured on CPUs
};

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

inline void step(Trained& trained, const sluice::parallel::Batch& batch, const sluice::parallel::Schedule& schedule) {
  trained.pipeline.step(batch.x, batch.target,
                        {.microbatches = schedule.microbatches, .schedule = schedule, .optimizer = &trained.opt});
}

/// Bytes of parameters and of the optimiser's state on each device: what is there between steps.
inline std::vector<double> standing_bytes(const Trained& trained, int devices) {
  std::vector<double> bytes(static_cast<std::size_t>(devices));
  const auto add = [&](const sluice::NDArray& x) {
    bytes[static_cast<std::size_t>(x.device().index)] += static_cast<double>(x.bytes());
  };
  for (const sluice::nn::Named& p : sluice::nn::parameters(trained.net)) add(p.state->value);
  for (const sluice::nn::SavedArray& s : trained.opt.saved_arrays()) add(s.value);
  return bytes;
}

inline void run(const Arguments& a, sluice::Engine& engine, const sluice::parallel::Batch& batch, Side& side,
                bool counts) {
  using namespace sluice;
  constexpr int kSteps = 4;
  const parallel::Schedule schedule = side.candidate.make();
  const bool pooled = a.device == "cpu";
  std::vector<double> before;
  for (int d = 0; pooled && d < a.stages; ++d) {
    memory_pool(cpu(d)).reset_peak();
    before.push_back(static_cast<double>(memory_pool(cpu(d)).stats().in_use));
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) step(*side.trained, batch, schedule);
  engine.wait_all();
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::vector<double> standing = standing_bytes(*side.trained, a.stages);
  side.peak.resize(before.size());
  for (std::size_t d = 0; d < before.size(); ++d) {
    const auto peak = static_cast<double>(memory_pool(cpu(static_cast<int>(d))).stats().peak);
    if (counts) side.peak[d] = std::max(side.peak[d], peak - before[d] + standing[d]);
  }
  engine.start_trace();  // a trace takes time itself
  step(*side.trained, batch, schedule);
  engine.wait_all();
  const parallel::Pipeline& pipeline = side.trained->pipeline;
  const auto boxes = by_device(pipeline.boxes(engine.stop_trace(), pipeline.step_number()), schedule);
  if (!counts) return;
  side.throughput.push_back(kSteps * a.batch / took);
  side.bubble.push_back(parallel::measure(boxes, a.stages).bubble);
}

inline std::string bytes_of_devices(const std::vector<double>& bytes) {
  std::string text;
  for (const double b : bytes) {
    char one[32];
    std::snprintf(one, sizeof one, "%s%.2f", text.empty() ? "" : " ", b / (1 << 20));
    text += one;
  }
  return text.empty() ? "-" : text;
}

}  // namespace compared

/// Each schedule with the plan's best cut for it.
inline void compare(const Arguments& a, sluice::Engine& engine) {
  using namespace sluice;
  constexpr int kRounds = 9;
  const nn::Sequential network = make_network(a);
  const parallel::Measured measured = measure(a, network, {a.microbatches});
  parallel::PlanOptions options = plan_options(a, measured);
  options.microbatches = {a.microbatches};
  std::vector<compared::Side> sides;
  for (const char* name : {"1f1b", "gpipe", "interleaved:2", "zb-h1", "zb-h2", "zbv", "dynamic", "dynamic-v"}) {
    options.schedules = {name};
    const parallel::Plan plan = parallel::plan_layers(measured.layers, options);
    sides.push_back({plan.chosen >= 0 ? plan.best() : plan.table[0]});
    if (plan.chosen >= 0) sides.back().trained = std::make_unique<compared::Trained>(a, plan.best());
  }
  const parallel::Batch batch = make_batch(a);
  for (int round = -1; round < kRounds; ++round) {
    for (compared::Side& side : sides) {
      if (side.trained) compared::run(a, engine, batch, side, round >= 0);
    }
    for (compared::Side& side : sides) {
      if (round >= 0 && side.trained && sides[0].trained) {
        side.ratio.push_back(side.throughput.back() / sides[0].throughput.back());
      }
    }
  }
  std::printf(
      "%d device%s, batch %d in %d microbatches, %d rounds in turns: medians; memory in MiB, device by device\n",
      a.stages, a.stages == 1 ? "" : "s", a.batch, a.microbatches, kRounds);
  const int wide = std::max(16, 6 * a.stages + 2);
  std::printf("%-14s %8s %8s %7s   %7s %8s   %-*s %-*s %s\n", "schedule", "images/s", "planned", "x 1f1b", "bubble",
              "planned", wide, "memory", wide, "planned", "layers of the stages");
  for (const compared::Side& side : sides) {
    const parallel::Candidate& c = side.candidate;
    if (!side.trained) {
      std::printf("%-14s refused: %s\n", c.schedule.c_str(), c.refused.c_str());
      continue;
    }
    std::printf("%-14s %8.0f %8.0f %7.3f   %5.1f %% %6.1f %%   %-*s %-*s %s\n", c.schedule.c_str(),
                compared::median(side.throughput), c.throughput, compared::median(side.ratio),
                100 * compared::median(side.bubble), 100 * c.bubble, wide,
                compared::bytes_of_devices(side.peak).c_str(), wide, compared::bytes_of_devices(c.peak).c_str(),
                cut_to_text(c, static_cast<int>(network.size())).c_str());
  }
}
