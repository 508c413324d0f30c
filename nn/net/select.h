// Which parameters of a net are meant: a pattern of paths, or a function.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/nn/net/parameter.h"

namespace sluice::nn {

/// A parameter, statistic or constant with the first of its paths in a net.
struct Named {
  std::string name;
  std::shared_ptr<State> state;
};

/// "*.bias|*norm*": '*' stands for any characters, '|' separates patterns. Or a function, such as nn::matrices.
struct Select {
  Select(const char* pattern) : Select(std::string(pattern)) {}  // NOLINT: {"*.bias", ...}
  Select(std::string pattern);                                   // NOLINT
  template <class F>
  requires std::is_invocable_r_v<bool, F, const Named&> Select(F function)  // NOLINT
      : text("a function"), match(std::move(function)) {}
  std::string text;
  std::function<bool(const Named&)> match;
};

/// Whether all of `text` fits the pattern.
bool matches_pattern(std::string_view pattern, std::string_view text);
/// True for parameters of two axes or more: weights, and neither biases nor norms.
inline bool matrices(const Named& parameter) { return parameter.state->shape.rank() >= 2; }

}  // namespace sluice::nn
