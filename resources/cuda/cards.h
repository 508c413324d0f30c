// How many cards the machine has, without CUDA: a program that uses none does not load CUDA to learn that.
#pragma once

#include <string>

namespace sluice::cuda {

/// Where to look. Tests give other places.
struct CardSources {
  std::string driver = "/proc/driver/nvidia";  ///< the driver's own files
  std::string devices = "/dev";                ///< where a card is /dev/nvidia0, by its minor number
  std::string library = "libcuda.so.1";        ///< the driver's library, asked where the files do not tell
  const char* visible = nullptr;               ///< CUDA_VISIBLE_DEVICES; null: not set
};

struct CardCount {
  int cards = 0;
  bool asked = false;  ///< the driver's library was asked: CUDA is initialised in this process
};

/// The cards that CUDA will count, as far as that can be told without it: those whose files the driver has and whose
/// device this process may open, of which CUDA_VISIBLE_DEVICES leaves the first so many. Where these do not tell (no
/// such files, as under WSL; a card in parts (MIG); cards named by their UUID) the driver's library is asked, which
/// initialises CUDA but makes no context. A card may still turn out to be one that CUDA cannot use.
CardCount count_cards(const CardSources& from);

}  // namespace sluice::cuda
