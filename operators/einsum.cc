// einsum: its text, and the products that it is made of.
#include <algorithm>
#include <string>
#include <vector>

#include "sluice/ndarray/owner.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

/// A name of an axis: a letter, or kEllipsis + i for the i-th axis of "..." counted from the last.
using Label = int;
using Labels = std::vector<Label>;
constexpr Label kEllipsis = 1000;

bool has(const Labels& labels, Label label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }
int place(const Labels& labels, Label label) {
  return static_cast<int>(std::find(labels.begin(), labels.end(), label) - labels.begin());
}

/// An operand, or a product of some, with the names of its axes.
struct Term {
  NDArray x;
  Labels labels;
};

class Einsum {
 public:
  Einsum(const builtin::Composition& made, std::string_view subscripts, const NDArrays& operands) : made_(made) {
    for (const char c : subscripts) {
      if (c != ' ') text_ += c;
    }
    const std::size_t arrow = text_.find("->");
    const std::string inputs = text_.substr(0, arrow);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::size_t end = inputs.find(',', begin);
      if (i > 0 && begin == 0) refuse("fewer operands are named than given");
      terms_.push_back({operands[i], labels_of(inputs.substr(begin, end - begin), operands[i].rank())});
      begin = end == std::string::npos ? 0 : end + 1;
    }
    if (begin != 0) refuse("more operands are named than given");
    if (arrow == std::string::npos) {
      name_result();
    } else {
      result_ = labels_of(text_.substr(arrow + 2), -1);
    }
    for (Term& term : terms_) take_diagonals(term);
    check_sizes();
  }

  NDArray value() {
    Term product = terms_[0];
    for (std::size_t i = 1; i <= terms_.size(); ++i) {
      sum_what_ends_here(product, i);
      if (i == terms_.size()) break;
      sum_what_ends_here(terms_[i], i, &product);
      product = multiply(product, terms_[i], i + 1);
    }
    return in_order(product, result_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { made_.fail("\"" + text_ + "\": " + why); }

  /// The axes of one operand; a rank of -1: of the result, whose "..." are all such axes.
  Labels labels_of(const std::string& text, int rank) {
    Labels labels;
    const std::size_t dots = text.find("...");
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i == dots) {
        const int n = rank < 0 ? most_dots_ : rank - static_cast<int>(text.size() - 3);
        if (n < 0) refuse("an operand has " + std::to_string(rank) + " axes");
        for (int k = n - 1; k >= 0; --k) labels.push_back(kEllipsis + k);
        if (rank >= 0) most_dots_ = std::max(most_dots_, n);
        i += 2;
        continue;
      }
      const char c = text[i];
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) refuse("letters name axes");
      if (rank < 0 && has(labels, c)) refuse("the result names an axis twice");
      labels.push_back(c);
    }
    if (rank >= 0 && labels.size() != static_cast<std::size_t>(rank)) {
      refuse("an operand has " + std::to_string(rank) + " axes");
    }
    if (rank < 0) {
      for (const Label label : labels) {
        if (std::none_of(terms_.begin(), terms_.end(), [&](const Term& t) { return has(t.labels, label); }))
          refuse("the result names an axis that no operand has");
      }
    }
    return labels;
  }

  void name_result() {
    for (int k = most_dots_ - 1; k >= 0; --k) result_.push_back(kEllipsis + k);
    for (Label c = 'A'; c <= 'z'; ++c) {
      std::int64_t uses = 0;
      for (const Term& t : terms_) uses += std::count(t.labels.begin(), t.labels.end(), c);
      if (uses == 1) result_.push_back(c);
    }
  }

  /// Axes of one name become one, along the diagonal.
  void take_diagonals(Term& term) const {
    for (std::size_t i = 0; i < term.labels.size(); ++i) {
      for (std::size_t j = i + 1; j < term.labels.size();) {
        if (term.labels[i] != term.labels[j]) {
          ++j;
          continue;
        }
        Dims shape, strides;
        for (int axis = 0; axis < term.x.rank(); ++axis) {
          if (axis == static_cast<int>(j)) continue;
          shape.push_back(term.x.shape()[axis]);
          strides.push_back(term.x.strides()[axis] +
                            (axis == static_cast<int>(i) ? term.x.strides()[static_cast<int>(j)] : 0));
        }
        if (shape[static_cast<int>(i)] != term.x.shape()[static_cast<int>(j)])
          refuse("a diagonal of a matrix that is not square");
        term.x = term.x.strided(shape, strides, term.x.offset());
        term.labels.erase(term.labels.begin() + static_cast<std::ptrdiff_t>(j));
      }
    }
  }

  std::int64_t size_of_axis(Label label) const {
    std::int64_t size = 1;
    for (const Term& t : terms_) {
      if (has(t.labels, label) && t.x.shape()[place(t.labels, label)] != 1) size = t.x.shape()[place(t.labels, label)];
    }
    return size;
  }
  void check_sizes() {
    for (Term& t : terms_) {
      for (std::size_t i = 0; i < t.labels.size(); ++i) {
        const std::int64_t n = t.x.shape()[static_cast<int>(i)], wanted = size_of_axis(t.labels[i]);
        if (n != 1 && n != wanted) {
          refuse("sizes " + std::to_string(n) + " and " + std::to_string(wanted) + " of one axis");
        }
      }
    }
    // An axis of size 1 that is longer elsewhere broadcasts: as if it were not named here.
    for (Term& t : terms_) {
      for (std::size_t i = t.labels.size(); i-- > 0;) {
        if (t.x.shape()[static_cast<int>(i)] == 1 && size_of_axis(t.labels[i]) != 1) {
          t.x = t.x.squeeze(static_cast<int>(i));
          t.labels.erase(t.labels.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
  }

  /// True if the result or an operand from `from` on has the axis.
  bool needed(Label label, std::size_t from) const {
    if (has(result_, label)) return true;
    for (std::size_t i = from; i < terms_.size(); ++i) {
      if (has(terms_[i].labels, label)) return true;
    }
    return false;
  }

  /// Sums over the axes that neither the result, nor `other`, nor operands behind this one have.
  void sum_what_ends_here(Term& term, std::size_t at, const Term* other = nullptr) const {
    Dims axes;
    Labels left;
    for (std::size_t i = 0; i < term.labels.size(); ++i) {
      const Label label = term.labels[i];
      if (needed(label, other ? at + 1 : at) || (other && has(other->labels, label))) {
        left.push_back(label);
      } else {
        axes.push_back(static_cast<std::int64_t>(i));
      }
    }
    if (axes.empty()) return;
    term.x = sum(term.x, axes);
    term.labels = left;
  }

  /// The axes of the term in this order; those that it lacks are left out.
  static NDArray in_order(const Term& term, const Labels& order) {
    Dims axes;
    for (const Label label : order) {
      if (has(term.labels, label)) axes.push_back(place(term.labels, label));
    }
    bool same = true;
    for (int i = 0; i < axes.rank(); ++i) same = same && axes[i] == i;
    return same ? term.x : term.x.permute(axes);
  }

  Term multiply(const Term& a, const Term& b, std::size_t next) const {
    Labels batch, left, right, inner;
    for (const Label label : a.labels) {
      (!has(b.labels, label) ? left : needed(label, next) ? batch : inner).push_back(label);
    }
    for (const Label label : b.labels) {
      if (!has(a.labels, label)) right.push_back(label);
    }
    Term product;
    for (const Labels* part : {&batch, &left, &right}) {
      product.labels.insert(product.labels.end(), part->begin(), part->end());
    }
    if (inner.empty()) {  // nothing is summed
      product.x = widened(a, product.labels) * widened(b, product.labels);
      return product;
    }
    Dims shape;
    const auto matrices = [&](const Term& t, const Labels& rows, const Labels& columns) {
      Labels order = batch;
      order.insert(order.end(), rows.begin(), rows.end());
      order.insert(order.end(), columns.begin(), columns.end());
      return in_order(t, order).reshape({sizes(t, batch), sizes(t, rows), sizes(t, columns)});
    };
    for (const Label label : batch) shape.push_back(a.x.shape()[place(a.labels, label)]);
    for (const Label label : left) shape.push_back(a.x.shape()[place(a.labels, label)]);
    for (const Label label : right) shape.push_back(b.x.shape()[place(b.labels, label)]);
    NDArray x = matrices(a, left, inner), y = matrices(b, inner, right);
    product.x = (batch.empty() ? matmul(x.squeeze(0), y.squeeze(0)) : matmul(x, y)).reshape(shape);
    return product;
  }
  static std::int64_t sizes(const Term& t, const Labels& labels) {
    std::int64_t n = 1;
    for (const Label label : labels) n *= t.x.shape()[place(t.labels, label)];
    return n;
  }
  /// With an axis of size 1 for each name that it lacks.
  static NDArray widened(const Term& t, const Labels& labels) {
    NDArray x = in_order(t, labels);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (!has(t.labels, labels[i])) x = x.unsqueeze(static_cast<int>(i));
    }
    return x;
  }

  const builtin::Composition& made_;
  std::string text_;
  std::vector<Term> terms_;
  Labels result_;
  int most_dots_ = 0;
};

}  // namespace

NDArray einsum(std::string_view subscripts, const NDArrays& operands, std::source_location where) {
  if (operands.empty()) throw ArrayError("einsum", where, "no operands");
  const builtin::Composition made("einsum", {operands[0], where});
  for (const NDArray& x : operands) x.checked("einsum", made.where());
  const NDArray y = Einsum(made, subscripts, operands).value();
  // Axes that only change places, and diagonals, are views until here.
  const bool view = std::any_of(operands.begin(), operands.end(), [&](const NDArray& x) { return y.same_array(x); });
  return view || detail::is_owned_view(y) ? y.copy() : y;
}

}  // namespace sluice
