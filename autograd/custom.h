// Functions whose gradient the program gives itself, and hooks, which see gradients on their way.
#pragma once

#include <functional>
#include <memory>
#include <source_location>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// What a custom function's forward leaves for its backward. It is used by these two only, while they run.
class Saved {
 public:
  /// Called by forward: keeps the present values of these arrays, after those that were kept before. They are freed as
  /// backward goes, like those of operators. Arrays that forward returns, and its inputs, keep their part in gradients
  /// of gradients; other arrays are constants there. Arrays that the callables capture stay as long as the tape.
  void keep(const NDArrays& arrays, std::source_location where = std::source_location::current());
  /// For backward: the i-th array kept, with the value that it had then. Throws ArrayError beyond the last.
  const NDArray& operator[](std::size_t i) const;
  std::size_t size() const { return arrays_.size(); }

 public:  // for autograd/
  std::vector<NDArray> arrays_;
};

struct CustomFunction {
  using Arrays = std::vector<NDArray>;
  /// The name in errors and traces; it must live as long as the program.
  const char* name = "custom";
  /// Computes the results from xs. It runs once, at the call and on its thread, in a NoGrad scope. It must not write to
  /// xs in place.
  std::function<Arrays(Saved& saved, const Arrays& xs)> forward;
  /// Gives the gradients with respect to xs, one each, from those with respect to the results (zeros for results that
  /// nothing used): of the shapes and dtypes of xs; an empty handle where there is none. It runs in backward(), on that
  /// thread. If the gradients are recorded themselves (create_graph), what it does with operators is differentiated.
  std::function<Arrays(const Saved& saved, const Arrays& gradients)> backward;
  /// Gradients of results that nothing used are zeros; else empty handles, so that backward need not pass them on.
  bool zeros = true;
};

/// Calls forward, and returns its results, with `backward` as their gradient. They are recorded if one of xs has a
/// history, outside of NoGrad scopes. The results are arrays of their own, also where forward returned one of xs.
/// Throws ArrayError for empty callables and handles, and at backward() for gradients that do not fit xs.
std::vector<NDArray> apply_custom(const CustomFunction& function, const NDArrays& xs,
                                  std::source_location where = std::source_location::current());

/// A hook that was added; copies are the same hook. Destroying it leaves the hook where it is.
class GradientHook {
 public:
  /// Takes the hook away; a second time does nothing. Not while a backward runs through the array on another thread.
  void remove();

 public:  // for autograd/
  std::shared_ptr<std::function<NDArray(const NDArray&)>> call_;
};

/// Whenever a backward() or grad() has summed up the gradient of x, f is called with it, on the thread that called
/// these, before the gradient goes on: to .grad(), to what grad() returns and to what made x. What f returns takes its
/// place; an empty handle leaves it. The hooks of an array are called in the order in which they were added, each with
/// what the one before gave. f is called once in a run, and not if no gradient reaches x. In a run whose gradients are
/// recorded (create_graph), operators in f are too; else f is in a NoGrad scope. It must not write to the gradient.
///
/// x must be recorded or a leaf: else ArrayError. x may show its array in another order or shape, as transpose() and
/// flip() do: f is given the gradient of all uses of that array, seen as x sees the array, and answers in x's shape. A
/// view of a part, or one that repeats elements, is refused with ArrayError. A hook belongs to the present value: when
/// the array is written in place by a recorded operator, gradients of the new value do not pass it. Hooks of a leaf
/// stay until they are removed.
GradientHook on_gradient(const NDArray& x, std::function<NDArray(const NDArray& gradient)> f,
                         std::source_location where = std::source_location::current());

}  // namespace sluice
