#include "sluice/schedule/sum_tree.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace sluice::parallel {
namespace {

void add_halves(SumTree& tree, int begin, int end) {
  if (end - begin == 1) return tree.postfix.push_back(begin);
  const int middle = begin + (end - begin + 1) / 2;
  add_halves(tree, begin, middle);
  add_halves(tree, middle, end);
  tree.postfix.push_back(SumTree::kAdd);
}

/// Reads "(a b ...)" or a number.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  SumTree tree() {
    sum(0);
    space();
    if (at_ != text_.size()) refuse("more after its end");
    return std::move(tree_);
  }

 private:
  static constexpr int kDeepest = 10'000;

  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw std::invalid_argument("the sum '" + std::string(text_) + "' has " + why + " at character " +
                                std::to_string(at_ + 1));
  }
  void sum(int depth) {
    space();
    if (depth > kDeepest) refuse("too many brackets");
    if (at_ < text_.size() && text_[at_] == '(') {
      ++at_;
      int terms = 0;
      for (space(); at_ < text_.size() && text_[at_] != ')'; space(), ++terms) {
        sum(depth + 1);
        if (terms > 0) tree_.postfix.push_back(SumTree::kAdd);
      }
      if (at_ == text_.size()) refuse("a bracket that is not closed");
      if (terms == 0) refuse("brackets with nothing in them");
      ++at_;
      return;
    }
    int number = 0;
    const char* const begin = text_.data() + at_;
    const auto read = std::from_chars(begin, text_.data() + text_.size(), number);
    if (read.ec != std::errc() || number < 0) refuse("neither a microbatch nor a bracket");
    at_ += static_cast<std::size_t>(read.ptr - begin);
    tree_.postfix.push_back(number);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  SumTree tree_;
};

}  // namespace

SumTree sum_in_order(int microbatches) {
  SumTree tree;
  for (int k = 0; k < microbatches; ++k) {
    tree.postfix.push_back(k);
    if (k > 0) tree.postfix.push_back(SumTree::kAdd);
  }
  return tree;
}

SumTree sum_by_halves(int microbatches) {
  SumTree tree;
  if (microbatches > 0) add_halves(tree, 0, microbatches);
  return tree;
}

SumTree sum_tree(std::string_view text) { return Reader(text).tree(); }

std::string to_text(const SumTree& tree) {
  struct Part {
    std::string text;
    bool sum;
  };
  std::vector<Part> stack;
  for (const int item : tree.postfix) {
    if (item != SumTree::kAdd) {
      stack.push_back({std::to_string(item), false});
      continue;
    }
    if (stack.size() < 2) return "(no tree)";
    const Part right = std::move(stack.back());
    stack.pop_back();
    Part& left = stack.back();
    // Brackets on the left can be left out, but are easier to read beside others.
    const bool joins = left.sum && !right.sum;
    if (joins) left.text.pop_back();
    left.text = (joins ? left.text : "(" + left.text) + " " + right.text + ")";
    left.sum = true;
  }
  return stack.size() == 1 ? stack.front().text : "(no tree)";
}

void check(const SumTree& tree, int microbatches, const char* item_name) {
  if (tree.empty()) return;
  const std::string name = item_name;
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("the sum " + to_text(tree) + " " + why);
  };
  std::vector<bool> seen(static_cast<std::size_t>(microbatches));
  int depth = 0;
  for (const int item : tree.postfix) {
    if (item == SumTree::kAdd) {
      if (--depth < 1) refuse("adds what is not there");
      continue;
    }
    ++depth;
    if (item < 0 || item >= microbatches) {
      refuse("counts " + name + " " + std::to_string(item) + " of " + std::to_string(microbatches));
    }
    if (seen[static_cast<std::size_t>(item)]) refuse("counts " + name + " " + std::to_string(item) + " twice");
    seen[static_cast<std::size_t>(item)] = true;
  }
  const auto missing = std::ranges::find(seen, false);
  if (missing != seen.end()) refuse("never counts " + name + " " + std::to_string(missing - seen.begin()));
  if (depth != 1) refuse("is " + std::to_string(depth) + " sums");
}

bool is_in_order(const SumTree& tree) {
  const int microbatches = static_cast<int>((tree.postfix.size() + 1) / 2);
  return tree.empty() || tree == sum_in_order(microbatches);
}

PartialSums::PartialSums(const SumTree& tree, int microbatches) {
  const SumTree written = tree.empty() ? sum_in_order(microbatches) : tree;
  const std::size_t items = written.postfix.size();
  parent_.assign(items, items);
  waits_.assign(items, -1);
  leaf_.resize(static_cast<std::size_t>(microbatches));
  std::vector<std::size_t> sums;
  for (std::size_t i = 0; i < items; ++i) {
    if (written.postfix[i] == SumTree::kAdd) {
      for (int operand = 0; operand < 2; ++operand, sums.pop_back()) parent_[sums.back()] = i;
    } else {
      leaf_[static_cast<std::size_t>(written.postfix[i])] = i;
    }
    sums.push_back(i);
  }
}

}  // namespace sluice::parallel
