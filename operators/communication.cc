#include "sluice/operators/communication.h"

#include <algorithm>
#include <map>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/engine/layer.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/scope_flags.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/placed_owner.h"

namespace sluice {
namespace {

using Step = builtin::ReshardStep;

/// Elements that a place has before and after a step.
std::int64_t kept(const Step& step, int rank) {
  const Dims a = step.from.begin(rank), n = step.from.extent(rank), b = step.to.begin(rank), m = step.to.extent(rank);
  std::int64_t count = 1;
  for (int i = 0; i < a.rank(); ++i) {
    count *= std::max<std::int64_t>(0, std::min(a[i] + n[i], b[i] + m[i]) - std::max(a[i], b[i]));
  }
  return count;
}

/// Elements that a place gets from others.
std::int64_t received(const Step& step, int rank) {
  const Mesh& mesh = step.to.mesh();
  const std::int64_t p = mesh.size(step.mesh_axis), j = mesh.coordinate(rank, step.mesh_axis);
  const std::int64_t n = step.from.extent(rank).count(), after = step.to.extent(rank).count();
  switch (step.kind) {
    case Step::Kind::all_reduce: {  // a part of all others, and the other parts
      const std::int64_t part = n / p * (j + 1) + n % p * (j + 1) / p - (n / p * j + n % p * j / p);
      return (p - 1) * part + n - part;
    }
    case Step::Kind::reduce_scatter:
      return (p - 1) * after;
    default:
      return after - kept(step, rank);
  }
}

}  // namespace

bool operator==(const Communication& a, const Communication& b) {
  const auto line = [](const std::source_location& where) {
    return std::pair(std::string(where.file_name()), where.line());
  };
  return a.kind == b.kind && a.axis == b.axis && a.places == b.places && a.bytes == b.bytes &&
         a.backward == b.backward && a.array == b.array && line(a.where) == line(b.where) && a.layer == b.layer;
}

std::string name_of(Communication::Kind kind) {
  static constexpr const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"};
  return names[static_cast<int>(kind)];
}

std::string to_string(const Communication& one) {
  return name_of(one.kind) + " over " + one.axis + " (" + std::to_string(one.places) + ") of " +
         to_string(one.array.shape) + " " + std::string(name_of(one.array.dtype)) + ": " +
         bytes_in_words(static_cast<double>(one.bytes)) + "; " + to_string(one.where) +
         (one.layer.empty() ? "" : " in " + one.layer) + (one.backward ? ", backward" : "");
}

std::string to_string(const std::vector<Communication>& list) {
  std::string text;
  std::map<std::string, std::pair<int, std::int64_t>> sums;
  for (const Communication& one : list) {
    text += to_string(one) + "\n";
    auto& [calls, bytes] = sums[name_of(one.kind) + " over " + one.axis];
    ++calls;
    bytes += one.bytes;
  }
  for (const auto& [name, sum] : sums) {
    text += "in all " + std::to_string(sum.first) + " " + name + ": " +
            bytes_in_words(static_cast<double>(sum.second)) + "\n";
  }
  return text.empty() ? "nothing\n" : text;
}

namespace {

void add_steps(std::vector<Communication>& list, const NDArray& x, const Layout& to, const std::source_location& where,
               const char* layer) {
  for (const Step& step : builtin::reshard_steps(layout_of(x), to)) {
    if (step.kind == Step::Kind::slice) continue;
    const Mesh& mesh = step.to.mesh();
    std::int64_t elements = 0;
    for (int rank = 0; rank < mesh.places(); ++rank) elements = std::max(elements, received(step, rank));
    list.push_back({static_cast<Communication::Kind>(step.kind), mesh.name(step.mesh_axis), mesh.size(step.mesh_axis),
                    elements * static_cast<std::int64_t>(size_of(x.dtype())),
                    (current_scope().flags & kBackwardFlag) != 0, x.spec(), where, layer});
  }
}

}  // namespace

void Communications::apply(Call& call, Next next) {
  next(call);
  if (&call.row() == &builtin::reshard_row()) {
    return add_steps(list_, call.input(), call.attributes().get<builtin::ReshardAttributes>().to, call.where(),
                     call.layer());
  }
  // As the owner makes it: beside a target that gathers operands are read as they lie.
  const auto gathers = [](const NDArray& y) {
    const builtin::Placed* const placed = builtin::Placed::of(y);
    return placed && placed->gathers();
  };
  if (std::ranges::any_of(call.targets(), gathers)) return;
  for (const NDArray* x : call.inputs()) {
    const builtin::Placed* const placed = builtin::Placed::of(*x);
    if (placed && placed->gathers()) add_steps(list_, *x, placed->in_calls(), call.where(), call.layer());
  }
}

void Communications::view(const ViewCall& call) {
  const builtin::Placed* const placed = builtin::Placed::of(call.input());
  if (!placed || !placed->gathers() || !call.result().defined()) return;
  const builtin::Placed* const view = builtin::Placed::of(call.result());
  if (view && view->is_copy()) add_steps(list_, call.input(), placed->in_calls(), call.where(), call.layer());
}

}  // namespace sluice
