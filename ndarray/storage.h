// What lies behind the handles: buffers, versions, arrays (docs/semantics.md, 7). For operators and autograd; programs
// use NDArray.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/array_mutex.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/imports.h"
#include "sluice/ndarray/ref.h"
#include "sluice/ndarray/sharing.h"
#include "sluice/ndarray/spec.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/object_pool.h"

namespace sluice {

/// Memory of a device. It is taken from the pool when the op that produces it first asks for it, and given back when
/// the last reference goes. Closures of ops hold references: on a lane of threads until the op is over. On a lane with
/// a stream an op lets go of memory of the device when it has been issued, and notes the use here; so the last reader's
/// issue gives the memory back, with the points of streams up to which it is used (resources/device_pool.h).
class Buffer final : public RefCounted, public Pooled<Buffer> {
 public:
  Buffer(Device device, std::size_t bytes) : bytes_(bytes), device_(device) {}
  /// Memory that belongs to `owner` alone. Writing is allowed.
  Buffer(Device device, std::size_t bytes, void* data, std::shared_ptr<void> owner);
  /// Memory that the program may import again.
  Buffer(Device device, std::unique_ptr<Import> import);
  /// Memory of a device that has streams; with `pinned`, host memory of cpu(0) that its streams copy from and to.
  Buffer(DevicePool& pool, bool pinned, std::size_t bytes);
  ~Buffer() override;

  /// The address in host memory. The first call allocates. Thread-safe, because writers of different parts may both be
  /// first. Throws std::bad_alloc.
  std::byte* data() {
    std::byte* const there = data_.load(std::memory_order_acquire);
    return there ? there : allocate(nullptr);
  }
  /// The same for an op that is being issued to its stream: a handle to the device's memory, which the host must not
  /// touch. Throws OutOfMemory, if memory is still short when all work issued before is over.
  std::byte* data_for(Context& context);
  /// Notes that work which was issued to a stream before this point uses the memory, which is of a pool and not pinned.
  /// Whoever calls holds a reference. Thread-safe. Throws std::bad_alloc, and nothing is noted then.
  void used(const std::shared_ptr<StreamProgress>& stream, std::uint64_t point);
  Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  /// A number that no other buffer has, whenever it lives: as long as fewer than 2^32 are asked. Never 0. Thread-safe.
  std::uint32_t number();
  /// The import that the memory came from; else null.
  Import* import() const { return foreign_ ? foreign_->import.get() : nullptr; }
  /// True for host memory that streams reach.
  bool pinned() const { return foreign_ && foreign_->pool && device_.kind == DeviceKind::cpu; }
  /// The pool that device memory and pinned memory come from; else null.
  DevicePool* pool() const { return foreign_ ? foreign_->pool : nullptr; }
  /// Another buffer for the same device: in its own memory, or in ordinary host memory (not pinned).
  Ref<Buffer> another(std::size_t bytes) const;

 private:
  std::byte* allocate(Context* context);

  /// What a buffer in ordinary host memory has none of.
  struct Foreign : Pooled<Foreign> {
    std::shared_ptr<void> owner;  ///< the owner of foreign memory, or keeps the pool
    std::unique_ptr<Import> import;
    DevicePool* pool = nullptr;
    DevicePool::Holder holder = 0;  ///< the op that took the memory
    SmallMutex mutex;               ///< for `uses`
    BlockUses uses;
  };

  std::atomic<std::uint32_t> number_{0};  ///< 0: nobody has asked. Lies in the padding of the base
  std::size_t bytes_;
  std::atomic<std::byte*> data_{nullptr};
  std::unique_ptr<Foreign> foreign_;
  Device device_;
};

/// A block for an op that is being issued; without context, for anyone. Throws OutOfMemory, if memory is still short
/// when all work issued before is over. `holder`: as DevicePool::allocate says.
void* allocate_block(DevicePool& pool, DevicePool::Kind kind, std::size_t bytes, Context* context,
                     DevicePool::Holder& holder);

/// A buffer for arrays of the engine on this device. Throws UsageError where the engine has no such device.
Ref<Buffer> new_buffer(Engine& engine, Device device, std::size_t bytes);
/// A buffer in host memory that streams of the device reach.
Ref<Buffer> new_pinned_buffer(Engine& engine, Device device, std::size_t bytes);

/// A stretch of memory, in bytes: within one array or buffer or, for imports, within the whole address space.
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
  /// Orders stretches by where they begin. Stretches that are not empty and do not overlap are so ordered by their ends
  /// too.
  friend bool operator<(const Stretch& a, const Stretch& b) {
    return a.space != b.space ? std::less<>()(a.space, b.space) : a.begin < b.begin;
  }
};

/// One value of an array: a buffer, and the variables by which the engine orders the ops on it. There is one variable;
/// the whole of a partitioned buffer has one for each part, and an import that overlaps several earlier ones has
/// theirs.
class Version final : public RefCounted, public Pooled<Version> {
 public:
  Version(Ref<Buffer> buffer, Variable variable)
      : buffer_(buffer.get()), variable_(std::move(variable)), shared_(std::move(buffer)) {}
  Version(Ref<Buffer> buffer, std::vector<Variable> parts) : Version(std::move(buffer), parts.front()) {
    parts_ = std::make_unique<const std::vector<Variable>>(std::move(parts));
  }
  /// With a buffer of its own, in ordinary host memory.
  Version(Device device, std::size_t bytes, Variable variable)
      : own_(std::in_place, device, bytes), buffer_(&*own_), variable_(std::move(variable)) {}

  Buffer& buffer() const { return *buffer_; }
  /// Calls f(variable) for each variable of the value.
  template <class F>
  void each_variable(F&& f) const {
    if (!parts_) [[likely]] {
      f(variable_);
    } else {
      for (const Variable& part : *parts_) f(part);
    }
  }
  /// The variable, or the first part's.
  const Variable& variable() const { return variable_; }

  /// How many arrays show this value. If there are several, a write makes a new version first.
  std::int32_t arrays() const { return arrays_.load(std::memory_order_acquire); }
  void shown() { arrays_.fetch_add(1, std::memory_order_relaxed); }
  void hidden() noexcept {
    if (arrays_.fetch_sub(1, std::memory_order_acq_rel) == 1 && buffer_->import()) buffer_->import()->hide();
  }

 private:
  std::atomic<std::int32_t> arrays_{0};
  std::optional<Buffer> own_;  ///< what most versions have: it spares an object
  Buffer* const buffer_;
  Variable variable_;
  std::unique_ptr<const std::vector<Variable>> parts_;
  const Ref<Buffer> shared_;  ///< where there is no `own_`
};

/// What made an array's value. Only autograd/ knows what is inside.
class History : public RefCounted {};

namespace detail {
struct Owned;  // owner.h
}

/// The identity that all views share. `version` and `history` are guarded by mutex(), which is recursive because serial
/// mode runs a body inside its push.
class Array final : public RefCounted, public Pooled<Array> {
 public:
  Array(Engine& engine, DType dtype, const Dims& shape, Ref<Version> version);
  /// Of an owner, without a version.
  Array(Engine& engine, const Spec& spec, Ref<detail::Owned> owned);
  ~Array() override;

  ArrayMutex& mutex() { return mutex_; }
  Engine& engine() const { return *engine_; }
  detail::CoreBase& core() const { return *core_; }  ///< the engine's
  Device device() const { return device_; }
  DType dtype() const { return dtype_; }
  /// The shape that the array was made with, row-major from `base_offset`. The gradient of the whole array has it.
  const Dims& shape() const { return shape_; }
  std::int64_t base_offset() const { return base_offset_; }

  /// What is behind it. Dry: a dry run made it (dry_run.h), and it has no elements. Owned: it has no version (owner.h).
  enum class Kind : std::uint8_t { memory, dry, owned };
  Kind kind() const { return kind_; }
  bool absent() const { return kind_ == Kind::dry; }
  /// Called before another thread can see it.
  void set_absent() { kind_ = Kind::dry; }
  /// Of the kind `owned`; else null.
  const Ref<detail::Owned>& owned() const { return owned_; }
  /// Another array of the same owner, whose history stays what it is now. Called with mutex() held.
  Ref<Array> twin();

  /// Of the kinds `memory` and `dry`.
  const Ref<Version>& version() const { return version_; }
  void set_version(Ref<Version> version);
  /// True when a write must not change this value in place but must make a new version. Called with mutex() held.
  bool held() const { return version_->arrays() > 1 || listed_; }
  /// True for a part, a partitioned whole and an import: other arrays may lie in its memory. Such an array keeps its
  /// version, and a write copies held values away. Never changes.
  bool stays() const { return stays_; }
  bool imported() const { return stays_ && version_->buffer().import(); }

  Ref<History> history;             ///< null: no gradient is wanted
  std::int32_t history_output = 0;  ///< which output of `history` the value is
  bool leaf = false;                ///< with_grad() was called on it

  /// Another array that shows the present value, and keeps it when this array is written. Called with mutex() held.
  Ref<Array> snapshot();

  const Ref<ShareGroup>& group() const { return mutex_.group(); }
  /// Where its elements lie. Called with mutex() held, or for an array that stays.
  Stretch stretch() const;
  /// Makes it an array that stays, whose elements begin at `base_offset`. Called before another thread can see it.
  void join(Ref<ShareGroup> group, std::int64_t base_offset);

 private:
  Engine* engine_;
  detail::CoreBase* core_;
  Device device_;
  DType dtype_;
  bool listed_ = false;  ///< it is a snapshot that shows the memory of arrays that stay
  bool stays_ = false;
  Kind kind_ = Kind::memory;
  Dims shape_;
  std::int64_t base_offset_ = 0;
  Ref<Version> version_;
  Ref<detail::Owned> owned_;
  ArrayMutex mutex_;
};

}  // namespace sluice
