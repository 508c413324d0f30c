// MicrobatchDraws: random numbers of a step in microbatches, whatever the order in which the microbatches are pushed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

/// A step's division of random streams. While a Scope of a microbatch lives, each stream that the thread draws from
/// gives the numbers of that microbatch, in the order in which it draws them. So a mask depends on the microbatch and
/// on the model's order of layers, and neither on the schedule nor on where the model is cut into stages. A Pipeline
/// does this by itself; a loop over microbatches that is to have its bits writes
///
///   const MicrobatchDraws draws;  // one for each step
///   for (int k = 0; k < m; ++k) {
///     const MicrobatchDraws::Scope microbatch(draws, k);
///     loss(model(x[k]), y[k]).backward();
///   }
///
/// Microbatch 0 has the stream's own numbers; so a step in one microbatch is a step without a division. Microbatch k
/// has those of a stream derived from k and the number of the stream's first draw in the step. Each draw counts in the
/// stream too, so the next step has other numbers, and a stream's state() between steps is all that a checkpoint
/// needs. What is drawn outside of scopes has the stream's own numbers as well: draw it before the step or after it,
/// or microbatch 0 may get the same.
class MicrobatchDraws {
 public:
  MicrobatchDraws();
  MicrobatchDraws(const MicrobatchDraws&) = delete;
  MicrobatchDraws& operator=(const MicrobatchDraws&) = delete;

  /// Of the calling thread; the innermost counts. A microbatch may have several, one after another.
  class Scope {
   public:
    /// Throws std::invalid_argument for a negative number. `step` must outlive the scope.
    Scope(const MicrobatchDraws& step, std::int64_t microbatch);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class RandomStream;
    const Scope* outer_;
    std::uint64_t step_;
    std::size_t microbatch_;
  };

 private:
  std::uint64_t number_;  ///< in the process; a stream keeps it, and an address may be another step's later
};

}  // namespace sluice
