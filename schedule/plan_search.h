// The search for the cut of a network into a schedule's stages: the part of the planner (planner.h) that it calls for
// each schedule and number of microbatches. Pure.
#pragma once

#include <vector>

#include "sluice/schedule/cut_problem.h"

namespace sluice::parallel {

CutFound search_cuts(const CutProblem& problem);

/// What it says of one cut.
CutFound time_cut(const CutProblem& problem, const std::vector<int>& first_layer, const std::vector<bool>& recompute);
CutParts parts_of(const CutProblem& problem, const std::vector<int>& first_layer);

}  // namespace sluice::parallel
