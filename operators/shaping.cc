// Rows and functions that move or convert elements: copy, transfer, cast, scatter, concat, one_hot, take_rows.
#include "sluice/operators/shaping.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/check_device.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/pinned.h"
#include "sluice/operators/placement.h"

namespace sluice {
namespace {

void same_shape(Signature& s) { s.output(s.shape(0), s.dtype()); }

bool is_label(DType t) { return t == DType::i64 || t == DType::i32 || t == DType::u8; }

int positive_axis(int axis, int rank, const char* who, const std::source_location& where) {
  const int at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) throw ArrayError(who, where, "no axis " + std::to_string(axis));
  return at;
}

void infer_concat(Signature& s) {
  const int axis = s.attributes<AxisAttributes>().axis;
  Dims shape = s.shape(0);
  s.same_dtypes();
  for (int i = 1; i < s.inputs(); ++i) {
    Dims other = s.shape(i);
    if (other.rank() != shape.rank()) s.fail("ranks differ");
    if (__builtin_add_overflow(shape[axis], other[axis], &shape[axis])) s.fail("more rows than can be counted");
    other[axis] = shape[axis];
    if (!(other == shape)) s.fail("sizes differ beside axis " + std::to_string(axis));
  }
  s.output(shape, s.dtype());
}

}  // namespace

void builtin::add_shaping_rows(Registry& registry) {
  add_operator(registry, "copy", [](Operator& op) {
    op.place = place_linear<Linear::together>;
    op.cost = costs::moves;
    op.elementwise = true;
    op.infer = same_shape;
    op.gradient = [](GradientContext& c) { c.set(0, c.gradient()); };
  });
  add_operator(registry, "transfer", [](Operator& op) {
    op.place = [](Placing& p) { p.refuse("it lies on the devices of a mesh: shards_of(whole(x))[0] is a plain copy"); };
    op.cost = costs::moves;
    op.infer = same_shape;
    op.gradient = [](GradientContext& c) {
      c.set(0, c.gradient().to(c.attributes().get<TransferAttributes>().from, c.where()));
    };
  });
  add_operator(registry, "cast", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...->..."); };
    op.cost = costs::moves;
    op.infer = [](Signature& s) { s.output(s.shape(0), s.attributes<DTypeAttributes>().dtype); };
    op.gradient = [](GradientContext& c) { c.set(0, c.gradient().to(c.input_spec(0).dtype, c.where())); };
  });
  // Zeros of `shape` with the input added in at its window: what a view's gradient is for the array.
  add_operator(registry, "scatter", [](Operator& op) {
    op.cost = costs::moves;
    op.infer = [](Signature& s) {
      s.arithmetic();
      s.output(s.attributes<WindowAttributes>().shape, s.dtype());
    };
    op.gradient = [](GradientContext& c) {
      const auto& window = c.attributes().get<WindowAttributes>();
      const NDArray g = c.gradient().contiguous(c.where());
      c.set(0, g.strided(c.input_spec(0).shape, window.strides, window.offset + g.offset(), c.where()));
    };
  });
  add_operator(registry, "concat", [](Operator& op) {
    op.place = [](Placing& p) {
      p.along(p.attributes<AxisAttributes>().axis);
      p.linear(Linear::together);
    };
    op.cost = costs::moves;
    op.max_inputs = Operator::kAnyNumber;
    op.infer = infer_concat;
    op.gradient = [](GradientContext& c) {
      const int axis = c.attributes().get<AxisAttributes>().axis;
      std::int64_t at = 0;
      for (int i = 0; i < c.inputs(); ++i) {
        const std::int64_t n = c.input_spec(i).shape[axis];
        if (c.wanted(i)) c.set(i, c.gradient().narrow(axis, at, at + n));
        at += n;
      }
    };
  });
  add_operator(registry, "one_hot", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...->..._"); };
    op.cost = costs::moves;
    op.infer = [](Signature& s) {
      if (!is_label(s.dtype())) s.fail("labels are i64, i32 or u8, not " + std::string(name_of(s.dtype())));
      const auto& a = s.attributes<AxisAttributes>();
      if (a.size < 1) s.fail("at least one class is needed");
      if (s.shape(0).rank() == kMaxRank) s.fail("a result of more than " + std::to_string(kMaxRank) + " axes");
      Dims shape = s.shape(0);
      shape.push_back(a.size);
      s.output(shape, a.dtype);
    };
  });
  add_operator(registry, "take_rows", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters(has_sums(p.dtype(0)) ? "v...,r->r..." : "_...,r->r...");
      p.adds(ReduceOp::sum);
      p.factor(1);
      p.linear(Linear::first);
      p.local([](const Attributes&, const PlacedCall& placed, int rank) {
        const Layout& x = placed.inputs[0];
        return Attributes(RowsAttributes{x.begin(rank)[0], x.shape()[0]});
      });
    };
    op.cost = costs::picks;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      if (!is_label(s.dtype(1))) s.fail("rows are i64, i32 or u8, not " + std::string(name_of(s.dtype(1))));
      s.rank(1, 1);
      if (s.shape(0).empty()) s.fail("a scalar has no rows");
      Dims shape = s.shape(0);
      shape[0] = s.shape(1)[0];
      s.output(shape, s.dtype());
    };
    op.needs = {needs::input(1)};
    op.gradient = [](GradientContext& c) {
      c.set(0, apply(Registry::instance().get("add_rows"), {&c.gradient(), &c.input(1)},
                     WindowAttributes{c.input_spec(0).shape, {}, 0}, {.where = c.where()}));
    };
  });
  // Zeros of `shape` with row i of the input added in at rows[i], in order.
  add_operator(registry, "add_rows", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("r...,r->_...");
      p.adds(ReduceOp::sum);
      p.linear(Linear::first);
      p.local(local_extent<WindowAttributes, &WindowAttributes::shape>);
    };
    op.cost = costs::each_input<>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.arithmetic();
      s.output(s.attributes<WindowAttributes>().shape, s.dtype());
    };
    op.needs = {needs::input(1)};
    op.gradient = [](GradientContext& c) { c.set(0, take_rows(c.gradient(), c.input(1))); };
  });
}

NDArray concat(const NDArrays& arrays, int axis, std::source_location where) {
  if (arrays.empty()) throw ArrayError("concat", where, "no arrays");
  arrays[0].checked("concat", where);
  axis = positive_axis(axis, arrays[0].rank(), "concat", where);
  std::vector<const NDArray*> inputs;
  for (const NDArray& x : arrays) inputs.push_back(&x);
  const std::vector<NDArray> converted = builtin::in_one_dtype("concat", inputs, where);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("concat"); });
  return apply_all(row, inputs, AxisAttributes{axis, 0, DType::f32}, {.where = where})[0];
}

NDArray stack(const NDArrays& arrays, int axis, std::source_location where) {
  const builtin::Composition made("stack", where);
  if (arrays.empty()) made.fail("no arrays");
  arrays[0].checked("stack", where);
  axis = positive_axis(axis, arrays[0].rank() + 1, "stack", where);
  if (arrays[0].rank() == kMaxRank) {
    made.fail(to_string(arrays[0].shape()) + ": a result of more than " + std::to_string(kMaxRank) + " axes");
  }
  std::vector<NDArray> widened;
  for (const NDArray& x : arrays) {
    x.checked("stack", where);
    if (!(x.shape() == arrays[0].shape())) {
      made.fail(to_string(arrays[0].shape()) + " x " + to_string(x.shape()) + ": the shapes differ");
    }
    widened.push_back(x.unsqueeze(axis, where));
  }
  return concat(widened, axis, where);
}

NDArray one_hot(const Operand& labels, std::int64_t classes, DType dtype) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("one_hot"); });
  return apply(row, {&labels.array}, AxisAttributes{0, classes, dtype}, {.where = labels.where});
}

NDArray take_rows(const Operand& x, const Operand& rows) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("take_rows"); });
  return apply(row, {&x.array, &rows.array}, RowsAttributes(), {.where = x.where});
}

NDArray detail::pinned(const NDArray& x, Device device, const std::source_location& where) {
  if (x.array()->kind() == Array::Kind::owned) return x;
  {
    std::lock_guard lock(x.array()->mutex());
    if (x.is_contiguous() && x.array()->version()->buffer().pinned()) return x;
  }
  const Operator& row = detail::first_use([] { return &Registry::instance().get("copy"); });
  return apply(row, {&x}, {}, {.where = where, .pinned = device});
}

NDArray NDArray::copy(Where where) const {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("copy"); });
  return apply(row, {this}, {}, {.where = where});
}

NDArray NDArray::contiguous(Where where) const {
  bool dense = is_contiguous();
  if (checked("contiguous", where).kind() == Array::Kind::owned) {
    detail::each_plain(*this, [&](const NDArray& part) { dense = dense && part.is_contiguous(); });
  }
  return dense ? *this : copy(where);
}

NDArray NDArray::to(Device device, Where where) const {
  const Device from = checked("to", where).device();
  if (from == device) return *this;
  if (!DryRun::current()) detail::check_device("to", device, where);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("transfer"); });
  const bool from_host = from.kind == DeviceKind::cpu, to_host = device.kind == DeviceKind::cpu;
  const bool owned = array_->kind() == Array::Kind::owned;
  // Kinds of devices that know nothing of each other meet in host memory.
  if (!owned && !from_host && !to_host && from.kind != device.kind) return to(cpu(0), where).to(device, where);
  // Between CPU devices a copy is a few microseconds of the receiver's own core: waking a copy lane would take longer.
  if (owned || (from_host && to_host)) {
    return apply(row, {this}, TransferAttributes{from, device}, {.where = where, .on = device});
  }
  // A device copies one stretch of memory, on the host of pinned memory: what is not so is packed where it is.
  NDArray packed = *this;
  if (from_host) {
    packed = detail::pinned(*this, device, where);
  } else if (!is_contiguous()) {
    packed = copy(where);
  }
  if (!to_host) {
    const Place lane(device, from_host ? LaneKind::copy_in : LaneKind::copy_peer);
    return apply(row, {&packed}, TransferAttributes{from, device}, {.where = where, .on = device, .lane = lane});
  }
  NDArray arrived = apply(row, {&packed}, TransferAttributes{from, cpu(0)},
                          {.where = where, .on = cpu(0), .lane = {from, LaneKind::copy_out}, .pinned = from});
  return arrived.to(device, where);  // as a rule it is there
}

NDArray NDArray::to(DType dtype, Where where) const {
  if (checked("to", where).dtype() == dtype) return *this;
  const Operator& row = detail::first_use([] { return &Registry::instance().get("cast"); });
  return apply(row, {this}, DTypeAttributes{dtype}, {.where = where});
}

void NDArray::assign(const Operand& y) const {
  checked("assign", y.where);
  y.array.checked("assign", y.where);
  if (y.array.device() == device()) {
    const Operator& row = detail::first_use([] { return &Registry::instance().get("copy"); });
    const NDArray widened = builtin::narrowed("assign", y, dtype()).broadcast_to(shape_, y.where);
    apply(row, {&widened}, {}, {.where = y.where, .into = std::span(this, 1)});
  } else {
    assign({y.array.to(device(), y.where), y.where});
  }
}

}  // namespace sluice
