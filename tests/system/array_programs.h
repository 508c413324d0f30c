// Random programs on arrays, made from a seed as data and run on any engine and devices: views, writes in place,
// snapshots, gradients, transfers, errors, recoveries. Two runs of one program on the same kinds of devices must see
// the same, bit by bit, however the engine schedules them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/push.h"

namespace sluice::testing {

enum class StepKind : std::uint8_t {
  make,             ///< full, arange or random numbers
  unary,            ///< tanh, abs, ...
  binary,           ///< add, mul, ..., of arrays that may view each other
  reduce,           ///< sum, max, softmax, matmul with itself
  join,             ///< concat
  view,             ///< a window, a transpose, another shape
  update,           ///< in place with another array or a number
  fill,             ///< overwrites an array or a part of it
  assign,           ///< copies from one view to another, which may overlap
  overlap,          ///< x[1:] += x[:-1], and the like
  snapshot,         ///< detach
  drop,             ///< lets go of a handle
  transfer,         ///< to another device
  foreign,          ///< from_memory of a piece of a block that all imports share
  parts,            ///< a write to a part, or to the whole, of a partitioned array
  own_op,           ///< push_op with two inputs and two outputs
  borrow,           ///< the host writes
  fail_torn,        ///< an op that overwrites and then throws
  fail_intact,      ///< an op that throws before it writes
  recover,          ///< Engine::recover
  forward,          ///< a recorded operator on a leaf
  loss,             ///< a recorded sum that a later step runs backward from
  backward,         ///< of one of the losses, whatever was written since
  gradient,         ///< a leaf's gradient becomes an array of the program
  second_gradient,  ///< a gradient of a gradient
  leaf_update,      ///< in place on a leaf, in a NoGrad scope
  step,             ///< an optimiser's step behind its gate, which may be poisoned
  good_step,        ///< loss, backward, step and item in a try block; recovers where it caught an error
  sgd_recover,      ///< Optimizer::recover
  item,             ///< item() of an element, in a try block
  read,             ///< to_bytes(), in a try block
};
inline constexpr int kStepKinds = static_cast<int>(StepKind::read) + 1;
const char* name_of(StepKind kind);

/// What the numbers mean is the kind's affair; they are reduced to what there is when the step is run.
struct ProgramStep {
  StepKind kind;
  std::uint32_t a, b, c, d;
};

/// Where an op's kernel fails, what was made of its value was made already: it is torn, while serial mode skips it and
/// leaves the old value whole, and an optimiser's gate may close for a step that has no part in it. So in programs with
/// late errors nothing asks which it was: `recover` overwrites, and nothing steps. In the others ops on devices with
/// streams fail when they are issued.
struct ArrayProgram {
  std::uint64_t seed = 0;
  bool late_errors = false;
  std::vector<ProgramStep> steps;
};
struct ProgramOptions {
  int steps = 60;
  bool late_errors = false;
};
ArrayProgram make_array_program(std::uint64_t seed, const ProgramOptions& options = {});

/// How often each kind was run, and how often it saw an error: at the call, or as what it waited for.
struct Coverage {
  std::array<std::uint64_t, kStepKinds> run{}, errors{};
  void add(const Coverage& other);
  std::string table() const;
};

/// Runs it on an engine and on devices of it (three or more, of which the first is a CPU: the host's memory is imported
/// and borrowed there), with waits where the steps say so and at the end. Returns all that was seen: bytes of elements,
/// or the text of the error. New arrays belong to the engine meanwhile. GPUs do not run functions of the host:
/// `own_op_on_gpu` is a body that issues, with two inputs and two outputs, of f32 and contiguous: output k is filled
/// with input k's sum.
std::vector<std::string> run_array_program(const ArrayProgram& program, Engine& engine, std::span<const Device> devices,
                                           Coverage* coverage = nullptr, ArrayPush::Body own_op_on_gpu = nullptr);

}  // namespace sluice::testing
