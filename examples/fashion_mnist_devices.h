// The devices of examples/fashion_mnist.cc: logical devices of the CPU, or cards.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "fashion_mnist_arguments.h"
#include "sluice/sluice.h"

/// The machine's cards; none where the CPU is used.
struct Cards {
  int count = 0;
  int logical = 0;  ///< the devices that each is, as CudaOptions::logical; 0: as SLUICE_LOGICAL_GPUS says
};

/// Where there are fewer cards than stages each is several devices, unless SLUICE_LOGICAL_GPUS says how many.
inline Cards find_cards(const Arguments& a) {
  if (a.device != "cuda") return {};
  if (!sluice::cuda_unavailable().empty()) throw std::runtime_error("no CUDA device: " + sluice::cuda_unavailable());
  Cards cards{.count = sluice::cuda_devices({.logical = 1})()->devices()};
  const char* const asked = std::getenv("SLUICE_LOGICAL_GPUS");
  if (!asked || !*asked) cards.logical = (a.stages + cards.count - 1) / cards.count;
  return cards;
}

inline sluice::EngineOptions engine_options(const Arguments& a, const Cards& cards) {
  sluice::EngineOptions options;
  if (cards.count > 0) {
    options.providers = {sluice::cuda_devices({.logical = cards.logical})};
  } else {
    options.logical_cpus = a.stages;
  }
  return options;
}

inline void check_devices(const Arguments& a, const sluice::Engine& engine) {
  const int there = engine.device_count(device(a, 0).kind);
  if (there >= a.stages) return;
  throw BadInput("--stages " + std::to_string(a.stages) + ": " + std::to_string(a.stages) +
                 " devices are wanted, and SLUICE_LOGICAL_GPUS makes " + std::to_string(there));
}
