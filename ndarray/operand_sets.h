// Which operands of a call a row or a push speaks of: the values that a gradient uses, and the outputs that a body also
// reads. Both take any number of operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sluice {

/// The values of a call that the gradient of one input uses, and that are kept for it. Made by the functions of `needs`
/// below, and joined by |: needs::input(1) | needs::output(). The default is none.
class Needs {
 public:
  enum class Kind : std::uint8_t { input, output, own_input, every_input, every_output };
  struct Value {
    Kind kind;
    std::size_t index = 0;
  };

  Needs() = default;
  explicit Needs(Value value) : values_{value} {}
  std::span<const Value> values() const { return values_; }
  friend Needs operator|(Needs a, const Needs& b) {
    a.values_.insert(a.values_.end(), b.values_.begin(), b.values_.end());
    return a;
  }

 private:
  std::vector<Value> values_;
};

namespace needs {
/// Input i, or output i, of the call. A call that has no such operand keeps nothing for it.
inline Needs input(std::size_t i) { return Needs({Needs::Kind::input, i}); }
inline Needs output(std::size_t i = 0) { return Needs({Needs::Kind::output, i}); }
/// The input whose gradient it is.
inline Needs own_input() { return Needs({Needs::Kind::own_input}); }
inline Needs every_input() { return Needs({Needs::Kind::every_input}); }
inline Needs every_output() { return Needs({Needs::Kind::every_output}); }
}  // namespace needs

/// The outputs of a push that its body also reads. The default is none of them.
class Updates {
 public:
  constexpr Updates() = default;
  static constexpr Updates all() { return {0, std::numeric_limits<std::size_t>::max()}; }
  static constexpr Updates only(std::size_t output) { return {output, output + 1}; }
  /// Those in a list, which is not copied: it lives until the push is over.
  static constexpr Updates listed(std::span<const std::size_t> outputs) {
    Updates made;
    made.listed_ = outputs;
    return made;
  }
  constexpr bool contains(std::size_t output) const {
    if (output >= begin_ && output < end_) return true;
    return !listed_.empty() && std::find(listed_.begin(), listed_.end(), output) != listed_.end();
  }
  constexpr bool any() const { return begin_ != end_ || !listed_.empty(); }

 private:
  constexpr Updates(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}

  std::size_t begin_ = 0, end_ = 0;
  std::span<const std::size_t> listed_;
};

}  // namespace sluice
