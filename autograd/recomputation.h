// Recomputation: what a checkpoint leaves on the tape. Internal to autograd/.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "sluice/autograd/array_function.h"
#include "sluice/ndarray/interpreter.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/resources/draw_notes.h"

namespace sluice::autograd {

class Node;

class Recomputation final : public RefCounted {
 public:
  Recomputation(const ArrayFunction& f, const NDArrays& xs, const std::source_location& where)
      : f_(f),
        xs_(xs.begin(), xs.end()),
        where_(where),
        scope_(current_scope()),
        interpreters_(detail::interpreters()) {}

  std::vector<NDArray> first();
  /// Gives the nodes what they have not kept. What it pushes runs when the gradients that have come to the last of them
  /// are there, one op after another: it does not depend on them, and would else run ahead of backward, whose memory
  /// it is to save.
  void again(const std::vector<NDArray>& gradients);

  /// The one that is at work on this thread; null: none.
  static Recomputation* current();
  /// While it lives, there is none.
  class None {
   public:
    None();
    ~None();
    None(const None&) = delete;
    None& operator=(const None&) = delete;

   private:
    Recomputation* outer_;
  };
  bool is_again() const { return again_; }
  /// For a push that is recorded: a new node of this one, or the node that it had the first time.
  Ref<Node> next_node();
  /// The place goes with the node.
  void forget(std::size_t index) noexcept;

 private:
  ArrayFunction f_;
  std::vector<NDArray> xs_;
  std::source_location where_;
  ScopeState scope_;
  std::vector<std::shared_ptr<Interpreter>> interpreters_;  ///< of the first call: the second has the same
  Rerun rerun_;
  DrawNotes draws_;
  std::mutex mutex_;
  std::vector<Node*> nodes_;  ///< null: gone
  std::size_t next_ = 0;
  bool again_ = false;
};

}  // namespace sluice::autograd
