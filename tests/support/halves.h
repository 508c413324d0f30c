// An owner for tests: an array in two halves along an axis. It makes elementwise calls and products by halves, and what
// it does not know of the whole.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ndarray/owner.h"
#include "sluice/sluice.h"

namespace sluice::testing {

class Halves final : public Owner {
 public:
  Halves(NDArray first, NDArray second, int axis) : first_(std::move(first)), second_(std::move(second)), axis_(axis) {}

  /// The array in two halves, which are copies; it wants no gradient.
  static NDArray split(const NDArray& x, int axis = 0) {
    const NoGrad scope;
    const std::int64_t n = x.size(axis);
    return made(x.spec(), x.narrow(axis, 0, n / 2).copy(), x.narrow(axis, n / 2, n).copy(), axis);
  }
  /// A plain array of it, without history.
  static NDArray join(const NDArray& x) {
    const NoGrad scope;
    const Ref<Owner> owner = owner_of(x);
    if (!owner) return x;
    const Halves& h = static_cast<const Halves&>(*owner);
    return concat({h.first_, h.second_}, h.axis_);
  }
  static const Halves* of(const NDArray& x) { return static_cast<const Halves*>(owner_of(x).get()); }
  int axis() const { return axis_; }

  void apply(Call& call) override {
    ++calls;
    const Operator& row = row_of(call);
    if (!call.targets().empty()) return write(call, row);
    if (row.elementwise && by_halves(call, row)) return;
    const bool product = call.name() == "matmul" || call.name() == "linear";
    if (product && first_.rank() == 2 && of(call.input()) == this && axis_ == 0 && !of(call.input(1)) &&
        call.specs()[0].shape[0] == call.input().size(0)) {
      std::vector<NDArray> halves;
      for (const NDArray& half : {first_, second_}) {
        std::vector<const NDArray*> inputs(call.inputs().begin(), call.inputs().end());
        inputs[0] = &half;
        halves.push_back(apply_all(row, inputs, call.attributes(), {.where = call.where()})[0]);
      }
      return call.answer({made(call.specs()[0], halves[0], halves[1], 0)});
    }
    if (call.name() == "concat" && join_by_halves(call, row)) return;
    std::vector<NDArray> whole;
    for (const NDArray* x : call.inputs()) whole.push_back(join(*x));
    std::vector<NDArray> results =
        apply_all(row, pointers(whole), call.attributes(), {.where = call.where(), .on = call.specs()[0].device});
    for (NDArray& y : results) {
      if (y.shape() == call.input().shape() && of(call.input())) y = split(y, of(call.input())->axis_);
    }
    call.answer(std::move(results));
  }

  void view(ViewCall& call) override {
    ++views;
    const std::int64_t n = call.input().shape()[axis_];
    const auto both = [&](int axis, auto&& f) {
      call.answer(made({call.shape(), first_.dtype(), first_.device()}, f(first_), f(second_), axis));
    };
    const auto refuse = [&] { throw ArrayError(call.name(), call.where(), "halves have no such view"); };
    if (call.kind() == ViewKind::permute) {
      const auto at = std::find(call.axes().begin(), call.axes().end(), axis_) - call.axes().begin();
      return both(static_cast<int>(at), [&](const NDArray& half) { return half.permute(call.axes()); });
    }
    if (call.kind() == ViewKind::broadcast_to) {
      const int axis = axis_ + call.shape().rank() - call.input().rank();
      if (call.shape()[axis] != n) refuse();
      Dims shape = call.shape();
      shape[axis] = n / 2;
      return both(axis, [&](const NDArray& half) { return half.broadcast_to(shape); });
    }
    if (call.kind() == ViewKind::slice) {
      if (call.shape()[axis_] != n || !(call.cuts()[static_cast<std::size_t>(axis_)] == Cut{})) refuse();
      return both(axis_, [&](const NDArray& half) {
        std::vector<Index> index;
        for (int i = 0; i < call.shape().rank(); ++i) {
          const auto [begin, step] = call.cuts()[static_cast<std::size_t>(i)];
          Slice range{begin, begin + call.shape()[i] * step, step};
          if (step < 0 && *range.end < 0) range.end.reset();
          if (call.shape()[i] == 0) range = slice(0, 0);
          index.emplace_back(i == axis_ ? Index(all) : Index(range));
        }
        return half.index_view(index);
      });
    }
    // A reshape that leaves the axis, and what lies before it, as they are.
    std::int64_t before = 1, seen = 1;
    for (int i = 0; i < axis_; ++i) before *= call.input().shape()[i];
    int axis = 0;
    for (; axis < call.shape().rank() && (seen != before || call.shape()[axis] != n); ++axis)
      seen *= call.shape()[axis];
    if (axis == call.shape().rank()) refuse();
    Dims shape = call.shape();
    shape[axis] = n / 2;
    both(axis, [&](const NDArray& half) { return half.reshape(shape); });
  }

  Ref<Owner> snapshot() const override { return Ref<Owner>(new Halves(first_.detach(), second_.detach(), axis_)); }
  NDArray constant(const Spec& spec, const Scalar& value, const std::source_location& where) const override {
    const DeviceScope scope(spec.device);
    const NDArray x = full(spec.shape, value, spec.dtype, where);
    return spec.shape.rank() > axis_ && spec.shape[axis_] % 2 == 0 ? split(x, axis_) : x;
  }
  std::vector<NDArray> parts() const override { return {first_, second_}; }
  std::string refusal() const override { return "an array in two halves: join(x) first"; }

  static inline std::atomic<int> calls{0}, views{0};

 private:
  static NDArray made(const Spec& spec, const NDArray& first, const NDArray& second, int axis) {
    return owned_array(spec, Ref<Owner>(new Halves(first, second, axis)));
  }
  static std::vector<const NDArray*> pointers(const std::vector<NDArray>& list) {
    std::vector<const NDArray*> result;
    for (const NDArray& x : list) result.push_back(&x);
    return result;
  }
  /// The half of an operand that belongs to half h of a result of this shape, cut along `axis`; empty: there is none.
  static NDArray half(const NDArray& x, int h, const Dims& shape, int axis) {
    const int at = axis - (shape.rank() - x.rank());
    if (const Halves* const halves = of(x)) {
      return at == halves->axis_ && x.shape()[at] == shape[axis] ? (h ? halves->second_ : halves->first_) : NDArray();
    }
    if (at < 0 || x.shape()[at] == 1) return x;
    const std::int64_t n = shape[axis];
    return h ? x.narrow(at, n / 2, n) : x.narrow(at, 0, n / 2);
  }
  bool by_halves(Call& call, const Operator& row) const {
    const Spec& spec = call.specs()[0];
    const NDArray* const mine =
        *std::find_if(call.inputs().begin(), call.inputs().end(), [this](const NDArray* x) { return of(*x) == this; });
    const int axis = axis_ + spec.shape.rank() - mine->rank();
    std::vector<NDArray> halves;
    for (int h = 0; h < 2; ++h) {
      std::vector<NDArray> inputs;
      for (const NDArray* x : call.inputs()) {
        inputs.push_back(half(*x, h, spec.shape, axis));
        if (!inputs.back().defined()) return false;
      }
      halves.push_back(apply_all(row, pointers(inputs), call.attributes(), {.where = call.where()})[0]);
    }
    call.answer({made(spec, halves[0], halves[1], axis)});
    return true;
  }
  /// All in halves of one axis, joined along another.
  bool join_by_halves(Call& call, const Operator& row) const {
    const Spec& spec = call.specs()[0];
    for (const NDArray* x : call.inputs()) {
      if (!of(*x) || of(*x)->axis_ != axis_ || x->size(axis_) != spec.shape[axis_]) return false;
    }
    std::vector<NDArray> halves;
    for (int h = 0; h < 2; ++h) {
      std::vector<NDArray> inputs;
      for (const NDArray* x : call.inputs()) inputs.push_back(h ? of(*x)->second_ : of(*x)->first_);
      halves.push_back(apply_all(row, pointers(inputs), call.attributes(), {.where = call.where()})[0]);
    }
    call.answer({made(spec, halves[0], halves[1], axis_)});
    return true;
  }
  static void write(Call& call, const Operator& row) {
    std::vector<NDArray> inputs, targets;
    for (const NDArray* x : call.inputs()) inputs.push_back(join(*x).copy());
    for (const NDArray& y : call.targets()) targets.push_back(join(y).copy());
    apply_into(row, pointers(inputs), call.attributes(),
               {.where = call.where(), .into = targets, .updates = call.updates()});
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const NDArray& y = call.targets()[i];
      const Halves* const h = of(y);
      if (!h) {
        y.assign(targets[i]);
        continue;
      }
      const std::int64_t n = y.size(h->axis_);
      h->first_.assign(targets[i].narrow(h->axis_, 0, n / 2));
      h->second_.assign(targets[i].narrow(h->axis_, n / 2, n));
    }
    call.answer({call.targets().begin(), call.targets().end()});
  }

  NDArray first_, second_;
  int axis_;
};

}  // namespace sluice::testing
