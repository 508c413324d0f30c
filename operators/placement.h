// Placement rules: how the operands of a row may lie on a mesh (ndarray/layout.h), so that each place computes its part
// of the call by itself, from what it has.
//
// A rule is a field of the row. It gives each axis of each operand a letter:
//
//   op.place = [](Placing& p) {
//     p.letters("mk,kn->mn");        // matmul: rows and columns may be cut, alike in all operands that have them;
//     p.adds(ReduceOp::sum);        // so may k, which the result lacks: it is partial(sum) then;
//     p.linear(Linear::each);        // and a partial operand beside a replicated one gives a partial result
//   };
//
// An axis without a letter must be whole. Rows that are elementwise need no rule: axes that are equally long may be
// cut, those that are broadcast must be whole. A row with no rule takes replicated operands alone: each place then
// computes the same. The rule is asked for one axis of the mesh at a time; what it does not allow is refused at the
// call.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ndarray/layout.h"
#include "sluice/operators/registry.h"

namespace sluice {

/// Which operands may be partial(sum), so that the result is.
enum class Linear : std::uint8_t {
  no,
  together,  ///< all inputs at once: a + b, of two terms each
  each,      ///< one of them, where the others are replicated: a * b
  first,     ///< input 0, where the others are replicated: a / b
};

struct PlacedCall;

/// What a rule is made with.
class Placing {
 public:
  /// Of a call whose outputs' specs are there.
  explicit Placing(const Signature& call);

  int inputs() const { return call_.inputs(); }
  int outputs() const { return static_cast<int>(call_.outputs().size()); }
  const Dims& shape(int input) const { return call_.shape(input); }
  DType dtype(int input) const { return call_.dtype(input); }
  const Dims& output_shape(int output = 0) const { return call_.outputs()[static_cast<std::size_t>(output)].shape; }
  template <class A>
  const A& attributes() const {
    return call_.attributes<A>();
  }

  /// "mk,kn->mn": a lower-case letter for each axis, "_" for one that must be whole. "..." stands for all further axes:
  /// those of the operands that have it are the same, counted from the last. "a,b*->c": b is each further input. Inputs
  /// and outputs that the call does not have may be named.
  void letters(std::string_view notation);
  /// The same of one axis. Throws std::out_of_range for an input or output that the call does not have.
  void input(int i, int axis, char letter) { letter_of(in_, i, axis) = letter; }
  void output(int o, int axis, char letter) { letter_of(out_, o, axis) = letter; }
  /// The letter of an axis that is counted from the last: a capital.
  static char counted(const Dims& shape, int axis) { return static_cast<char>('A' + shape.rank() - 1 - axis); }
  /// Input i has the axes of output o, but those in which it is broadcast.
  void like_output(int i, int o = 0);
  /// All inputs have.
  void elementwise();
  /// A letter that an output lacks may be cut: its terms are combined so. It must be in all inputs then. With
  /// `needs_elements` no shard may be empty: a maximum of nothing is none.
  void adds(ReduceOp op, bool needs_elements = false) {
    reduces_ = true;
    op_ = op;
    needs_elements_ = needs_elements;
  }
  /// Input i may lack such a letter: it is a factor of each term, and no term itself.
  void factor(int i) { factors_ |= i < 32 ? 1U << i : 0; }
  /// Axes with this letter are multiples of the shortest of them, and are cut between the groups that belong to one
  /// element of it: heads of queries that share a head of keys.
  void groups(char letter) { groups_ = letter; }
  /// An axis with an element for each part of the axes with this letter: what is known of a part, which a gather brings
  /// together. Those axes are cut at r n / p then, or not at all.
  void input_parts(int i, int axis, char letter) { part_axes_.push_back({i, axis, letter}); }
  void output_parts(int o, int axis, char letter) { part_axes_.push_back({inputs() + o, axis, letter}); }
  /// All axes but one, which must be whole, of all operands: for rows that work along an axis. Ranks are equal.
  void along(int axis);
  void linear(Linear way) { linear_ = way; }
  /// No layout passes, not even a replicated one.
  void refuse(const char* why) { refusal_ = why; }
  /// The attributes of a place's call, where they are others than the whole call's: they name shapes, say. Where it
  /// throws std::invalid_argument the call is refused with that reason.
  using Local = Attributes (*)(const Attributes& whole, const PlacedCall& placed, int rank);
  void local(Local make) { local_ = make; }

 private:
  friend class PlacementRule;
  using Axes = std::array<char, kMaxRank>;
  /// Checked: compilers that do not see that a rank is at most kMaxRank take loops over axes for writes behind the end.
  static char& letter_of(std::vector<Axes>& list, int i, int axis) {
    return list.at(static_cast<std::size_t>(i)).at(static_cast<std::size_t>(axis));
  }
  void assign(std::vector<Axes>& list, std::size_t i, std::string_view axes, const Dims& shape);

  const Signature& call_;
  struct PartAxis {
    int operand;  ///< inputs first
    int axis;
    char letter;
  };
  std::vector<Axes> in_, out_;  ///< 0: whole
  std::vector<PartAxis> part_axes_;
  bool reduces_ = false, needs_elements_ = false;
  ReduceOp op_ = ReduceOp::sum;
  Linear linear_ = Linear::no;
  std::uint32_t factors_ = 0;
  char groups_ = 0;
  const char* refusal_ = "";
  Local local_ = nullptr;
};

/// A rule for elementwise rows that are linear.
template <Linear way>
void place_linear(Placing& p) {
  p.elementwise();
  p.linear(way);
}

/// What a row's rule says of a call.
struct PlacedCall {
  /// Empty if the rule allows it; else why not, and the reshard that helps where one does.
  std::string refusal;
  /// What the places' calls take: as given, or a replicated operand cut as the others are.
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
  Placing::Local local = nullptr;
};

/// Sizes in a place's attributes: `field` gets the extent of output 0.
template <class A, Dims A::*field>
Attributes local_extent(const Attributes& whole, const PlacedCall& placed, int rank) {
  A own = whole.get<A>();
  own.*field = placed.outputs[0].extent(rank);
  return own;
}

/// Asks the row's rule. `inputs` and `targets` lie on one mesh; `call` has the whole specs, its outputs' among them.
/// Where there are targets their layouts are the outputs', or the call is refused. Thread-safe.
PlacedCall place_call(const Operator& row, const Signature& call, std::span<const Layout> inputs,
                      std::span<const Layout> targets = {});

/// The rule in words, for pages, of a call whose outputs' specs are there: "ab,cb->ac; b: sum; one partial". A letter
/// for each axis that may be cut, "_" for one that must be whole, "#b" for one with an element for each part of b; then
/// what results along letters that an output lacks, which operands may be partial(sum), and which letter is cut in
/// groups. "elementwise" for such rows, "replicated" for those without a rule. Thread-safe.
std::string placement_in_words(const Operator& row, const Signature& call);

}  // namespace sluice
