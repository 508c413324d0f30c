#include "sluice/parallel/action.h"

#include <algorithm>

namespace sluice::parallel {
namespace {

constexpr Need kOutputBefore{Result::output, -1}, kGradientBehind{Result::input_gradient, 1}, kSaved{Result::saved},
    kKept{Result::kept};

// In the order of ActionKind. F's output holds no memory: it is the next stage's input, and counts there.
// clang-format off
constexpr ActionRow kRows[kActionKinds] = {
    {'F', "forward",         {kOutputBefore},           1, {Result::output, Result::saved},                   2},
    {'B', "backward",        {kGradientBehind, kSaved}, 2, {Result::input_gradient, Result::weight_gradient}, 2, Result::saved},
    {'I', "input gradient",  {kGradientBehind, kSaved}, 2, {Result::input_gradient, Result::kept},            2, Result::saved},
    {'W', "weight gradient", {kKept},                   1, {Result::weight_gradient},                         1, Result::kept},
    {'R', "recompute",       {{Result::output}},        1, {Result::saved},                                   1},
    {'U', "optimiser step",  {{Result::weight_gradient, 0, true}}, 1, {Result::weights},                      1},
};
// clang-format on
constexpr ActionRow kUnknown{};

}  // namespace

const ActionRow& row_of(ActionKind kind) {
  const auto i = static_cast<std::size_t>(kind);
  return i < kActionKinds ? kRows[i] : kUnknown;
}

bool gives(ActionKind kind, Result result) {
  return std::ranges::find(row_of(kind).given(), result) != row_of(kind).given().end();
}

std::string to_text(const Action& action) {
  const std::string stage = std::string(1, row_of(action.kind).letter) + "(" + std::to_string(action.stage);
  return action.kind == ActionKind::step ? stage + ")" : stage + "," + std::to_string(action.microbatch) + ")";
}

}  // namespace sluice::parallel
