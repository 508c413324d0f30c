// The kinds of work in a pipeline, in one table: what each needs and gives, what memory it holds and frees, which of a
// stage's costs is its, and how it is drawn.
//
// Schedules are lists of actions (action_lists.h). The prover (verify.h), the simulator (simulate.h), the pictures
// (render.h) and the engine (pipeline.h) read this table and know nothing else of the kinds.
// Everything in this header is a pure function of its arguments: thread-safe, and never blocks.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::parallel {

/// What a stage does with a microbatch. A backward pass is one action (B), or two: the gradient of the stage's input
/// (I), which the stage before waits for, and the gradients of its weights (W), which nobody waits for but the
/// optimiser. A recomputation (R) makes again what F did not keep. A step (U) updates the stage's weights: it belongs
/// to no microbatch, and has microbatch 0.
enum class ActionKind : std::uint8_t { forward, backward, input_gradient, weight_gradient, recompute, step };

inline constexpr int kActionKinds = 6;

/// One piece of a device's work. Stages and microbatches count from 0.
struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int microbatch = 0;
  friend auto operator<=>(const Action&, const Action&) = default;
};

/// What actions hand to each other. `saved` is what the backward pass of the stage reads; `kept` is what its weight
/// gradients read once the input's gradient is known: the weighted operators' inputs and output gradients.
enum class Result : std::uint8_t { output, saved, input_gradient, kept, weight_gradient, weights };

inline constexpr int kResults = 6;

/// A result that an action needs: that of the stage before (-1), its own (0) or the stage behind (+1), of its own
/// microbatch or of every one.
struct Need {
  Result result = Result::output;
  int stage = 0;
  bool every_microbatch = false;
};

/// Seconds that a stage's actions take for one microbatch, in the order of ActionKind.
struct StageCost {
  double forward = 0, backward = 0, input_gradient = 0, weight_gradient = 0, recompute = 0, step = 0;

  /// Throws std::invalid_argument for a kind outside of the enumeration.
  double& of(ActionKind kind);
  double of(ActionKind kind) const;
};

/// The costs of a stage whose backward pass is done whole in the time of its two halves.
StageCost cost_of_halves(double forward, double input_gradient, double weight_gradient);

/// What one microbatch of a stage holds in memory, in bytes, and what the stage holds whatever it does.
struct StageBytes {
  double weights = 0;    ///< parameters, their gradients and the optimiser's state: always
  double saved = 0;      ///< from F (or R) to the end of B or I
  double kept = 0;       ///< from I to the end of W
  double input = 0;      ///< the stage's input, from F to the end of R: held in place of `saved` where there is an R
  double both = 0;       ///< of `kept`, what is of `saved` too, as inputs of matrix products: I passes it on to W
  double work = 0;       ///< beside all that, while one of its actions runs: scratch, values in between
  double gradients = 0;  ///< one set of the weights' gradients, for a sum that must wait for another (sum_tree.h)
};

/// What is added to the memory that a device holds, and what is taken from it.
struct MemoryChange {
  double StageBytes::*more = nullptr;
  double StageBytes::*less = nullptr;
};

/// A row of the table.
struct ActionRow {
  char letter = '?';
  const char* name = "";
  double StageCost::*cost = nullptr;
  std::array<Need, 2> needs{};
  int need_count = 0;
  std::array<Result, 2> gives{};
  int give_count = 0;
  Result frees = Result::output;       ///< the memory that is free after it; `output` where there is none
  MemoryChange at_start{}, at_end{};   ///< held_at_start(), held_at_end()
  double StageBytes::*kept_back = {};  ///< of a microbatch that an R makes again: what it holds in place of at_start
  bool of_stage = false;               ///< belongs to a stage and to no microbatch, has microbatch 0, and happens once
  int priority = 0;  ///< in a free order: what a device takes first of what is ready (0 to 7, as the engine's)
  std::array<const char*, 4> shades{};  ///< of boxes in pictures, by microbatch; the last two are pale
  const char* ink = "";                 ///< of text on pale boxes; it is white on others

  std::span<const Need> needed() const { return {needs.data(), static_cast<std::size_t>(need_count)}; }
  std::span<const Result> given() const { return {gives.data(), static_cast<std::size_t>(give_count)}; }
};

/// The kind's row. For a kind outside of the enumeration: a row with the letter '?' and nothing else.
const ActionRow& row_of(ActionKind kind);

/// True if an action of the kind gives the result, whatever stage it is of.
bool gives(ActionKind kind, Result result);

/// How many bytes more its device holds from the start of such an action on, and from its end on; fewer are negative.
/// What it takes is held until its end. `recomputed`: an R makes the microbatch's `saved` again.
double held_at_start(ActionKind kind, const StageBytes& bytes, bool recomputed);
double held_at_end(ActionKind kind, const StageBytes& bytes);

/// "F(0,3)": kind, stage, microbatch; a step is "U(0)".
std::string to_text(const Action& action);

}  // namespace sluice::parallel
