#include "sluice/schedule/action.h"

#include <algorithm>
#include <stdexcept>

namespace sluice::parallel {
namespace {

constexpr Need kOutputBefore{Result::output, -1}, kGradientBehind{Result::input_gradient, 1}, kSaved{Result::saved},
    kKept{Result::kept}, kAllGradients{Result::weight_gradient, 0, true};

using Cost = StageCost;
using Bytes = StageBytes;

// In the order of ActionKind. F's output holds no memory: it is the next stage's input, and counts there. A step comes
// first, because the next batch waits for it; nobody waits for a weight gradient but the step. Blue against orange is
// told apart by everyone.
constexpr ActionRow kRows[kActionKinds] = {
    {.letter = 'F',
     .name = "forward",
     .cost = &Cost::forward,
     .needs = {kOutputBefore},
     .need_count = 1,
     .gives = {Result::output, Result::saved},
     .give_count = 2,
     .at_start = {.more = &Bytes::saved},
     .kept_back = &Bytes::input,
     .priority = 3,
     .shades = {"#1f5a9d", "#3b7fc4", "#68a3dc", "#9cc6ee"},
     .ink = "#0b2440"},
    {.letter = 'B',
     .name = "backward",
     .cost = &Cost::backward,
     .needs = {kGradientBehind, kSaved},
     .need_count = 2,
     .gives = {Result::input_gradient, Result::weight_gradient},
     .give_count = 2,
     .frees = Result::saved,
     .at_end = {.less = &Bytes::saved},
     .priority = 6,
     .shades = {"#b35208", "#d56a12", "#f2a04e", "#f9c68c"},
     .ink = "#3d1f02"},
    {.letter = 'I',
     .name = "input gradient",
     .cost = &Cost::input_gradient,
     .needs = {kGradientBehind, kSaved},
     .need_count = 2,
     .gives = {Result::input_gradient, Result::kept},
     .give_count = 2,
     .frees = Result::saved,
     .at_start = {.more = &Bytes::kept, .less = &Bytes::both},
     .at_end = {.more = &Bytes::both, .less = &Bytes::saved},
     .priority = 6,
     .shades = {"#9c2f6b", "#c04b88", "#dd86b2", "#efb9d3"},
     .ink = "#3a0d25"},
    {.letter = 'W',
     .name = "weight gradient",
     .cost = &Cost::weight_gradient,
     .needs = {kKept},
     .need_count = 1,
     .gives = {Result::weight_gradient},
     .give_count = 1,
     .frees = Result::kept,
     .at_end = {.less = &Bytes::kept},
     .priority = 2,
     .shades = {"#1f7a4d", "#35a06a", "#77c79d", "#aee0c6"},
     .ink = "#06301a"},
    {.letter = 'R',
     .name = "recompute",
     .cost = &Cost::recompute,
     .needs = {{Result::output}},
     .need_count = 1,
     .gives = {Result::saved},
     .give_count = 1,
     .at_start = {.more = &Bytes::saved},
     .at_end = {.less = &Bytes::input},
     .priority = 5,
     .shades = {"#5d5a88", "#7a77a8", "#a5a3cb", "#c9c8e3"},
     .ink = "#1d1b3d"},
    {.letter = 'U',
     .name = "optimiser step",
     .cost = &Cost::step,
     .needs = {kAllGradients},
     .need_count = 1,
     .gives = {Result::weights},
     .give_count = 1,
     .of_stage = true,
     .priority = 7,
     .shades = {"#4a5260", "#6a7484", "#98a1af", "#c0c7d1"},
     .ink = "#16191f"},
};
constexpr ActionRow kUnknown{};

double of(const MemoryChange& change, const StageBytes& bytes) {
  return (change.more ? bytes.*change.more : 0) - (change.less ? bytes.*change.less : 0);
}

}  // namespace

const ActionRow& row_of(ActionKind kind) {
  const auto i = static_cast<std::size_t>(kind);
  return i < kActionKinds ? kRows[i] : kUnknown;
}

bool gives(ActionKind kind, Result result) {
  return std::ranges::find(row_of(kind).given(), result) != row_of(kind).given().end();
}

double held_at_start(ActionKind kind, const StageBytes& bytes, bool recomputed) {
  const ActionRow& row = row_of(kind);
  return recomputed && row.kept_back ? bytes.*row.kept_back : of(row.at_start, bytes);
}

double held_at_end(ActionKind kind, const StageBytes& bytes) { return of(row_of(kind).at_end, bytes); }

double& StageCost::of(ActionKind kind) {
  double StageCost::*const cost = row_of(kind).cost;
  if (cost) return this->*cost;
  throw std::invalid_argument("an action of unknown kind " + std::to_string(static_cast<int>(kind)) + " has no cost");
}

double StageCost::of(ActionKind kind) const { return StageCost(*this).of(kind); }

StageCost cost_of_halves(double forward, double input_gradient, double weight_gradient) {
  return {.forward = forward,
          .backward = input_gradient + weight_gradient,
          .input_gradient = input_gradient,
          .weight_gradient = weight_gradient};
}

std::string to_text(const Action& action) {
  const ActionRow& row = row_of(action.kind);
  const std::string stage = std::string(1, row.letter) + "(" + std::to_string(action.stage);
  return row.of_stage ? stage + ")" : stage + "," + std::to_string(action.microbatch) + ")";
}

}  // namespace sluice::parallel
