// The network of examples/fashion_mnist.cc, and how it is cut into stages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fashion_mnist_arguments.h"
#include "sluice/sluice.h"

inline sluice::Sequential make_network(const Arguments& a) {
  using namespace sluice;
  RandomStream random(a.seed, 1);
  Sequential net(Conv2d(1, 32, 3, random, ConvOptions{.relu = true}), MaxPool2d(2),
                 Conv2d(32, 32, 3, random, ConvOptions{.padding = 1, .relu = true}),
                 Conv2d(32, 64, 3, random, ConvOptions{.relu = true}), MaxPool2d(2), Flatten());
  if (a.tensor_parallel == 1) {
    net.push_back(Linear(1600, 128, random, LinearLayerOptions{.relu = true}));
    net.push_back(Linear(128, 10, random));
  } else {
    const parallel::Communicator group({device(a, a.stages - 1), device(a, a.stages)});
    net.push_back(std::make_shared<parallel::ShardedMlp>(1600, 128, 10, group, random));
  }
  return net;
}

/// One for some of the parameters.
inline std::unique_ptr<sluice::Optimizer> make_optimizer(const std::vector<sluice::NamedParameter>& parameters,
                                                         double lr) {
  return std::make_unique<sluice::Sgd>(parameters, sluice::SgdOptions{.lr = lr, .momentum = 0.9});
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

/// All schedules with all numbers of microbatches, or those that the arguments name.
inline sluice::parallel::Plan make_plan(const Arguments& a, const sluice::Sequential& net) {
  using namespace sluice;
  parallel::PlanOptions options;
  if (a.schedule != "auto" && !a.plan) options.schedules = {a.schedule};
  if (a.microbatches_given || !options.schedules.empty()) options.microbatches = {a.microbatches};
  std::vector<double> memory;
  if (a.memory > 0) memory.assign(static_cast<std::size_t>(a.stages), a.memory * (1 << 20));
  return parallel::plan(net, make_batch(a), stage_devices(a), memory, options,
                        {.optimizer = [&](const auto& parameters) { return make_optimizer(parameters, a.lr); }});
}

/// What is run: by the arguments alone where they say it all, with a cut into stages that take about the same time.
inline sluice::parallel::Candidate choose(const Arguments& a, const sluice::Sequential& net) {
  using namespace sluice;
  const bool planned = a.schedule == "auto" || a.memory > 0 || parallel::stages_of_a_device(a.schedule) > 1;
  if (!planned) {
    static const std::vector<int> cuts[] = {{0}, {0, 3}, {0, 2, 3}, {0, 2, 3, 4}};
    parallel::Candidate c{.schedule = a.schedule, .microbatches = a.microbatches, .first_layer = cuts[a.stages - 1]};
    c.recompute.assign(c.first_layer.size(), false);
    return c;
  }
  const parallel::Plan plan = make_plan(a, net);
  if (plan.chosen >= 0) return plan.best();
  std::string why = "--schedule " + a.schedule + ": refused";
  if (plan.table.size() == 1) return throw BadInput(why + ": " + plan.table[0].refused), parallel::Candidate();
  throw BadInput(why + " in each of " + std::to_string(plan.table.size()) + " forms; --plan says why");
}
