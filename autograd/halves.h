// Backward in two halves: the gradients of a stage's inputs now, those of its weights later.
#pragma once

#include <cstddef>
#include <memory>
#include <source_location>
#include <vector>

#include "sluice/autograd/kept_memory.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice {

namespace autograd {
struct SecondHalf;
}
struct HalvesOptions;

/// What backward_inputs() has left: the second half. Movable, and not copied. It may be run on another thread than the
/// one that made it, and is used by one thread at a time.
class WeightGradients {
 public:
  WeightGradients() noexcept;
  /// Drops the work if run() was not called: nothing of it is ever pushed, no .grad() changes, nothing is poisoned, and
  /// what the tape kept for it is freed. The tape counts as used.
  ~WeightGradients();
  WeightGradients(WeightGradients&& other) noexcept;
  WeightGradients& operator=(WeightGradients&& other) noexcept;

  /// Pushes what is left: adds the gradients of all other leaves to their .grad(), as backward() would have. Frees the
  /// tape as it goes, unless `retain` was given. Pushes and returns; does not wait. Throws ArrayError if it was run
  /// before, or is empty, and what backward() throws; the work is then over too.
  void run(std::source_location where = std::source_location::current());
  /// True while run() has something to do: some leaf that is not an input gets a gradient.
  bool pending() const;
  /// Bytes of memory that wait for run() alone: values that the tape keeps, and gradients between operators. Memory
  /// that several of them show counts once; the values of the leaves themselves do not count, nor what a checkpoint
  /// holds that has not been computed again. 0 after run().
  std::size_t bytes() const;
  /// What bytes() counts, piece by piece, and with it the values of `inputs`.
  std::vector<KeptMemory> memory(const NDArrays& inputs,
                                 std::source_location where = std::source_location::current()) const;

 private:
  friend WeightGradients backward_inputs(const NDArrays&, const NDArrays&, const NDArrays&, const HalvesOptions&,
                                         std::source_location);
  std::unique_ptr<autograd::SecondHalf> half_;
};

struct HalvesOptions {
  bool retain = false;        ///< as for backward(): both halves leave the tape as it is
  bool create_graph = false;  ///< refused with ArrayError: gradients of gradients need the whole tape; use grad()
};

/// The first half of backward(roots, gradients): adds to the .grad() of `inputs` what backward() would have added. The
/// result's run() does the same for all other leaves, later. Both push what one backward() pushes, with the same bits
/// (zeros for what nothing used, and a copy behind a write in place, may be made in both): an operator's gradient rule
/// is asked in the first half for the inputs through which one of `inputs` is reached, and in the second for others, as
/// weights, and what leads to weights alone (w * 2). Each sum has its terms in the order that backward() has. Rules
/// for all gradients at once (Operator::joint_gradient: attention, batch_norm, lstm, gru, custom functions) run in the
/// first half, which hands their results on; a checkpoint is computed again in the half that comes to it first.
///
/// `inputs` are leaves (with_grad()), as the arrays that a stage of a pipeline was given; an array without history, as
/// the first stage's input, gets no gradient. If none of the roots depends on one of them, or if there is none, the
/// first half pushes nothing, and the second everything. What the program writes between the halves changes neither:
/// values are those of the tape, and `gradients` those of this call. Hooks are called once, in the half that computes
/// their array's gradient. The first half frees what the second does not use. Pushes and returns; does not wait. Errors
/// of operators in both halves name layer and line of the forward call. Throws ArrayError as backward(), and for an
/// input that is no leaf.
WeightGradients backward_inputs(const NDArrays& roots, const NDArrays& gradients, const NDArrays& inputs,
                                const HalvesOptions& options = {},
                                std::source_location where = std::source_location::current());

/// Bytes that the tape of these arrays keeps for backward: what waits between forward and the first half. It counts as
/// WeightGradients::bytes() does, and `inputs` with it, but no other leaves' values.
std::size_t kept_bytes(const NDArrays& roots, const NDArrays& inputs,
                       std::source_location where = std::source_location::current());
/// What kept_bytes() counts, piece by piece.
std::vector<KeptMemory> kept_memory(const NDArrays& roots, const NDArrays& inputs,
                                    std::source_location where = std::source_location::current());

}  // namespace sluice
