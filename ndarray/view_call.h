// ViewCall: a view of an array while it is made, as interpreters and owners see it (interpreter.h, owner.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// What all functions for views come down to.
enum class ViewKind : std::uint8_t {
  reshape,       ///< also squeeze, unsqueeze and flatten, and the axes that an index drops or adds
  permute,       ///< also transpose, swapaxes and movedim
  slice,         ///< narrow, flip, and what an index cuts
  broadcast_to,  //
  window,        ///< diagonal, unfold and strided: windows that only memory has
};

/// One axis of a slice: elements begin, begin + step, ...
struct Cut {
  std::int64_t begin = 0, step = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};

class ViewCall;
namespace detail {
/// True once the program has made an InterpreterScope or an array of an owner: from then on views may be calls, and
/// tell_view is called. Hidden, so that it is read by one instruction.
[[gnu::visibility("hidden")]] extern std::atomic<bool> views_are_told;
/// A view of `of` was made: of an owner's it becomes what the owner answers. `axes` and `cuts`: as ViewCall has them.
void tell_view(NDArray& view, const NDArray& of, ViewKind kind, const std::source_location& where,
               const Dims& axes = {}, std::span<const Cut> cuts = {});
/// A view of an array of an owner: asks the owner, and records the view for gradients. Defined in autograd/.
void make_owned_view(ViewCall& call);
/// Asks the owner of the input, which has one. Throws ArrayError where it does not answer.
void ask_for_view(ViewCall& call);
}  // namespace detail

/// It is valid while Interpreter::view or Owner::view runs, and used by the calling thread alone.
class ViewCall {
 public:
  ViewKind kind() const { return kind_; }
  /// "reshape".
  std::string_view name() const;
  const NDArray& input() const { return input_; }
  /// The result's.
  const Dims& shape() const { return shape_; }
  /// Of permute: axis i of the result is axis axes()[i] of the input.
  const Dims& axes() const { return axes_; }
  /// Of slice: for each axis of the input. The result's shape says how many elements there are.
  std::span<const Cut> cuts() const { return cuts_; }
  /// The line of the program, and the path of the layer that makes the view (engine/layer.h), or "".
  const std::source_location& where() const { return where_; }
  const char* layer() const;

  /// The same view of another array. It must have the input's shape; throws ArrayError otherwise, for a window, and
  /// what the view's function throws.
  NDArray of(const NDArray& x) const;
  /// For an owner: the result. Throws ArrayError for an array whose spec is not that of the view, and for one that is
  /// not an owner's.
  void answer(NDArray result);
  /// The view; for an owner what it answered, or an empty handle.
  const NDArray& result() const { return result_; }

 public:  // for views.cc and autograd/
  ViewCall(ViewKind kind, const NDArray& input, const Dims& shape, const Dims& axes, std::vector<Cut> cuts,
           const std::source_location& where)
      : kind_(kind), input_(input), shape_(shape), axes_(axes), cuts_(std::move(cuts)), where_(where) {}
  /// Keeps what the input was, and lets go of the input itself and of the result.
  void let_go() {
    input_ = NDArray(Ref<Array>(), input_.shape(), input_.strides(), input_.offset());
    result_ = {};
  }

 private:
  friend void detail::tell_view(NDArray& view, const NDArray& of, ViewKind kind, const std::source_location& where,
                                const Dims& axes, std::span<const Cut> cuts);
  friend void detail::make_owned_view(ViewCall& call);
  ViewKind kind_;
  NDArray input_;
  Dims shape_, axes_;
  std::vector<Cut> cuts_;
  std::source_location where_;
  NDArray result_;
};

}  // namespace sluice
