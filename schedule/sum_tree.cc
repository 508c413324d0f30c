#include "sluice/schedule/sum_tree.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "sluice/schedule/excerpt.h"

namespace sluice::parallel {
namespace {

void add_halves(SumTree& tree, int begin, int end) {
  if (end - begin == 1) return tree.postfix.push_back(begin);
  const int middle = begin + (end - begin + 1) / 2;
  add_halves(tree, begin, middle);
  add_halves(tree, middle, end);
  tree.postfix.push_back(SumTree::kAdd);
}

constexpr std::size_t kQuoted = 40;  // so much of a sum stands in an error

[[noreturn]] void refuse(std::string_view text, const std::string& why, std::size_t at) {
  throw std::invalid_argument("the sum '" + excerpt(text, kQuoted) + "' has " + why + " at character " +
                              std::to_string(at + 1));
}

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

SumTree sum_tree(std::string_view text) {
  SumTree tree;
  std::vector<std::size_t> terms{0};  // read so far, in no brackets and in each that is open
  const auto count_term = [&] {
    if (++terms.back() > 1) tree.postfix.push_back(SumTree::kAdd);
  };
  for (std::size_t at = 0;;) {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
    const bool in_brackets = terms.size() > 1;
    if (!in_brackets && terms.back() == 1) {
      if (at != text.size()) refuse(text, "more after its end", at);
      return tree;
    }
    if (in_brackets && at == text.size()) refuse(text, "a bracket that is not closed", at);
    if (in_brackets && text[at] == ')') {
      if (terms.back() == 0) refuse(text, "brackets with nothing in them", at);
      terms.pop_back();
      count_term();
      ++at;
    } else if (at < text.size() && text[at] == '(') {
      terms.push_back(0);
      ++at;
    } else {
      int number = 0;
      const auto read = std::from_chars(text.data() + at, text.data() + text.size(), number);
      if (read.ec != std::errc() || number < 0) refuse(text, "neither a microbatch nor a bracket", at);
      at = static_cast<std::size_t>(read.ptr - text.data());
      tree.postfix.push_back(number);
      count_term();
    }
  }
}

std::string to_text(const SumTree& tree) {
  struct Number {
    int value;
    std::size_t opened = 0, closed = 0;  // brackets before it and behind it
  };
  struct Part {
    std::size_t first, last;  // of the numbers
    bool sum;
  };
  std::vector<Number> numbers;
  std::vector<Part> stack;
  for (const int item : tree.postfix) {
    if (item != SumTree::kAdd) {
      stack.push_back({numbers.size(), numbers.size(), false});
      numbers.push_back({item});
      continue;
    }
    if (stack.size() < 2) return "(no tree)";
    const Part right = stack.back();
    stack.pop_back();
    Part& left = stack.back();
    // Brackets on the left can be left out, but are easier to read beside others.
    if (left.sum && !right.sum) {
      --numbers[left.last].closed;
    } else {
      ++numbers[left.first].opened;
    }
    ++numbers[right.last].closed;
    left = {left.first, right.last, true};
  }
  if (stack.size() != 1) return "(no tree)";
  std::string text;
  for (const Number& number : numbers) {
    if (!text.empty()) text += ' ';
    text.append(number.opened, '(').append(std::to_string(number.value)).append(number.closed, ')');
  }
  return text;
}

std::string quoted(const SumTree& tree) { return excerpt(to_text(tree), kQuoted); }

void check(const SumTree& tree, int microbatches, const char* item_name) {
  if (tree.empty()) return;
  const std::string name = item_name;
  std::size_t numbers = 0;
  const auto refuse = [&](const std::string& why, bool at_number = false) {
    const std::string text = to_text(tree);
    const std::string place = ", as its number " + std::to_string(numbers) + " from the left";
    throw std::invalid_argument("the sum " + excerpt(text, kQuoted) + " " + why +
                                (at_number && text.size() > kQuoted ? place : ""));
  };
  std::vector<bool> seen(static_cast<std::size_t>(microbatches));
  int depth = 0;
  for (const int item : tree.postfix) {
    if (item == SumTree::kAdd) {
      if (--depth < 1) refuse("adds what is not there");
      continue;
    }
    ++depth;
    ++numbers;
    if (item < 0 || item >= microbatches) {
      refuse("counts " + name + " " + std::to_string(item) + " of " + std::to_string(microbatches), true);
    }
    if (seen[static_cast<std::size_t>(item)]) refuse("counts " + name + " " + std::to_string(item) + " twice", true);
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
