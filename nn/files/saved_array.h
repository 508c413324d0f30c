// What an object gives to a file and takes from it; nn::save and nn::load (save.h) ask for it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

struct SavedArray {
  std::string name;
  NDArray value;
};

/// An object with arrays and counts, such as an Optimizer.
template <class T>
concept HasSavedArrays = requires(T& x, const T& y, const std::vector<SavedArray>& arrays,
                                  const std::map<std::string, std::int64_t>& counts) {
  { y.saved_arrays() } -> std::same_as<std::vector<SavedArray>>;
  /// What does not fit, a text for each. With `check_only`, or if something does not fit, nothing is changed.
  { x.load_arrays(arrays, true) } -> std::same_as<std::vector<std::string>>;
  { y.counts() } -> std::same_as<std::map<std::string, std::int64_t>>;
  x.set_counts(counts);
};

/// An object with a position, such as a Loader.
template <class T>
concept HasPosition = requires(T& x, const T& y, const std::map<std::string, std::int64_t>& position) {
  { y.position() } -> std::same_as<std::map<std::string, std::int64_t>>;
  x.set_position(position);
};

/// One of them that writes something itself, such as a Log: output() is a function that waits, on any thread, until
/// what was written up to the call of output() is on the disk. A file that has a position must not be ahead of it.
template <class T>
concept HasOutput = requires(const T& y) {
  { y.output() } -> std::same_as<std::function<void()>>;
};

}  // namespace sluice::nn
