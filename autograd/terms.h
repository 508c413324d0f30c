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

  std::vector<Range> ranges_;  ///< from the first to the last element that windows reach, in order; joined
  std::vector<Box> boxes_;     ///< of all windows, while they are few
  bool has_boxes_ = true;
};

/// The same sum, of terms that may be gradients of windows. Those that follow each other and share no element are put
/// into one array of zeros, each where it belongs, and cost what they are: a loop over the rows of an array takes a
/// time in its backward pass that grows with their number, not with its square. The bits are those of adding the terms
/// one after another (gradients.h).
class Terms {
 public:
  bool empty() const { return !open_ && list_.empty(); }
  void add(NDArray gradient, const std::source_location& where);
  /// The gradient of what the window shows.
  void add(NDArray gradient, std::unique_ptr<Window> window, const std::source_location& where);
  /// Leaves nothing.
  NDArray take_total(const std::source_location& where);
  /// Gradients of the whole array, from the youngest use to the oldest, for terms that none of windows is among.
  std::vector<NDArray>& list() { return list_; }

 private:
  /// The oldest term so far, as long as others may be put beside it.
  struct Open {
    NDArray array;                   ///< of the whole array; or of the only window, in the place below
    std::unique_ptr<Window> window;  ///< null: `array` is the whole
    Windows taken;
  };
  void put(const NDArray& gradient, const Window& window, const std::source_location& where);
  void close(const std::source_location& where);
  void count(const std::source_location& where);

  std::vector<NDArray> list_;
  std::unique_ptr<Open> open_;
  int count_ = 0;  ///< of terms, as add_term() counts them
};

}  // namespace sluice::autograd
