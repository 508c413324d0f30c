// Sequences of tokens of several lengths as one array: padded, a row each, or packed, several in a row.
#pragma once

#include <cstdint>
#include <source_location>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

using Sequences = std::vector<std::vector<std::int64_t>>;

struct Padded {
  NDArray x;        ///< i64, (n, length): a sequence a row, and then `value`
  NDArray mask;     ///< bool, (n, length): true where x has a token of the sequence
  NDArray lengths;  ///< i64, (n,)
};

/// The length is that of the longest sequence, at least 1, rounded up to a multiple of `multiple`. Arrays of cpu(0).
/// Throws UsageError for a multiple below 1 or of more bytes than a number can count, and where there are no sequences.
Padded padded(const Sequences& sequences, std::int64_t value = 0, std::int64_t multiple = 1,
              std::source_location where = std::source_location::current());

struct Packed {
  NDArray x;         ///< i64, (rows, length): sequences behind one another, and then `value`
  NDArray segments;  ///< i64, likewise: 1, 2, ... for the sequences of a row, 0 behind them
  NDArray places;    ///< i64, likewise: the token's place in its sequence, from 0, for embeddings of places
};

/// As few rows as best fit in the given order makes: each sequence goes into the fullest row that has room for it, of
/// those the first. An empty sequence takes no room. A token may attend to those of its own segment: AttentionOptions'
/// mask is (segments.unsqueeze(1) == segments.unsqueeze(2)).unsqueeze(1), (rows, 1, length, length). By it padding,
/// which is segment 0, attends to padding: what comes out there means nothing, and a loss leaves it out by segments !=
/// 0. Arrays of cpu(0). Throws UsageError for a sequence longer than `length`, a length below 1 or of more bytes than a
/// number can count, and where no sequence has a token.
Packed packed(const Sequences& sequences, std::int64_t length, std::int64_t value = 0,
              std::source_location where = std::source_location::current());

}  // namespace sluice::nn
