#include <algorithm>
#include <cstdio>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/engine/number_text.h"
#include "sluice/schedule/planner.h"

namespace sluice::parallel {
namespace {

template <class... Values>
std::string line(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string layers_table(const Plan& plan) {
  const double rows = static_cast<double>(plan.options.rows) / plan.best().microbatches;
  std::string text =
      line("%-28s %9s %9s %9s  %10s %10s %10s\n", "layer", "F us", "I us", "W us", "weights", "saved", "kept");
  for (const LayerCost& layer : plan.layers) {
    const LayerSample at = layer.at(rows);
    const auto us = [](double seconds) { return fixed_text(1e6 * seconds, 1); };
    text += line("%-28s %9s %9s %9s  %10s %10s %10s\n", layer.name.substr(0, 28).c_str(), us(at.forward).c_str(),
                 us(at.input_gradient).c_str(), us(at.weight_gradient).c_str(), bytes_in_words(layer.weights).c_str(),
                 bytes_in_words(at.saved).c_str(), bytes_in_words(at.kept).c_str());
  }
  return text + "for a microbatch of " + general_text(rows, 4) + " rows\n\n";
}

std::string row(const Candidate& c, bool chosen, int layers) {
  const std::string head = line("%c %-15s %4d", chosen ? '*' : ' ', c.schedule.c_str(), c.microbatches);
  if (!c.refused.empty()) return head + "  refused: " + c.refused + "\n";
  const auto most = std::ranges::max_element(c.peak);
  std::string text = head + line("  %9s  %8s  %5s %%  %3d: %-10s ", fixed_text(1e3 * c.seconds, 3).c_str(),
                                 fixed_text(c.throughput, 0).c_str(), fixed_text(100 * c.bubble, 1).c_str(),
                                 static_cast<int>(most - c.peak.begin()), bytes_in_words(*most).c_str());
  text += cut_to_text(c, layers);
  if (!c.exact) text += " (others at most " + fixed_text(100 * (1 - c.bound / c.seconds), 1) + " % quicker)";
  return text + "\n";
}

}  // namespace

std::string cut_to_text(const Candidate& candidate, int layers) {
  std::string text;
  for (int s = 0; s < candidate.stages(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const int first = candidate.first_layer[i];
    const int last = (s + 1 < candidate.stages() ? candidate.first_layer[i + 1] : layers) - 1;
    if (s > 0) text += " | ";
    text += std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
    if (candidate.recompute[i]) text += " R";
  }
  return text;
}

std::string to_text(const Plan& plan) {
  std::string text;
  if (plan.chosen >= 0) text += layers_table(plan);
  text += line("  %-15s %4s  %9s  %8s  %7s  %-15s %s\n", "schedule", "m", "ms a step", "rows/s", "bubble",
               "fullest device", "layers of the stages");
  for (std::size_t i = 0; i < plan.table.size(); ++i) {
    text += row(plan.table[i], static_cast<int>(i) == plan.chosen, static_cast<int>(plan.layers.size()));
  }
  if (plan.chosen < 0) return text + "nothing is left: all candidates are refused\n";
  return text;
}

}  // namespace sluice::parallel
