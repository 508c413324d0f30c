// Modes: whether a stretch of a program trains or evaluates. A mode is a scope and no property of a net, so nets are
// const, none is left in the wrong mode, and one net serves two threads in two modes.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <unordered_map>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/nn/net/parameter.h"
#include "sluice/resources/random.h"

namespace sluice::nn {

/// While it lives, the calling thread trains: Dropout drops, BatchNorm uses the batch's statistics and updates the
/// running ones. It takes one draw of the stream, and everything that is drawn inside is keyed by that draw, the path
/// of the layer in the net, how often that layer was called before in this scope and microbatch, and the microbatch: so
/// masks depend neither on the order of parts, nor on a schedule. A checkpoint's second call sees the same mode and the
/// same masks.
///   for (...) { const nn::Training on(stream); cross_entropy(net(x), y).backward(); opt.step(); }
/// Scopes nest, and the innermost counts: a teacher evaluates inside of a student's training.
class Training : ScopeGuard {
 public:
  explicit Training(RandomStream& stream);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// The innermost one of the calling thread; null: none.
  static Training* current() noexcept;
  /// The key for a use of the layer at `path`, and counts it.
  RandomKey next_key(const std::string& path);

 private:
  Training* outer_;
  RandomKey key_;
  std::unordered_map<std::string, std::uint32_t> uses_;  ///< of "microbatch:path"
};

struct EvaluationOptions {
  bool gradients = false;  ///< record for gradients all the same, for adversarial examples and attributions
};
/// While it lives, the calling thread evaluates: Dropout does nothing, BatchNorm uses the running statistics, and
/// nothing is recorded for gradients.
class Evaluation : ScopeGuard {
 public:
  explicit Evaluation(EvaluationOptions options = {});
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  Training* outer_;
};

/// The number of the microbatch that the calling thread works on, for a loop over microbatches by hand. 0 without one.
class Microbatch {
 public:
  /// Throws UsageError for a negative number.
  explicit Microbatch(std::int64_t k);
  ~Microbatch();
  Microbatch(const Microbatch&) = delete;
  Microbatch& operator=(const Microbatch&) = delete;

 private:
  std::int64_t outer_;
};

/// For layers that differ between the modes: true in training. Where neither scope is in force it is false if nothing
/// is recorded (NoGrad), and throws UsageError if it is, since a forgotten mode would train something else in silence.
bool is_training(const char* layer, std::source_location where);

/// A stream for one use of the layer at this place in the present Training scope. Throws UsageError without one on this
/// thread, and for a place that no walk reached. When a checkpoint computes again, it gives the same numbers again.
RandomStream training_stream(const char* layer, const Place& place, std::source_location where);

}  // namespace sluice::nn
