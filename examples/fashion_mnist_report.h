// What the traced steps of examples/fashion_mnist.cc say, and the files that show one of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "fashion_mnist_arguments.h"
#include "fashion_mnist_devices.h"
#include "fashion_mnist_model.h"
#include "sluice/engine/cpu_limits.h"
#include "sluice/sluice.h"

/// The same boxes with the numbers of the devices in place of those of the stages.
inline std::vector<sluice::parallel::TimelineBox> by_device(std::vector<sluice::parallel::TimelineBox> boxes,
                                                            const sluice::parallel::Schedule& schedule) {
  const sluice::parallel::Order order(schedule);
  for (auto& box : boxes) box.stage = order.device_of_stage(box.stage);
  return boxes;
}

/// How many actions of a step have a box: the first stage's input wants no gradient, so its I does nothing.
inline std::size_t boxes_of_step(const sluice::parallel::Schedule& schedule) {
  std::size_t boxes = 0;
  for (const auto& list : schedule.per_device) {
    for (const auto& a : list) {
      boxes += a.kind == sluice::parallel::ActionKind::input_gradient && a.stage == 0 ? 0U : 1U;
    }
  }
  return boxes;
}

/// What works at once: cores, or cards.
inline int workers_of(const Arguments& a, const sluice::Engine& engine, const Cards& cards) {
  if (a.device != "cpu") return cards.count;
  int threads = 0;
  for (int i = 0; i < a.stages; ++i) threads += engine.threads(sluice::cpu(i));
  return std::min(threads, sluice::cpu_limit().cpus);
}

/// One step as planned above one as measured, with the memory of each device where the layers were measured.
inline void draw(const Arguments& a, const Choice& choice, const std::vector<sluice::parallel::TimelineBox>& boxes,
                 const std::string& how_measured) {
  using namespace sluice;
  const parallel::Candidate& chosen = choice.candidate;
  const parallel::Schedule schedule = chosen.make();
  parallel::RenderOptions look;
  look.title = "Fashion-MNIST: " + chosen.schedule + ", " + std::to_string(a.stages) +
               (a.stages == 1 ? " device, " : " devices, ") + std::to_string(schedule.microbatches) + " microbatches";
  look.subtitle = "one training step, batch " + std::to_string(a.batch);
  for (int i = 0; i < a.stages; ++i) look.labels.push_back(to_string(device(a, i)));
  std::vector<parallel::TimelinePanel> panels;
  std::vector<std::vector<parallel::MemoryPoint>> memory;
  if (!choice.layers.empty()) {
    const auto layers = static_cast<int>(choice.layers.size());
    look.subtitle += ", layers " + cut_to_text(chosen, layers);
    const parallel::Simulation planned = simulate(choice.layers, choice.options, chosen);
    char text[96];
    std::snprintf(text, sizeof text, "planned, from the layers' times: bubble %.1f %%", 100 * planned.bubble);
    panels.push_back({text, by_device(to_timeline(planned), schedule), planned.memory});
    memory = memory_over_time(schedule, boxes, bytes_of(choice.layers, choice.options, chosen));
  }
  panels.push_back({how_measured, by_device(boxes, schedule), memory});
  parallel::write_file(a.out + "/timeline.svg", parallel::render_panels(panels, look));
}

inline void report_timeline(const Arguments& a, const Choice& choice, const sluice::parallel::Pipeline& pipeline,
                            const std::vector<sluice::TraceEvent>& events, std::uint64_t first_step,
                            const sluice::Engine& engine, const Cards& cards) {
  using namespace sluice;
  struct Measured {
    double bubble;
    std::vector<parallel::TimelineBox> boxes;
  };
  std::vector<Measured> steps;
  double span = 0, busy = 0;
  std::vector<parallel::StageCost> cost(static_cast<std::size_t>(pipeline.stages()));
  const parallel::Schedule schedule = choice.candidate.make();
  for (std::uint64_t s = first_step; s <= pipeline.step_number(); ++s) {
    std::vector<parallel::TimelineBox> boxes = pipeline.boxes(events, s);
    if (boxes.size() != boxes_of_step(schedule)) continue;
    const parallel::TimelineFigures of_stages = parallel::measure(boxes, pipeline.stages());
    const parallel::TimelineFigures figures = parallel::measure(by_device(boxes, schedule), a.stages);
    span += figures.span;
    busy += figures.busy;
    for (std::size_t i = 0; i < cost.size(); ++i) {
      for (int kind = 0; kind < parallel::kActionKinds; ++kind) {
        const auto k = static_cast<parallel::ActionKind>(kind);
        cost[i].of(k) += of_stages.mean[i].of(k);
      }
    }
    steps.push_back({figures.bubble, std::move(boxes)});
  }
  if (steps.empty()) return;
  for (parallel::StageCost& c : cost) {
    for (int kind = 0; kind < parallel::kActionKinds; ++kind) {
      c.of(static_cast<parallel::ActionKind>(kind)) /= static_cast<double>(steps.size());
    }
  }
  const std::string word = a.device == "cuda" ? "card" : "core";
  const int workers = workers_of(a, engine, cards);
  const double bubble = 1 - busy / (a.stages * span);
  const bool halves = parallel::Order(schedule).has({parallel::ActionKind::input_gradient, 0, 0});
  // Boxes of stages that share cores or cards already hold the time spent waiting for one: simulate them as they are.
  const double simulated = parallel::simulate(schedule, cost, {.cores = a.stages <= workers ? workers : 0}).bubble;
  std::printf(
      "bubble          %.1f %%     (simulated with the measured %s times and %d %s%s: %.1f %%; 1F1B formula "
      "%.1f %%)\n",
      100 * bubble, halves ? "F, I and W" : "F and B", workers, word.c_str(), workers == 1 ? "" : "s", 100 * simulated,
      100 * parallel::bubble_formula(a.stages, schedule.microbatches));

  // The step whose bubble is the median stands for all.
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end(),
                   [](const Measured& x, const Measured& y) { return x.bubble < y.bubble; });
  const Measured& median = steps[steps.size() / 2];
  char text[160];
  const bool timed = std::any_of(events.begin(), events.end(), [](const TraceEvent& e) { return e.device_end != 0; });
  std::snprintf(text, sizeof text, "measured on %d %s%s: bubble %.1f %%%s", workers, word.c_str(),
                workers == 1 ? "" : "s", 100 * median.bubble, timed ? ", by the devices' clocks" : "");
  draw(a, choice, median.boxes, text);
  parallel::write_file(a.out + "/timeline.json", to_perfetto(events));
  std::printf("timeline        %s/timeline.json   (open in ui.perfetto.dev)\n", a.out.c_str());
  std::printf("picture         %s/timeline.svg\n", a.out.c_str());
}
