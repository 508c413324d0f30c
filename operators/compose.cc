#include "sluice/operators/compose.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/array_locks.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/operators/composition.h"

namespace sluice {
namespace {

bool has_kernels(const Operator& row) {
  for (int kind = 0; kind < kDeviceKinds; ++kind) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      if (!row.kernels(static_cast<DeviceKind>(kind), static_cast<DType>(dtype)).empty()) return true;
    }
  }
  return false;
}

/// Under the lock of those who add kernels, which a fork takes.
bool first_of(const Operator& row, DeviceKind kind, DType dtype) {
  using Said = std::set<std::tuple<const Operator*, DeviceKind, DType>>;
  auto& said = detail::first_use([] { return new Said; });
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::kernels));
  return said.emplace(&row, kind, dtype).second;
}

}  // namespace

std::vector<NDArray> builtin::composed(const Operator& row, std::span<const NDArray* const> inputs,
                                       const Attributes& attributes, const std::source_location& where) {
  const Composition made(row.name, where);
  const Device device = inputs.empty() ? current_scope().device : inputs[0]->device();
  const DeviceScope of_new_arrays(device);
  Signature call(row.name, where, inputs, attributes, device);
  row.infer(call);
  ComposeContext context(inputs, attributes, call.outputs().size(), where);
  row.compose(context);
  std::vector<NDArray> outputs = context.take();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Spec& wanted = call.outputs()[i];
    const std::string given = outputs[i].defined() ? to_string(outputs[i].spec()) : "nothing";
    if (!outputs[i].defined() || !(outputs[i].spec() == wanted)) {
      throw UsageError("[" + std::string(row.name) + "] its composition gives " + given + " in place of " +
                       to_string(wanted));
    }
  }
  return outputs;
}

std::vector<NDArray> builtin::gradient_by(const Operator& row, std::span<const NDArray* const> inputs,
                                          const Attributes& attributes, const GradientContext& context) {
  if (context.create_graph()) return composed(row, inputs, attributes, context.where());
  return apply_all(row, inputs, attributes, {.where = context.where()});
}

bool detail::may_compose(const Operator& row) {
  return row.compose && (composing() != Composing::never || !has_kernels(row));
}

bool detail::composes(const Operator& row, const Signature& call, Device device) {
  if (!may_compose(row)) return false;
  const DType dtype = row.key_of(call);
  if (!DryRun::current() && first_of(row, device.kind, dtype) && has_kernels(row)) {
    std::fprintf(
        stderr,
        "sluice: [%s] has no kernel for %s on %s: it is made of other operators (SLUICE_COMPOSE=0: such calls throw)\n",
        row.name, std::string(name_of(dtype)).c_str(), to_string(device).c_str());
  }
  return true;
}

std::vector<NDArray> detail::values_now(std::span<const NDArray* const> arrays) {
  std::vector<NDArray> seen, values;
  std::vector<const NDArray*> plain;
  for (const NDArray* x : arrays) seen.push_back(Rerun::seen(*x));
  for (const NDArray& x : seen) {
    if (x.array()->kind() != Array::Kind::owned) plain.push_back(&x);
  }
  // An owner makes calls for its snapshot, so that none is made with locks held.
  const auto take = [&] {
    for (const NDArray& x : seen) values.push_back(x.on(snapshot_of(x.array())));
  };
  if (plain.size() < seen.size()) {
    take();
  } else {
    ArrayPush push;
    push.inputs = plain;
    ArrayLocks locks(push);
    const std::lock_guard lock(locks);
    take();
  }
  for (const NDArray& x : values) Rerun::made(x);
  return values;
}

}  // namespace sluice
