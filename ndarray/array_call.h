// ArrayCall: what an operation on arrays owns until it completes, and how it is run. Used by push_arrays.
#pragma once

#include <memory>
#include <vector>

#include "sluice/ndarray/push.h"
#include "sluice/ndarray/short_list.h"
#include "sluice/resources/object_pool.h"

namespace sluice {

/// An operand as resolved: the value that it stands for. The window on it lies in ArrayCall::views.
struct Resolved {
  Ref<Version> version;
  std::int64_t offset = 0;  ///< of the window's first element
  bool moved = false;       ///< an output whose array goes to a new version
  bool pack = false;        ///< hand the body a contiguous copy
  bool preload = false;     ///< an output that the body also reads: a packed copy begins with its elements
};

/// A value to copy before the body runs: this stretch of `from`, to the same place.
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
/// device has confirmed the op. So everything that kernels use while they run is kept here.
struct ArrayCall : Pooled<ArrayCall> {
  ArrayPush::Body body = nullptr;
  std::size_t inputs = 0;
  bool issues = false;
  std::uint8_t tries = 1;
  bool torn_unissued = false;
  bool packs = false;                  ///< some operand is packed
  std::unique_ptr<DeviceCall> device;  ///< of a stream lane
  std::vector<Preserve> preserves;
  Attributes attributes;
  ShortList<Resolved, 4> operands;  ///< inputs, then outputs
  ShortList<TensorView, 4> views;   ///< their windows; the address is filled in when the op runs

  ArrayCall();
  ~ArrayCall();
  void run(Context& context);

 private:
  void issue(Context& context);
  void run_packed(Context& context);
  TensorView window(std::size_t i) const;
};

}  // namespace sluice
