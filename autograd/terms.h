// Terms: the gradients that the uses of one array have brought. Internal to autograd/.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <vector>

#include "sluice/autograd/node.h"

namespace sluice::autograd {

/// Adds a gradient to those that have come from younger uses of an array. However often it was used, few of them wait:
/// what has come becomes one.
void add_term(std::vector<NDArray>& youngest_first, NDArray gradient, const std::source_location& where);
/// Their sum, which follows the program.
NDArray total(std::vector<NDArray>& youngest_first, const std::source_location& where);

/// Windows of one array that share no element, and have each of theirs once but for broadcast axes.
class Windows {
 public:
  /// Takes the window if it is sure to be such a one; else it says false.
  bool take(const Window& window);

 private:
  struct Range {
    std::int64_t first, last;
  };
  using Box = std::vector<Range>;  ///< what a window reaches of each axis of the array
  static Range reach(const Window& window);
  static bool is_one_piece(const Window& window);
  /// False where the window's axes are not parts of different axes of the array.
  static bool find_box(const Window& window, Box& box);
  /// Makes one box of two that lie beside each other on one axis and are alike on all others.
  static bool join(Box& box, const Box& other);

  std::vector<Range> ranges_;  ///< from the first to the last element that windows reach, in order; joined
  std::vector<Box> boxes_;     ///< of all windows, while they are few
  bool has_boxes_ = true;
};

/// The same sum, of terms that may be gradients of windows. Of those that follow each other and share no element the
/// first is put into an array of zeros, and the others are added there, each where it belongs, in place of whole arrays
/// to the whole: a loop that uses each row of an array once takes a time in its backward pass that grows with the
/// number of rows, not with its square. The bits are those of adding the terms one after another (gradients.h).
class Terms {
 public:
  bool empty() const { return !open_ && list_.empty(); }
  void add(NDArray gradient, const std::source_location& where);
  /// The gradient of what the window shows.
  void add(const NDArray& gradient, const Window& window, const std::source_location& where);
  /// Leaves nothing.
  NDArray take_total(const std::source_location& where);
  /// Gradients of the whole array, from the youngest use to the oldest; no windows are added to them any more.
  std::vector<NDArray>& list() {
    close();
    return list_;
  }

 private:
  /// The oldest term so far, as long as others may be put beside it.
  struct Open {
    NDArray array;
    Windows taken;
    bool several = false;
  };
  void close();
  void count(const std::source_location& where);

  std::vector<NDArray> list_;
  std::unique_ptr<Open> open_;
  int count_ = 0;  ///< of terms, as add_term() counts them
};

}  // namespace sluice::autograd
