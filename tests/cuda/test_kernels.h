// Bodies of ops of the tests' own, for GPUs: they issue.
#pragma once

#include "sluice/ndarray/push.h"

namespace sluice::testing {

/// Fills output k with input k's sum, for k = 0 and 1; f32, contiguous.
void fill_with_sums(ArrayContext& c);

// Mistakes, in bodies with one input and one output of f32.
void writes_behind_its_output(ArrayContext& c);
void writes_its_input(ArrayContext& c);
void copies_from_pageable_memory(ArrayContext& c);
void leaves_a_barrier_out(ArrayContext& c);
/// Multiplies the input, a square matrix, with itself.
void gives_a_wrong_leading_dimension(ArrayContext& c);

}  // namespace sluice::testing
