// A grid while it runs on its stream's thread.
#pragma once

#include "double.h"

namespace cuda_double {

struct Grid {
  Grid(World& w, detail::Launch l, int d, std::vector<sluice::MemoryUse> u, const Caller& c)
      : world(w), launch(std::move(l)), device(d), uses(std::move(u)), caller(c) {}
  World& world;
  const detail::Launch launch;
  const int device;
  const std::vector<sluice::MemoryUse> uses;  ///< by addresses as the program has them
  const Caller caller;

  void run();
};

}  // namespace cuda_double
