// Dropout's row; embeddings and positions, made of operators.
#include "sluice/operators/network.h"

#include <array>
#include <cmath>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/compose.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

/// The row in others, bit by bit.
void compose_dropout(ComposeContext& c) {
  const auto& a = c.attributes<DropoutAttributes>();
  const NDArray& x = c.input(0);
  NDArray numbers;
  if (a.piece == 0) {
    numbers = builtin::uniform_like(x, {a.seed, a.stream, a.draw}, a.first, c.where());
  } else {  // x is a place's part
    const RandomAttributes part{a.seed, a.stream, a.draw, a.first, 0, 1, x.shape(), DType::f32, a.piece, a.stride};
    const Operator& row = detail::first_use([] { return &Registry::instance().get("uniform"); });
    numbers = apply(row, {}, part, {.where = c.where(), .on = x.device()});
  }
  const NDArray kept = numbers >= static_cast<float>(a.p);
  c.set(0, sluice::where(kept, x * (a.p < 1 ? 1 / (1 - a.p) : 0), 0));
}

NDArray dropped(const NDArray& x, const DropoutAttributes& a, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("dropout"); });
  // Other owners than a mesh do not know which elements of the draw their parts have.
  if (x.array()->owned() && !builtin::Placed::of(x)) {
    return builtin::composed(row, std::array{&x}, a, where)[0];
  }
  return apply(row, {&x}, a, {.where = where});
}

}  // namespace

void builtin::add_network_rows(Registry& registry) {
  // Its gradient is the same of the gradient: the mask is drawn again, so that nothing is kept for it.
  add_operator(registry, "dropout", [](Operator& op) {
    op.place = [](Placing& p) {
      p.elementwise();
      p.local(local_dropout);
    };
    op.cost = costs::each_output<2>;
    op.infer = [](Signature& s) {
      s.floating();
      s.output(s.shape(0), s.dtype());
    };
    op.compose = compose_dropout;
    op.gradient = [](GradientContext& c) {
      c.set(0, dropped(c.gradient(), c.attributes().get<DropoutAttributes>(), c.where()));
    };
  });
}

NDArray dropout(const Operand& x, double p, RandomStream& stream, const DropoutOptions& options) {
  const builtin::Composition made("dropout", x);
  made.require(p >= 0 && p <= 1, "p must be from 0 to 1");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  if (p == 0 || !options.training) return x.array;
  const RandomKey key = stream.next();
  return dropped(x.array, {key.seed, key.stream, key.draw, options.first, p}, made.where());
}

NDArray embedding(const Operand& weight, const NDArray& indices) {
  const builtin::Composition made("embedding", weight);
  indices.checked("embedding", made.where());
  made.require(weight.array.rank() > 0, "a scalar has no rows");
  const Dims& rows = weight.array.shape();
  if (indices.rank() + rows.rank() - 1 > kMaxRank) made.fail("the result has too many axes");
  // Indices that a mesh cuts along an axis inside, such as positions, are taken with that axis first: so each place has
  // a part of all rows that are taken.
  int cut = 0;
  while (cut < indices.rank() && !builtin::is_cut(indices, cut)) ++cut;
  std::int64_t before = 1;
  for (int i = 0; i < cut; ++i) before *= indices.shape()[i];
  const bool inside = cut < indices.rank() && before != 1;
  const NDArray taken = inside ? indices.movedim(cut, 0) : indices;
  Dims shape = taken.shape();
  for (int i = 1; i < rows.rank(); ++i) shape.push_back(rows[i]);
  const NDArray y = take_rows(weight.array, taken.reshape({taken.count()})).reshape(shape);
  return inside ? y.movedim(0, cut) : y;
}

NDArray rotary_embedding(const Operand& x, const RotaryOptions& options) {
  const builtin::Composition made("rotary_embedding", x);
  const Dims& shape = x.array.shape();
  const int rank = shape.rank();
  if (rank < 2 || shape[rank - 1] % 2 != 0) made.fail(to_string(shape) + " is not (..., positions, an even size)");
  made.require(options.base > 0, "base must be above 0");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  const std::int64_t positions = shape[rank - 2], half = shape[rank - 1] / 2;
  std::int64_t end = 0;
  if (__builtin_add_overflow(options.first, positions, &end)) {
    made.fail(std::to_string(positions) + " positions from " + std::to_string(options.first) + " on cannot be counted");
  }
  const NDArray t = arange(options.first, end, 1, DType::f64).unsqueeze(1);
  const NDArray turn = exp(arange(0, half, 1, DType::f64) *
                           (-std::log(options.base) / static_cast<double>(std::max<std::int64_t>(half, 1))));
  const DType dtype = x.array.dtype();
  const NDArray angles = t * turn, cosine = cos(angles).to(dtype), sine = sin(angles).to(dtype);
  if (options.interleaved) {
    Dims pairs = shape;
    pairs[rank - 1] = half;
    if (rank == kMaxRank) made.fail("too many axes");
    pairs.push_back(2);
    const NDArray seen = x.array.reshape(pairs), a = seen.narrow(rank, 0, 1).squeeze(rank),
                  b = seen.narrow(rank, 1, 2).squeeze(rank);
    return stack({a * cosine - b * sine, a * sine + b * cosine}, rank).reshape(shape);
  }
  const NDArray a = x.array.narrow(rank - 1, 0, half), b = x.array.narrow(rank - 1, half, 2 * half);
  return concat({a * cosine - b * sine, a * sine + b * cosine}, rank - 1);
}

}  // namespace sluice
