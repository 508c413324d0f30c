// GradientUndo: what leaves' gradients were before something that may throw halfway.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {
namespace autograd {
class Node;
}

/// While it lives, the leaves whose .grad() the thread changes for the first time are noted, with what they had. If it
/// is destroyed before forget(), they have that again. What was there is kept, not copied, until it is added to: then
/// the engine writes the sum elsewhere. Leaves that were made since then are not noted: their gradients are nobody's
/// but the maker's. For the thread that made it, and no other. Of two that nest the inner one goes first.
class GradientUndo {
 public:
  GradientUndo();
  ~GradientUndo();
  GradientUndo(const GradientUndo&) = delete;
  GradientUndo& operator=(const GradientUndo&) = delete;

  /// All gradients stay as they are.
  void forget() { notes_.clear(); }
  /// This leaf's does: it was stepped, and its gradient is used up.
  void forget(const NDArray& leaf);

  /// Somebody is about to write the gradient of x itself in place, if it is a leaf.
  static void note(const NDArray& x);
  /// The thread is about to change the leaf's gradient. Called without the leaf's mutex held. Internal to autograd/.
  static void changing(autograd::Node& leaf);

 private:
  struct Note {
    Ref<History> leaf;
    NDArray gradient;
  };
  std::vector<Note>::iterator find(const History* leaf);
  bool has(std::vector<Note>::iterator there, const History* leaf) const {
    return there != notes_.end() && there->leaf.get() == leaf;
  }

  std::vector<Note> notes_;  ///< ordered by leaf
  std::uint64_t begin_;      ///< the tape's next number when it began
  GradientUndo* outer_;
};

}  // namespace sluice
