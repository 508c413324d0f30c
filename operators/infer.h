// What an operator would give: specs from specs, without arrays.
#pragma once

#include <cstddef>
#include <source_location>
#include <span>
#include <vector>

#include "sluice/ndarray/interpreter.h"
#include "sluice/operators/registry.h"

namespace sluice {

/// The specs of what apply_all() would give for inputs of these specs: the same shapes, dtypes and device. Nothing runs
/// and no memory is taken for elements. The outputs live on the device of `on`; if that is not given, on the inputs',
/// and without inputs on that of the calling thread's scope.
/// Throws the ArrayError that the call would throw for these inputs: a wrong number of them, devices that differ (where
/// `on` is not given), or shapes, dtypes and attributes that the row refuses. Not asked here is what belongs to a run:
/// whether the device is there and has a kernel. Thread-safe; does not block.
std::vector<Spec> infer(const Operator& row, std::span<const Spec> inputs, const Attributes& attributes = {},
                        Place on = {}, std::source_location where = std::source_location::current());

/// The cost of the same call; throws as infer() does. A row of a program that has no rule counts as one operation for
/// each element of its outputs if it is elementwise, else as none, and its operands are moved once.
Cost cost_of(const Operator& row, std::span<const Spec> inputs, const Attributes& attributes = {}, Place on = {},
             std::source_location where = std::source_location::current());

/// The same of a call that an interpreter sees.
Cost cost_of(const Call& call);
/// The row of such a call, to make it again with other operands: apply_all(row_of(call), inputs, call.attributes(),
/// ...).
const Operator& row_of(const Call& call);

namespace detail {
/// What a call checks of its inputs before the row's shape rule sees them. They throw ArrayError.
void check_count(const Operator& row, std::size_t inputs, const std::source_location& where);
/// Throws ArrayError where the device is not there, or has no kernel for the call. A dry run asks for no device.
void check_kernel(const Operator& row, const Signature& call, Device device, const std::source_location& where);
[[noreturn]] void refuse_devices(const Operator& row, Device first, Device other, const std::source_location& where);
}  // namespace detail

}  // namespace sluice
