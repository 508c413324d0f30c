// What lies behind the handles: buffers, versions, arrays (SEMANTICS.md, 7). For operators and autograd; programs use
// NDArray.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/ref.h"
#include "sluice/resources/object_pool.h"

namespace sluice {

/// Memory of a device, taken from its pool when the producing op first asks for it, and given back when the last
/// reference goes: the op's closure holds references, so that is on the last reader's lane.
class Buffer final : public RefCounted, public Pooled<Buffer> {
 public:
  Buffer(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {}
  /// Memory that `owner` keeps. Writing is allowed.
  Buffer(Device device, std::size_t bytes, void* data, std::shared_ptr<void> owner)
      : device_(device), bytes_(bytes), data_(static_cast<std::byte*>(data)), owner_(std::move(owner)) {}
  ~Buffer() override;

  /// The memory; allocates at the first call. Thread-safe (writers of different parts may both be first). Throws
  /// std::bad_alloc.
  std::byte* data();
  Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device device_;
  std::size_t bytes_;
  std::atomic<std::byte*> data_{nullptr};
  std::shared_ptr<void> owner_;
};

/// One value of an array as the engine orders it: a buffer, and the variables that stand for it (one; for the whole of
/// a partitioned buffer, one for each part).
class Version final : public RefCounted, public Pooled<Version> {
 public:
  Version(Ref<Buffer> buffer, Variable variable) : buffer_(std::move(buffer)), variable_(std::move(variable)) {}
  Version(Ref<Buffer> buffer, std::vector<Variable> parts)
      : buffer_(std::move(buffer)), variable_(parts.front()), parts_(std::move(parts)) {}

  Buffer& buffer() const { return *buffer_; }
  const Ref<Buffer>& buffer_ref() const { return buffer_; }
  /// Calls f(variable) for each variable of the value.
  template <class F>
  void each_variable(F&& f) const {
    if (parts_.empty()) {
      f(variable_);
    } else {
      for (const Variable& part : parts_) f(part);
    }
  }
  /// The variable, or the first part's.
  const Variable& variable() const { return variable_; }

  /// How many arrays show this value. More than one: a write makes a new version first.
  std::atomic<std::int32_t> arrays{0};

 private:
  Ref<Buffer> buffer_;
  Variable variable_;
  std::vector<Variable> parts_;
};

/// What made an array's value, for autograd/, which alone looks inside.
class History : public RefCounted {};

/// What the arrays of one partitioned buffer share. A write there cannot move to a new version, because other arrays
/// lie in the same buffer; it copies held values away instead.
struct PartGroup : RefCounted {
  std::recursive_mutex lock;  ///< stands for the `mutex` of every array of the group
  std::mutex list;            ///< guards `snapshots`; taken last
  std::vector<class Array*> snapshots;
};

/// The identity that all views share. `version` and `history` are guarded by mutex(), which is recursive because serial
/// mode runs a body inside its push.
class Array final : public RefCounted, public Pooled<Array> {
 public:
  Array(Engine& engine, DType dtype, const Dims& shape, Ref<Version> version);
  ~Array() override;

  std::recursive_mutex& mutex() { return group_ ? group_->lock : own_mutex_; }
  Engine& engine() const { return *engine_; }
  Device device() const { return device_; }
  DType dtype() const { return dtype_; }
  /// The shape it was made with: the gradient of the array as a whole has it. Row-major from `base_offset`.
  const Dims& shape() const { return shape_; }
  std::int64_t base_offset() const { return base_offset_; }

  const Ref<Version>& version() const { return version_; }
  void set_version(Ref<Version> version);
  /// True when a write must not change this value in place.
  bool held() const { return version_->arrays.load(std::memory_order_acquire) > 1; }

  Ref<History> history;             ///< null: no gradient is wanted
  std::int32_t history_output = 0;  ///< which output of it
  bool leaf = false;                ///< with_grad() was called on it

  /// Another array that shows the present value, and keeps it whatever is written to this one. With mutex() held.
  Ref<Array> snapshot();

  const Ref<PartGroup>& group() const { return group_; }
  /// Arrays that show values of this partitioned buffer and share elements with this array. With mutex() held.
  std::vector<Ref<Array>> holders() const;
  /// Makes it an array of a partitioned buffer, whose elements begin at `base_offset`. Before anyone else sees it.
  void join(Ref<PartGroup> group, std::int64_t base_offset);

 private:
  Engine* engine_;
  Device device_;
  DType dtype_;
  bool listed_ = false;
  Dims shape_;
  std::int64_t base_offset_ = 0;
  Ref<Version> version_;
  Ref<PartGroup> group_;
  std::recursive_mutex own_mutex_;
};

}  // namespace sluice
