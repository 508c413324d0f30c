// Metrics: numbers that add up over batches, without waiting for any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>

#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

/// The weighted mean of what was added. Sums are f64 scalars on the values' device; adding pushes and returns, and
/// keeps no history for gradients. Used by one thread.
class Mean {
  using Where = std::source_location;

 public:
  Mean();
  /// A value of one element, of a floating or integer dtype or bool.
  void add(const NDArray& value, double weight = 1, Where where = Where::current());
  void add(double value, double weight = 1);
  /// Waits. NaN if nothing was added. Throws Error where a value is poisoned.
  double value(Where where = Where::current()) const;
  /// The mean up to the latest add() whose operation has run; empty before the first. Does not wait, never goes back.
  std::optional<double> latest() const;
  void reset();

 private:
  struct Latest;
  NDArray total_;
  double plain_ = 0;  ///< of plain numbers
  double weight_ = 0;
  std::int64_t adds_ = 0;
  std::shared_ptr<Latest> latest_;
};

/// The part of samples whose largest logit is that of their label.
class Accuracy {
  using Where = std::source_location;

 public:
  /// logits (..., classes) and labels (...), of an integer dtype.
  void add(const NDArray& logits, const NDArray& labels, Where where = Where::current());
  double value(Where where = Where::current()) const { return mean_.value(where); }
  std::optional<double> latest() const { return mean_.latest(); }
  void reset() { mean_.reset(); }

 private:
  Mean mean_;
};

/// The part of samples whose label is among the k largest logits.
class TopK {
  using Where = std::source_location;

 public:
  /// Throws UsageError for k < 1.
  explicit TopK(std::int64_t k);
  void add(const NDArray& logits, const NDArray& labels, Where where = Where::current());
  double value(Where where = Where::current()) const { return mean_.value(where); }
  std::optional<double> latest() const { return mean_.latest(); }
  void reset() { mean_.reset(); }

 private:
  std::int64_t k_;
  Mean mean_;
};

/// exp of the mean of cross-entropies; weights are numbers of tokens.
class Perplexity {
  using Where = std::source_location;

 public:
  void add(const NDArray& cross_entropy, double tokens = 1, Where where = Where::current()) {
    mean_.add(cross_entropy, tokens, where);
  }
  double value(Where where = Where::current()) const;
  std::optional<double> latest() const;
  void reset() { mean_.reset(); }

 private:
  Mean mean_;
};

}  // namespace sluice::nn
