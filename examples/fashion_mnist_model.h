// The network of examples/fashion_mnist.cc, and how it is cut into stages.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "fashion_mnist_arguments.h"
#include "sluice/sluice.h"

/// Eight functions, between which it can be cut.
inline sluice::nn::Sequential make_network(const Arguments& a) {
  using namespace sluice;
  nn::Sequential net{nn::Conv2d{.in = 1, .out = 32, .kernel = 3, .relu = true},
                     nn::MaxPool2d{2},
                     nn::Conv2d{.in = 32, .out = 32, .kernel = 3, .padding = 1, .relu = true},
                     nn::Conv2d{.in = 32, .out = 64, .kernel = 3, .relu = true},
                     nn::MaxPool2d{2},
                     nn::Flatten{},
                     nn::Linear{.in = 1600, .out = 128, .relu = true},
                     nn::Linear{128, 10}};
  nn::initialise(net, a.seed);
  return net;
}

/// In the stages of a plan's candidate.
inline sluice::parallel::Pipeline make_pipeline(const Arguments& a, const sluice::nn::Sequential& net,
                                                const sluice::parallel::Candidate& candidate) {
  using namespace sluice;
  return {net, Spec{{a.batch, 1, 28, 28}, DType::f32, device(a, 0)},
          parallel::pipeline_options(candidate, stage_devices(a))};
}

/// Images and labels as training has them, of no meaning: a plan's measurement looks at times.
inline sluice::parallel::Batch make_batch(const Arguments& a) {
  using namespace sluice;
  RandomStream random(a.seed, 2);
  const DeviceScope scope(device(a, 0));
  std::vector<std::int64_t> labels;
  for (int i = 0; i < a.batch; ++i) labels.push_back(i % 10);
  return {normal({a.batch, 1, 28, 28}, random), from(labels, {a.batch})};
}

/// With the numbers of microbatches that are looked at.
inline sluice::parallel::Measured measure(const Arguments& a, const sluice::nn::Sequential& net,
                                          const std::vector<int>& microbatches) {
  std::vector<std::int64_t> rows;
  for (const int m : microbatches) rows.insert(rows.end(), {a.batch / m, (a.batch + m - 1) / m});
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return sluice::parallel::measure_layers(net, make_batch(a), stage_devices(a),
                                          {.rows = rows, .optimizer = sluice::nn::Sgd{.lr = a.lr, .momentum = 0.9}});
}

inline sluice::parallel::PlanOptions plan_options(const Arguments& a, const sluice::parallel::Measured& measured) {
  sluice::parallel::PlanOptions options{.devices = a.stages,
                                        .rows = a.batch,
                                        .link = measured.link,
                                        .link_takes_cores = measured.cores > 0,
                                        .cores = measured.cores};
  if (a.memory > 0) options.memory.assign(static_cast<std::size_t>(a.stages), a.memory * (1 << 20));
  return options;
}

/// All schedules with all numbers of microbatches, or those that the arguments name.
inline sluice::parallel::Plan make_plan(const Arguments& a, const sluice::nn::Sequential& net) {
  using namespace sluice;
  const bool every_schedule = a.schedule == "auto" || (a.plan && !a.schedule_given);
  std::vector<int> microbatches{a.microbatches};
  if (every_schedule && !a.microbatches_given) microbatches = parallel::plannable_microbatches(a.batch);
  const parallel::Measured measured = measure(a, net, microbatches);
  parallel::PlanOptions options = plan_options(a, measured);
  if (!every_schedule) options.schedules = {a.schedule};
  options.microbatches = microbatches;
  return parallel::plan_layers(measured.layers, options);
}

/// What is run, and what its layers cost, if they were measured.
struct Choice {
  sluice::parallel::Candidate candidate;
  std::vector<sluice::parallel::LayerCost> layers;
  sluice::parallel::PlanOptions options;
};

/// By the arguments alone where they say it all, with a cut into stages that take about the same time.
inline Choice choose(const Arguments& a, const sluice::nn::Sequential& net) {
  using namespace sluice;
  const bool planned = a.schedule == "auto" || a.memory > 0 || parallel::stages_of_a_device(a.schedule) > 1;
  if (!planned) {
    static const std::vector<int> cuts[] = {{0}, {0, 3}, {0, 2, 3}, {0, 2, 3, 4}};
    const std::vector<int>& cut = cuts[a.stages - 1];
    // What was not asked for is measured where that takes no time: on a card each kernel would be loaded for it.
    if (a.device == "cuda") {
      return {{.schedule = a.schedule,
               .microbatches = a.microbatches,
               .first_layer = cut,
               .recompute = std::vector<bool>(cut.size())},
              {},
              {}};
    }
    const parallel::Measured measured = measure(a, net, {a.microbatches});
    const parallel::PlanOptions options = plan_options(a, measured);
    return {parallel::time_cut(measured.layers, options, a.schedule, a.microbatches, cut), measured.layers, options};
  }
  const parallel::Plan plan = make_plan(a, net);
  if (plan.chosen >= 0) return {plan.best(), plan.layers, plan.options};
  const std::string forms = std::to_string(plan.table.size());
  throw BadInput(
      "--schedule " + a.schedule + ": " +
      (plan.table.size() == 1 ? plan.table[0].refused : "refused in all " + forms + " forms; --plan says why"));
}
