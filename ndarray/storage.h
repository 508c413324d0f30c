// What lies behind the handles: buffers, versions, arrays (docs/semantics.md, 7). For operators and autograd; programs
// use NDArray.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/imports.h"
#include "sluice/ndarray/ref.h"
#include "sluice/ndarray/sharing.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/object_pool.h"

namespace sluice {

/// Memory of a device, taken from its pool when the producing op first asks for it, and given back when the last
/// reference goes: the op's closure holds references, so that is on the last reader's lane, or when its device is over
/// with it.
class Buffer final : public RefCounted, public Pooled<Buffer> {
 public:
  Buffer(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {}
  /// Memory that `owner` keeps and that nobody else knows of. Writing is allowed.
  Buffer(Device device, std::size_t bytes, void* data, std::shared_ptr<void> owner)
      : device_(device), bytes_(bytes), data_(static_cast<std::byte*>(data)), owner_(std::move(owner)) {}
  /// Memory that the program may import again.
  Buffer(Device device, std::unique_ptr<Import> import);
  /// Of a device that has streams; with `pinned`, host memory of cpu(0) that its streams copy from and to.
  Buffer(DevicePool& pool, bool pinned, std::size_t bytes);
  ~Buffer() override;

  /// Host memory; allocates at the first call. Thread-safe (writers of different parts may both be first). Throws
  /// std::bad_alloc.
  std::byte* data() {
    std::byte* const there = data_.load(std::memory_order_acquire);
    return there ? there : allocate(nullptr);
  }
  /// The same for an op that is being issued to its stream: a handle to a device's memory, which the host must not
  /// touch. Throws OutOfMemory, after what had been issued before is over.
  std::byte* data_for(Context& context);
  Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  /// Null for memory that came otherwise.
  Import* import() const { return import_.get(); }
  /// Host memory that streams reach.
  bool pinned() const { return pool_ && device_.kind == DeviceKind::cpu; }
  /// Where device memory and pinned memory come from; else null.
  DevicePool* pool() const { return pool_; }
  /// Another one for the same device: of its memory, or of the host's.
  Ref<Buffer> another(std::size_t bytes) const;

 private:
  std::byte* allocate(Context* context);

  Device device_;
  std::size_t bytes_;
  std::atomic<std::byte*> data_{nullptr};
  std::shared_ptr<void> owner_;  ///< of foreign memory, or the pool
  std::unique_ptr<Import> import_;
  DevicePool* pool_ = nullptr;
  // For a record of accesses: the streams that used it, and those that used its memory before.
  std::atomic<DevicePool::Users> users_{0}, before_{0};
};

/// A block for an op that is being issued (without context: for anyone). Throws OutOfMemory, after what had been issued
/// before is over. `before`: as DevicePool::allocate says.
void* allocate_block(DevicePool& pool, DevicePool::Kind kind, std::size_t bytes, Context* context,
                     DevicePool::Users& before);

/// A buffer for arrays of the engine on this device. Throws UsageError where the engine has no such device.
Ref<Buffer> new_buffer(Engine& engine, Device device, std::size_t bytes);
/// Host memory that streams of the device reach.
Ref<Buffer> new_pinned_buffer(Engine& engine, Device device, std::size_t bytes);

/// A stretch of memory, in bytes: of one array or buffer, or, for imports, of all there is.
struct Stretch {
  const void* space = nullptr;  ///< the array or buffer; null: imported
  std::intptr_t begin = 0, end = 0;

  static Stretch of(const Buffer& buffer, std::intptr_t begin, std::intptr_t end) {
    const Import* import = buffer.import();
    if (!import) return {&buffer, begin, end};
    const auto address = reinterpret_cast<std::intptr_t>(import->begin());
    return {nullptr, address + begin, address + end};
  }
  bool overlaps(const Stretch& other) const { return space == other.space && begin < other.end && other.begin < end; }
  /// By where they begin. Of those that do not overlap, and are not empty, also by where they end.
  friend bool operator<(const Stretch& a, const Stretch& b) {
    return a.space != b.space ? std::less<>()(a.space, b.space) : a.begin < b.begin;
  }
};

/// One value of an array as the engine orders it: a buffer, and the variables that stand for it (one; for the whole of
/// a partitioned buffer, one for each part; for an import that overlaps several earlier ones, theirs).
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
  void shown() { arrays.fetch_add(1, std::memory_order_relaxed); }
  void hidden() noexcept {
    if (arrays.fetch_sub(1, std::memory_order_acq_rel) == 1 && buffer_->import()) buffer_->import()->hide();
  }

 private:
  Ref<Buffer> buffer_;
  Variable variable_;
  std::vector<Variable> parts_;
};

/// What made an array's value, for autograd/, which alone looks inside.
class History : public RefCounted {};

/// The identity that all views share. `version` and `history` are guarded by mutex(), which is recursive because serial
/// mode runs a body inside its push.
class Array final : public RefCounted, public Pooled<Array> {
 public:
  Array(Engine& engine, DType dtype, const Dims& shape, Ref<Version> version);
  ~Array() override;

  ArrayMutex& mutex() { return mutex_; }
  Engine& engine() const { return *engine_; }
  Device device() const { return device_; }
  DType dtype() const { return dtype_; }
  /// The shape it was made with: the gradient of the array as a whole has it. Row-major from `base_offset`.
  const Dims& shape() const { return shape_; }
  std::int64_t base_offset() const { return base_offset_; }

  const Ref<Version>& version() const { return version_; }
  void set_version(Ref<Version> version);
  /// True when a write must not change this value in place, but make a new version. With mutex() held.
  bool held() const { return version_->arrays.load(std::memory_order_acquire) > 1 || listed_; }
  /// True for a part, a partitioned whole and an import: others may lie in its memory, so it keeps its version, and a
  /// write copies away what others hold. Never changes.
  bool stays() const { return stays_; }
  bool imported() const { return stays_ && version_->buffer().import(); }

  Ref<History> history;             ///< null: no gradient is wanted
  std::int32_t history_output = 0;  ///< which output of it
  bool leaf = false;                ///< with_grad() was called on it

  /// Another array that shows the present value, and keeps it whatever is written to this one. With mutex() held.
  Ref<Array> snapshot();

  const Ref<ShareGroup>& group() const { return mutex_.group(); }
  /// Where its elements lie. With mutex() held, or of one that stays.
  Stretch stretch() const;
  /// Makes it an array that stays, whose elements begin at `base_offset`. Before anyone else sees it.
  void join(Ref<ShareGroup> group, std::int64_t base_offset);

 private:
  Engine* engine_;
  Device device_;
  DType dtype_;
  bool listed_ = false;  ///< a snapshot that shows the memory of arrays that stay
  bool stays_ = false;
  Dims shape_;
  std::int64_t base_offset_ = 0;
  Ref<Version> version_;
  ArrayMutex mutex_;
};

}  // namespace sluice
