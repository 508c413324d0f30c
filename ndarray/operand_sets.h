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

/// The outputs of a push that its body also reads. The default is none of them. Plain data, of two words.
class Updates {
 public:
  constexpr Updates() = default;
  static constexpr Updates all() { return {nullptr, 0, std::numeric_limits<std::uint32_t>::max()}; }
  static constexpr Updates only(std::uint32_t output) { return {nullptr, output, output + 1}; }
  /// Those in a list, which is not copied: it lives until the push is over.
  static constexpr Updates listed(std::span<const std::uint32_t> outputs) {
    return {outputs.data(), 0, static_cast<std::uint32_t>(outputs.size())};
  }
  constexpr bool contains(std::size_t output) const {
    if (listed_) return std::find(listed_, listed_ + end_, output) != listed_ + end_;
    return output >= begin_ && output < end_;
  }
  constexpr bool any() const { return begin_ != end_; }

 private:
  constexpr Updates(const std::uint32_t* listed, std::uint32_t begin, std::uint32_t end)
      : listed_(listed), begin_(begin), end_(end) {}

  const std::uint32_t* listed_ = nullptr;  ///< `end_` numbers of outputs; null: those from begin_ to end_
  std::uint32_t begin_ = 0, end_ = 0;
};

}  // namespace sluice
