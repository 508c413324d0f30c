#include "sluice/operators/placement.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace sluice {

using Kind = Placement::Kind;

Placing::Placing(const Signature& call)
    : call_(call), in_(static_cast<std::size_t>(call.inputs())), out_(call.outputs().size()) {}

void Placing::assign(std::vector<Axes>& list, std::size_t i, std::string_view axes, const Dims& shape) {
  if (i >= list.size()) return;
  const std::size_t dots = axes.find("...");
  const std::string_view before = axes.substr(0, std::min(dots, axes.size()));
  const std::string_view after = dots == axes.npos ? std::string_view() : axes.substr(dots + 3);
  const int named = static_cast<int>(before.size() + after.size());
  const auto set = [&](int axis, char letter) {
    if (axis >= 0 && axis < shape.rank()) list[i][static_cast<std::size_t>(axis)] = letter == '_' ? char(0) : letter;
  };
  for (std::size_t k = 0; k < before.size(); ++k) set(static_cast<int>(k), before[k]);
  const int first = shape.rank() - static_cast<int>(after.size());
  for (std::size_t k = 0; k < after.size(); ++k) set(first + static_cast<int>(k), after[k]);
  if (dots == axes.npos) return;
  // Further axes are capital letters, counted from the last of them.
  const int further = shape.rank() - named;
  for (int k = 0; k < further; ++k) {
    set(static_cast<int>(before.size()) + k, static_cast<char>('A' + (further - 1 - k)));
  }
}

void Placing::letters(std::string_view notation) {
  const std::size_t arrow = notation.find("->");
  if (arrow == notation.npos) throw UsageError("Placing::letters: no -> in \"" + std::string(notation) + "\"");
  const auto each = [](std::string_view list, auto&& f) {
    for (std::size_t i = 0;; ++i) {
      const std::size_t comma = list.find(',');
      f(i, list.substr(0, std::min(comma, list.size())));
      if (comma == list.npos) return;
      list = list.substr(comma + 1);
    }
  };
  each(notation.substr(0, arrow), [&](std::size_t i, std::string_view axes) {
    const bool further = axes.ends_with('*');
    if (further) axes.remove_suffix(1);
    for (std::size_t k = i; k < (further ? in_.size() : i + 1); ++k) {
      assign(in_, k, axes, k < in_.size() ? shape(static_cast<int>(k)) : Dims());
    }
  });
  each(notation.substr(arrow + 2), [&](std::size_t o, std::string_view axes) {
    assign(out_, o, axes, o < out_.size() ? output_shape(static_cast<int>(o)) : Dims());
  });
}

void Placing::like_output(int i, int o) {
  const Dims &from = shape(i), &to = output_shape(o);
  const int added = to.rank() - from.rank();
  for (int k = 0; k < to.rank(); ++k) {
    output(o, k, counted(to, k));
    if (k >= added && from[k - added] == to[k]) input(i, k - added, counted(to, k));
  }
}

void Placing::along(int axis) {
  const auto set = [axis](std::vector<Axes>& list, int i, const Dims& shape) {
    for (int k = 0; k < shape.rank(); ++k) letter_of(list, i, k) = k == axis ? char(0) : counted(shape, k);
  };
  for (int i = 0; i < inputs(); ++i) set(in_, i, shape(i));
  for (int o = 0; o < outputs(); ++o) set(out_, o, output_shape(o));
}

void Placing::elementwise() {
  for (int o = 0; o < outputs(); ++o) {
    for (int i = 0; i < inputs(); ++i) like_output(i, o);
    for (int k = 0; k < output_shape(o).rank(); ++k) output(o, k, counted(output_shape(o), k));
  }
}

/// One call under its row's rule.
class PlacementRule {
 public:
  PlacementRule(const Operator& row, const Signature& call, std::span<const Layout> inputs,
                std::span<const Layout> targets)
      : placing_(call), inputs_(inputs), targets_(targets), mesh_((inputs.empty() ? targets : inputs)[0].mesh()) {
    if (row.place) {
      row.place(placing_);
    } else if (row.elementwise) {
      placing_.elementwise();
    }
    name_part_axes(placing_);
    letter_.resize(static_cast<std::size_t>(mesh_.axes()));
    partial_.resize(letter_.size());
  }

  static std::string in_words(const Operator& row, const Signature& call);

  PlacedCall answer() {
    PlacedCall result;
    result.local = placing_.local_;
    result.refusal = placing_.refusal_;
    for (int m = 0; m < mesh_.axes() && result.refusal.empty(); ++m) result.refusal = on_axis(m);
    if (result.refusal.empty()) result.refusal = find_cuts();
    if (!result.refusal.empty()) return result;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      result.inputs.push_back(laid_out(i, placing_.in_[i], placing_.shape(static_cast<int>(i)), &inputs_[i]));
    }
    for (std::size_t o = 0; o < placing_.out_.size(); ++o) {
      const Dims& shape = placing_.output_shape(static_cast<int>(o));
      result.outputs.push_back(laid_out(inputs_.size() + o, placing_.out_[o], shape, nullptr));
      if (o < targets_.size() && !(result.outputs[o] == targets_[o])) {
        result.refusal = "the result is " + to_string(result.outputs[o]) + ", the target " + to_string(targets_[o]);
        return result;
      }
    }
    result.refusal = check_slices(result.inputs);
    return result;
  }

 private:
  static void name_part_axes(Placing& placing) {
    for (const Placing::PartAxis& part : placing.part_axes_) {
      const bool input = part.operand < placing.inputs();
      auto& list = input ? placing.in_ : placing.out_;
      Placing::letter_of(list, input ? part.operand : part.operand - placing.inputs(), part.axis) = part.letter;
    }
  }
  std::size_t operands() const { return inputs_.size() + targets_.size(); }
  const Layout& layout(std::size_t k) const { return k < inputs_.size() ? inputs_[k] : targets_[k - inputs_.size()]; }
  const Placing::Axes& axes(std::size_t k) const {
    return k < inputs_.size() ? placing_.in_[k] : placing_.out_[k - inputs_.size()];
  }
  /// Whether the axis of an operand (inputs, then outputs, which are also the targets) has an element for each part.
  bool of_parts(std::size_t k, int axis) const {
    return std::ranges::any_of(placing_.part_axes_, [&](const Placing::PartAxis& part) {
      return part.operand == static_cast<int>(k) && part.axis == axis;
    });
  }
  bool has_parts(char letter) const {
    return std::ranges::any_of(placing_.part_axes_, [&](const auto& part) { return part.letter == letter; });
  }
  static int find(const Placing::Axes& axes, char letter) {
    const auto at = std::find(axes.begin(), axes.end(), letter);
    return at == axes.end() ? -1 : static_cast<int>(at - axes.begin());
  }
  std::string name_of(std::size_t k) const {
    return k < inputs_.size() ? "operand " + std::to_string(k) : "target " + std::to_string(k - inputs_.size());
  }
  std::string hint(int m, const char* placement) const {
    return "reshard(x, {{\"" + mesh_.name(m) + "\", " + placement + "}})";
  }

  /// What the rule says of one axis of the mesh; sets letter_ and partial_ of it.
  std::string on_axis(int m) {
    char& letter = letter_[static_cast<std::size_t>(m)];
    std::optional<ReduceOp> partial;
    std::size_t partials = 0;
    for (std::size_t k = 0; k < operands(); ++k) {
      const Placement& p = layout(k).on(m);
      if (p.kind == Kind::partial && k < inputs_.size()) {
        if (partial && *partial != p.op) return name_of(k) + " is a partial result of another kind";
        partial = p.op;
        ++partials;
      }
      if (p.kind != Kind::shard) continue;
      const char own = axes(k)[static_cast<std::size_t>(p.axis)];
      if (own == 0) {
        return name_of(k) + " is cut along axis " + std::to_string(p.axis) + " over " + mesh_.name(m) +
               ", which must be whole: " + hint(m, "replicate");
      }
      if (letter != 0 && letter != own) {
        if (k >= inputs_.size()) return "the operands are cut along different axes over " + mesh_.name(m);
        const int axis = find(axes(k), letter);
        const std::string to = axis < 0 ? "replicate" : "shard(" + std::to_string(axis) + ")";
        return name_of(k) + " is cut along another axis over " + mesh_.name(m) + ": " + hint(m, to.c_str());
      }
      letter = own;
    }
    if (partial) return with_partials(m, *partial, partials);
    return letter == 0 ? std::string() : with_cut(m, letter);
  }

  std::string with_partials(int m, ReduceOp op, std::size_t partials) {
    const std::string add_first = "not added up yet over " + mesh_.name(m) + ": " + hint(m, "replicate");
    if (letter_[static_cast<std::size_t>(m)] != 0) return add_first;
    const bool first = inputs_[0].on(m).kind == Kind::partial;
    const bool every = partials == inputs_.size();
    bool passes = false;
    switch (placing_.linear_) {
      case Linear::together:
        passes = every;
        break;
      case Linear::each:
        passes = partials == 1;
        break;
      case Linear::first:
        passes = partials == 1 && first;
        break;
      case Linear::no:
        break;
    }
    if (!passes || op != ReduceOp::sum) return add_first;
    partial_[static_cast<std::size_t>(m)] = op;
    return {};
  }

  std::string with_cut(int m, char letter) {
    bool lacking = false;
    for (const Placing::Axes& out : placing_.out_) lacking = lacking || find(out, letter) < 0;
    if (lacking) {
      if (!placing_.reduces_)
        return "it needs the axis whole that is cut over " + mesh_.name(m) + ": " + hint(m, "replicate");
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        if (find(placing_.in_[i], letter) >= 0 || (i < 32 && (placing_.factors_ >> i & 1U) != 0)) continue;
        return name_of(i) + " would be added once for each place of " + mesh_.name(m) + ": add it to the sum";
      }
    }
    return {};
  }

  /// Where each letter that is cut is cut: by one operand that is cut on all axes of the mesh that cut the letter.
  std::string find_cuts() {
    for (const char letter : letter_) {
      if (letter == 0 || cuts_of(letter)) continue;
      std::optional<std::vector<std::int64_t>> cuts;
      for (std::size_t k = 0; k < operands(); ++k) {
        const int axis = find(axes(k), letter);
        if (axis < 0 || of_parts(k, axis)) continue;
        bool whole = true;
        for (int m = 0; m < mesh_.axes(); ++m) {
          if (letter_[static_cast<std::size_t>(m)] != letter) continue;
          whole = whole && layout(k).on(m).kind == Kind::shard;
        }
        if (!whole) continue;
        std::vector<std::int64_t> own = layout(k).cuts(axis);
        const std::int64_t n = group(letter, own.back());
        for (std::int64_t& cut : own) {
          if (cut % n != 0) {
            return name_of(k) + " is cut along axis " + std::to_string(axis) + " inside of a group of " +
                   std::to_string(n) + ": shard(" + std::to_string(axis) + ").by(" + std::to_string(n) + ")";
          }
          cut /= n;
        }
        if (cuts && *cuts != own) return "the operands are cut at different places";
        cuts = std::move(own);
      }
      if (!cuts) return "no operand is cut over all axes of the mesh over which the others are";
      if (std::string why = check_sizes(letter, *cuts); !why.empty()) return why;
      if (placing_.needs_elements_) {
        for (std::size_t i = 0; i + 1 < cuts->size(); ++i) {
          const bool lacking = std::any_of(placing_.out_.begin(), placing_.out_.end(),
                                           [&](const Placing::Axes& out) { return find(out, letter) < 0; });
          if (lacking && (*cuts)[i] == (*cuts)[i + 1]) return "a shard is empty, and nothing is the largest of nothing";
        }
      }
      found_.emplace_back(letter, std::move(*cuts));
    }
    return {};
  }
  const std::vector<std::int64_t>* cuts_of(char letter) const {
    for (const auto& [of, cuts] : found_) {
      if (of == letter) return &cuts;
    }
    return nullptr;
  }

  /// How many elements of an axis of this size belong to one of the shortest axis with this letter: 1 without groups.
  std::int64_t group(char letter, std::int64_t size) const {
    if (letter != placing_.groups_) return 1;
    std::int64_t shortest = size;
    for (std::size_t i = 0; i < placing_.in_.size(); ++i) {
      const int axis = find(placing_.in_[i], letter);
      if (axis >= 0) shortest = std::min(shortest, placing_.shape(static_cast<int>(i))[axis]);
    }
    return shortest > 0 && size % shortest == 0 ? size / shortest : 1;
  }

  /// A rule that gave one letter to axes of several sizes would have kernels reach beyond a shard.
  std::string check_sizes(char letter, const std::vector<std::int64_t>& cuts) const {
    const std::int64_t size = cuts.back(), parts = static_cast<std::int64_t>(cuts.size()) - 1;
    for (std::int64_t r = 0; has_parts(letter) && r < parts; ++r) {
      if (cuts[static_cast<std::size_t>(r)] != r * size / parts) return "an axis is not cut in equal parts";
    }
    for (std::size_t i = 0; i < placing_.in_.size() + placing_.out_.size(); ++i) {
      const bool input = i < placing_.in_.size();
      const std::size_t k = input ? i : i - placing_.in_.size();
      const int axis = find((input ? placing_.in_ : placing_.out_)[k], letter);
      const Dims& shape = input ? placing_.shape(static_cast<int>(k)) : placing_.output_shape(static_cast<int>(k));
      const bool of_part = of_parts(i, axis);
      if (of_part && shape[axis] != parts) {
        return "it is made for " + std::to_string(shape[axis]) + " parts of an axis, which has " +
               std::to_string(parts);
      }
      if (axis < 0 || of_part || (axis < shape.rank() && shape[axis] == size * group(letter, shape[axis]))) continue;
      return std::string("the row's rule is wrong: ") + letter + " is an axis of " + std::to_string(size) +
             " elements, and another in " + to_string(shape);
    }
    return {};
  }

  /// The layout of an operand with these letters. An input stays partial, and replicated where it has not the letter.
  Layout laid_out(std::size_t k, const Placing::Axes& letters, const Dims& shape, const Layout* input) const {
    std::vector<Placement> on;
    Layout::Cuts cuts;
    for (int m = 0; m < mesh_.axes(); ++m) {
      const char letter = letter_[static_cast<std::size_t>(m)];
      const auto& sum = partial_[static_cast<std::size_t>(m)];
      if (letter != 0) {
        const int axis = find(letters, letter);
        if (axis >= 0) {
          on.push_back(shard(axis));
          std::vector<std::int64_t>& own = cuts[static_cast<std::size_t>(axis)] = *cuts_of(letter);
          for (std::int64_t& cut : own) cut *= group(letter, shape[axis]);
          if (of_parts(k, axis)) std::iota(own.begin(), own.end(), 0);
        } else {
          on.push_back(input ? replicate : partial(placing_.op_));
        }
      } else if (sum) {
        on.push_back(input ? input->on(m) : partial(*sum));
      } else {
        on.push_back(replicate);
      }
    }
    return Layout(mesh_, shape, std::move(on), std::move(cuts));
  }

  /// What a place is to take of an operand must lie in what it has.
  std::string check_slices(std::span<const Layout> wanted) const {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == inputs_[i]) continue;
      for (int rank = 0; rank < mesh_.places(); ++rank) {
        const Dims begin = wanted[i].begin(rank), size = wanted[i].extent(rank);
        const Dims has = inputs_[i].begin(rank), there = inputs_[i].extent(rank);
        for (int axis = 0; axis < begin.rank(); ++axis) {
          if (size[axis] == 0) continue;
          if (begin[axis] < has[axis] || begin[axis] + size[axis] > has[axis] + there[axis]) {
            return name_of(i) + " is cut otherwise: it is " + to_string(inputs_[i]) + ", needed is " +
                   to_string(wanted[i]);
          }
        }
      }
    }
    return {};
  }

  Placing placing_;
  std::span<const Layout> inputs_, targets_;
  const Mesh mesh_;
  std::vector<char> letter_;                      ///< by axis of the mesh: the letter that it cuts
  std::vector<std::optional<ReduceOp>> partial_;  ///< by axis of the mesh: the result's, where operands are partial
  std::vector<std::pair<char, std::vector<std::int64_t>>> found_;
};

std::string PlacementRule::in_words(const Operator& row, const Signature& call) {
  if (!row.place) return row.elementwise ? "elementwise" : "replicated";
  Placing placing(call);
  row.place(placing);
  name_part_axes(placing);
  if (*placing.refusal_) return std::string("none: ") + placing.refusal_;
  const auto missing = [&](char letter) {
    return std::ranges::any_of(placing.out_, [&](const Placing::Axes& out) { return find(out, letter) < 0; });
  };
  std::string names;  // of letters: the first is called a
  std::string text;
  const auto add = [&](int operand, const Placing::Axes& axes, const Dims& shape) {
    if (shape.rank() == 0) text += "()";
    for (int k = 0; k < shape.rank(); ++k) {
      const char letter = axes[static_cast<std::size_t>(k)];
      const bool of_parts = std::ranges::any_of(
          placing.part_axes_, [&](const Placing::PartAxis& part) { return part.operand == operand && part.axis == k; });
      if (of_parts) text += '#';
      if (letter == 0 || (!placing.reduces_ && missing(letter))) {
        text += '_';
        continue;
      }
      if (names.find(letter) == names.npos) names += letter;
      text += static_cast<char>('a' + names.find(letter));
    }
  };
  for (int i = 0; i < placing.inputs(); ++i) {
    if (i > 0) text += ',';
    add(i, placing.in_[static_cast<std::size_t>(i)], placing.shape(i));
  }
  text += "->";
  for (int o = 0; o < placing.outputs(); ++o) {
    if (o > 0) text += ',';
    add(placing.inputs() + o, placing.out_[static_cast<std::size_t>(o)], placing.output_shape(o));
  }
  for (std::size_t k = 0; k < names.size(); ++k) {
    const auto name = std::string("; ") + static_cast<char>('a' + k);
    static constexpr const char* kinds[] = {"sum", "max", "min"};
    if (missing(names[k])) text += name + ": " + kinds[static_cast<int>(placing.op_)];
    if (names[k] == placing.groups_) text += name + " in groups";
  }
  switch (placing.linear_) {
    case Linear::no:
      return text;
    case Linear::together:
      return text + "; all partial";
    case Linear::each:
      return text + "; one partial";
    case Linear::first:
      return text + "; the first partial";
  }
  return text;
}

std::string placement_in_words(const Operator& row, const Signature& call) {
  return PlacementRule::in_words(row, call);
}

PlacedCall place_call(const Operator& row, const Signature& call, std::span<const Layout> inputs,
                      std::span<const Layout> targets) {
  return PlacementRule(row, call, inputs, targets).answer();
}

}  // namespace sluice
