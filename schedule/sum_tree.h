// The tree by which the gradients of a weight are added, as data (docs/semantics.md, 22).
//
// Floating additions in another order give other bits. So the order is a part of the plan: whoever runs the same tree,
// on one device or on many, gets the same bits. Pure values: thread-safe, and nothing here blocks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::parallel {

/// A tree of additions over microbatches, in postfix form: a number >= 0 is a microbatch's gradient, kAdd adds the two
/// sums before it. Empty: all microbatches in index order, (((0 + 1) + 2) + 3).
struct SumTree {
  static constexpr int kAdd = -1;
  std::vector<int> postfix;

  bool empty() const { return postfix.empty(); }
  friend bool operator==(const SumTree&, const SumTree&) = default;
};

/// (((0 + 1) + 2) + ...), written out.
SumTree sum_in_order(int microbatches);
/// Halves: ((0 + 1) + (2 + 3)) + ...: what an all-reduce by halving does, and the smallest error.
SumTree sum_by_halves(int microbatches);

/// "((0 1) (2 3))": each pair of brackets adds what is in it from the left. Throws std::invalid_argument with one line
/// that says where a text is no tree, and quotes no more than its beginning. Brackets may be as deep as the text is
/// long. Both ways take time and memory in proportion to the text.
SumTree sum_tree(std::string_view text);
std::string to_text(const SumTree& tree);
/// to_text() for errors: of a long sum its beginning.
std::string quoted(const SumTree& tree);

/// Throws std::invalid_argument unless the tree adds each microbatch exactly once:
///     the sum (0 1 1 3) counts microbatch 1 twice
/// A long sum is named by its beginning, with which of its numbers is wrong. `item`: what it adds, where that is not
/// microbatches.
void check(const SumTree& tree, int microbatches, const char* item = "microbatch");

/// True for the tree that is used where none is given: all microbatches in index order.
bool is_in_order(const SumTree& tree);

/// The sums of a tree while its microbatches' gradients arrive, each addition made as soon as both of its operands are
/// there.
class PartialSums {
 public:
  /// The tree must pass check() for so many microbatches.
  PartialSums(const SumTree& tree, int microbatches);
  /// The microbatch's gradient arrives, once. A sum is known by one of the microbatches in it: at first by the only
  /// one. Calls join(to, from) for each addition that is possible now: the sum `from` is to be added to the sum `to`,
  /// and is part of it from then on. Returns how many sums wait for another now: where they arrive in the tree's own
  /// order, 1.
  template <class Join>
  int arrive(int microbatch, Join join) {
    ++held_;
    int sum = microbatch;
    for (std::size_t at = parent_[leaf_[index(microbatch)]]; at < parent_.size(); at = parent_[at]) {
      int& waits = waits_[at];
      if (waits < 0) {
        waits = sum;
        break;
      }
      join(waits, sum);
      sum = waits;
      --held_;
    }
    return held_;
  }
  int arrive(int microbatch) {
    return arrive(microbatch, [](int, int) {});
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  std::vector<std::size_t> parent_, leaf_;  // parent_: of each item of the postfix form
  std::vector<int> waits_;                  // for an addition: the sum that is its first operand to arrive, or -1
  int held_ = 0;
};

}  // namespace sluice::parallel
