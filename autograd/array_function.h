// ArrayFunction: a program's function of arrays, as vjp, jvp, checkpoint and others take it.
#pragma once

#include <concepts>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// Made by conversion from what can be called with one to four arrays, or with a vector of any number of them, and
/// returns an array or a vector of arrays:
///   [](const NDArray& x, const NDArray& y) { return x * y; }
///   [](const std::vector<NDArray>& xs) { return std::vector<NDArray>{xs[0] + xs[1], xs[2]}; }
/// A function of n arrays that gets another number throws ArrayError.
class ArrayFunction {
 public:
  using Results = std::vector<NDArray>;

  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, ArrayFunction>) ArrayFunction(F f) {  // NOLINT: made by conversion
    using A = const NDArray&;
    if constexpr (std::is_invocable_v<F&, A>) {
      arguments_ = 1;
      call_ = [f = std::move(f)](const Results& x) { return results(f(x[0])); };
    } else if constexpr (std::is_invocable_v<F&, A, A>) {
      arguments_ = 2;
      call_ = [f = std::move(f)](const Results& x) { return results(f(x[0], x[1])); };
    } else if constexpr (std::is_invocable_v<F&, A, A, A>) {
      arguments_ = 3;
      call_ = [f = std::move(f)](const Results& x) { return results(f(x[0], x[1], x[2])); };
    } else if constexpr (std::is_invocable_v<F&, A, A, A, A>) {
      arguments_ = 4;
      call_ = [f = std::move(f)](const Results& x) { return results(f(x[0], x[1], x[2], x[3])); };
    } else {
      call_ = [f = std::move(f)](const Results& x) { return results(f(x)); };
    }
  }

  /// Calls it; `caller` and `where` are for the error of a wrong number of arguments, or of a result that is empty.
  Results operator()(const Results& xs, const char* caller, std::source_location where) const {
    if (arguments_ >= 0 && static_cast<std::size_t>(arguments_) != xs.size()) {
      throw ArrayError(caller, where,
                       "a function of " + std::to_string(arguments_) + " arrays, and " + std::to_string(xs.size()) +
                           " arrays for it");
    }
    Results ys = call_(xs);
    for (const NDArray& y : ys) y.checked(caller, where);
    return ys;
  }

 private:
  static Results results(NDArray y) { return {std::move(y)}; }
  static Results results(Results ys) { return ys; }

  std::function<Results(const Results&)> call_;
  int arguments_ = -1;  ///< -1: any number
};

}  // namespace sluice
