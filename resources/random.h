// Random streams: they number the draws that a program makes, in the order in which it makes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/resources/philox.h"

namespace sluice {

/// A sequence of draws. Each push that needs random numbers takes the next draw number, at the push. A push that is
/// skipped later has used its number too. A stream holds only numbers, so it is cheap to make.
///
/// A stream is used by one pushing thread at a time; threads may take turns. Use by two at once throws
/// std::logic_error, because draw numbers would then depend on timing. It cannot be copied: two copies would give the
/// same numbers twice.
class RandomStream {
 public:
  /// The state that a checkpoint keeps. `draw` is the number that the next draw gets.
  using State = RandomKey;

  explicit RandomStream(std::uint64_t seed, std::uint64_t stream = 0) : RandomStream(State{seed, stream, 0}) {}
  /// Makes a stream that goes on where state() was taken.
  explicit RandomStream(const State& state) : state_(state) {}
  /// For a state that was made of the microbatch's number already: scopes of microbatch_draws.h change nothing.
  struct Undivided {};
  RandomStream(const State& state, Undivided) : state_(state), divided_(false) {}
  /// Neither stream may be in use.
  RandomStream(RandomStream&& other) : state_(other.state()), divided_(other.divided_) {}
  RandomStream& operator=(RandomStream&& other) {
    restore(other.state());
    divided_ = other.divided_;
    return *this;
  }

  /// Holds the stream for the calling thread until it is destroyed, so that draws made together stay together. The
  /// thread may draw meanwhile, and hold it again. Destroy it on the same thread, before the stream.
  class Hold {
   public:
    /// Throws std::logic_error where another thread holds the stream.
    explicit Hold(const RandomStream& stream);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    const RandomStream& stream_;
    bool outermost_;
  };

  /// The next draw's key; inside of a scope of microbatch_draws.h the next one of the microbatch. Throws
  /// std::logic_error where another thread uses the stream at this moment.
  RandomKey next();

  /// Another stream for (a, b), say an epoch and a sample. It depends only on this stream and the numbers, not on
  /// how many draws were made from either. Stream ids are 64 bits made by
  /// Philox: among a million derived streams two coincide with a chance of 3 in 10^8.
  RandomStream derive(std::uint64_t a, std::uint64_t b = 0) const;

  /// Throws std::logic_error where another thread uses the stream at this moment; so does restore.
  State state() const;
  void restore(const State& state);

 private:
  struct Microbatches {  ///< what it gave in a step that was divided
    std::uint64_t step;
    std::uint64_t first;               ///< the number of the stream's first draw
    std::vector<std::uint64_t> drawn;  ///< by each microbatch
  };
  Microbatches& microbatches(std::uint64_t step, std::size_t microbatch);

  State state_;
  bool divided_ = true;
  std::unique_ptr<Microbatches> microbatches_;        ///< the latest step; null before the first
  mutable std::atomic<const void*> holder_{nullptr};  // an address that only the holding thread has
};

/// The numbers 0 to n - 1 in an order that the key alone decides (Fisher and Yates's shuffle over uniform_int), the
/// same on every machine. Throws std::invalid_argument for n < 0.
std::vector<std::int64_t> permutation(const RandomKey& key, std::int64_t n);

}  // namespace sluice
