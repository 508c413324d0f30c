// ArrayCall: what an operation on arrays owns until it completes, and how it is run. Used by push_arrays.
#pragma once

#include <memory>
#include <vector>

#include "sluice/ndarray/push.h"
#include "sluice/ndarray/short_list.h"
#include "sluice/resources/object_pool.h"

namespace sluice {

/// An operand as resolved: the value that it stands for, and the window on it.
struct Resolved {
  Ref<Version> version;     ///< null once it is let go of
  std::int64_t offset = 0;  ///< of the window's first element
  std::uint32_t dims = 0;   ///< where its shape and strides are in ArrayCall::dims
  std::uint8_t rank = 0;
  DType dtype = DType::f32;
  bool moved : 1 = false;    ///< an output whose array goes to a new version
  bool pack : 1 = false;     ///< hand the body a contiguous copy
  bool preload : 1 = false;  ///< an output that the body also reads: a packed copy begins with its elements
  bool update : 1 = false;   ///< an output that is not overwritten whole
};

/// A value to copy before the body runs: this stretch of `from`, to the same place. Null once let go of.
struct Preserve {
  Ref<Version> from, to;
  std::size_t begin = 0, bytes = 0;
};

/// The elements that a window touches, as memory.
MemoryUse use_of(const TensorView& view, bool writes);
/// Tells a record of accesses that the calling thread reads or writes pinned memory.
void touch_pinned(const Buffer& buffer, const TensorView& view, bool writes);

class DeviceCall;

/// An operation on arrays, as resolved. The engine keeps it until the op is over; on a stream lane that is when the
/// device has confirmed the op. So what kernels use while they run is kept here; but memory of the device is let go of
/// when the op is issued (DeviceCall::let_go), and from then on its operands have no version.
///
/// It is written by the pushing thread and read by another one, often much later, so it is kept small.
struct ArrayCall : Pooled<ArrayCall> {
  ArrayPush::Body body = nullptr;
  std::uint32_t inputs = 0;
  std::uint8_t tries = 1;
  bool issues = false;
  bool torn_unissued = false;
  bool packs = false;               ///< some operand is packed
  bool sees_poison = false;         ///< OnPoison::run or always
  ShortList<Resolved, 4> operands;  ///< inputs, then outputs
  ShortList<std::int64_t, 8> dims;  ///< shapes and strides, those that neighbours have in common once
  std::unique_ptr<std::vector<Preserve>> preserves;
  std::unique_ptr<DeviceCall> device;  ///< of a stream lane
  Attributes attributes;

  ArrayCall();
  ~ArrayCall();
  void add_preserve(Preserve preserve) {
    if (!preserves) preserves = std::make_unique<std::vector<Preserve>>();
    preserves->push_back(std::move(preserve));
  }
  Resolved& add(const Ref<Version>& version, const NDArray& window);
  /// The window of operand i; the address is left out.
  TensorView window(std::size_t i) const;
  void run(Context& context);
  /// Makes `device`. Throws std::bad_alloc, and what the pool throws.
  DeviceCall& on_stream(Context& context);

  // Steps of run().
  void preserve() const;
  /// The windows, where they lie. Allocates what no op has asked for yet.
  void find(std::span<TensorView> views) const;
  /// The error that each operand carried when the op began, for a body that sees poison. An output that is overwritten
  /// whole has none, and heals when the op is done, though an input may lie there.
  std::vector<ErrorRef> errors(Context& context) const;

 private:
  void issue(Context& context);
  void run_special(Context& context);  ///< in host_run.cc
};

}  // namespace sluice
