// shapes_of: what a function of arrays gives and needs, without running it.
//
//   const Shapes s = shapes_of([&] { return cross_entropy(net(zeros({64, 784})), zeros({64}, DType::i64)); });
//   std::cout << s;                             // a table by layer, and the sums
//   s.results[0].shape, s.parameters, s.kept_bytes, s.peak_bytes, s.flops
//
// The function is called once, on the calling thread, and everything in it means what it always does: shape rules,
// gradients, backward, checkpoints, steps of optimisers. But no operation runs, and arrays that it makes have no
// elements and take no memory.
//
// What it finds outside stays as it was: values, gradients and histories of arrays, random streams. Handles and numbers
// of the program that it assigns are its own business: arrays that it leaves in them are refused afterwards, with a
// line that says so. What asks for elements (item, to_vector, wait, borrow, printing) throws ArrayError in it, if the
// function made or wrote them. A tape that was recorded outside cannot be run backward inside. Ops of the program's own
// (push_op) are not called; raw pushes to an engine are made as ever.
#pragma once

#include <concepts>
#include <functional>
#include <iosfwd>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// What the calls of one layer do in all, backward and computing again included. Bytes are those of elements.
struct LayerShapes {
  std::string layer;            ///< its path (engine/layer.h); "" for calls outside of layers
  std::vector<Spec> outputs;    ///< of the last call that was made in it before a backward pass
  std::int64_t parameters = 0;  ///< elements of the arrays made by with_grad() that its calls read first
  std::size_t parameter_bytes = 0;
  std::size_t output_bytes = 0;   ///< of the arrays that its calls make
  std::size_t kept_bytes = 0;     ///< of what its part of the results' tape keeps for backward, each memory once
  std::size_t scratch_bytes = 0;  ///< the largest scratch memory of one call
  double flops = 0;               ///< operators/costs.h says how they are counted
  std::int64_t calls = 0;
};

struct Shapes {
  std::vector<Spec> results;
  std::vector<LayerShapes> layers;  ///< in the order of their first calls
  // The sums:
  std::int64_t parameters = 0;
  std::size_t parameter_bytes = 0;
  std::size_t kept_bytes = 0;  ///< what kept_memory(results, {}) says of a real run (autograd/halves.h)
  double flops = 0;
  /// The most bytes that what the function made takes at once, scratch included, if each operation runs before the next
  /// is pushed; several threads may hold more. Operands that kernels pack, and copies on write, are not counted.
  std::size_t peak_bytes = 0;
};

/// A table: a line for each layer with parameters or outputs, in the manner of Keras, and the sums.
std::string to_string(const Shapes& shapes);
std::ostream& operator<<(std::ostream& out, const Shapes& shapes);

namespace detail {
Shapes shapes_of(const std::function<std::vector<NDArray>()>& f, const std::source_location& where);
}  // namespace detail

/// Of f(), which gives an NDArray, a vector of them, or nothing. Throws what f() throws; then too everything is as it
/// was. Blocks for nothing. Another thread must not use the arrays that f() writes meanwhile.
template <class F>
Shapes shapes_of(F&& f, std::source_location where = std::source_location::current()) {
  using Result = std::invoke_result_t<F&>;
  static_assert(std::is_void_v<Result> || std::convertible_to<Result, NDArray> ||
                    std::convertible_to<Result, std::vector<NDArray>>,
                "the function gives an NDArray, a std::vector of them, or nothing");
  return detail::shapes_of(
      [&]() -> std::vector<NDArray> {
        if constexpr (std::is_void_v<Result>) {
          f();
          return {};
        } else if constexpr (std::convertible_to<Result, NDArray>) {
          return {f()};
        } else {
          return f();
        }
      },
      where);
}

namespace detail {
NDArray array_without_elements(const Spec& spec, const std::source_location& where);
}  // namespace detail

/// The table of f(x) for an x of this spec: what a network is made of, before there is data.
///   std::cout << summary(net, {{64, 784}, DType::f32, cpu(0)});
template <class F>
std::string summary(F&& f, const Spec& x, std::source_location where = std::source_location::current()) {
  return to_string(shapes_of([&] { return f(detail::array_without_elements(x, where)); }, where));
}

}  // namespace sluice
