// A row's placement rule (placement.h) in words, for pages.
#pragma once

#include <string>

#include "sluice/operators/registry.h"

namespace sluice {

/// The rule for a call whose outputs' specs are there: "ab,cb->ac; b: sum; one partial". A letter for each axis that
/// may be cut, "_" for one that must be whole, "#b" for one with an element for each part of b; then what results along
/// letters that an output lacks, which operands may be partial(sum), and which letter is cut in groups. "elementwise"
/// for such rows, "replicated" for those without a rule. Thread-safe.
std::string placement_in_words(const Operator& row, const Signature& call);

}  // namespace sluice
