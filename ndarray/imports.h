// Memory that a program brings (from_memory): which import lies where, so that operations on overlapping imports keep
// their order (docs/semantics.md, 12).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <utility>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/ref.h"
#include "sluice/ndarray/sharing.h"

namespace sluice {

class Array;
class Import;

/// A variable, and the imports whose operations it orders.
struct ImportRegion final : RefCounted {
  explicit ImportRegion(Variable v) : variable(std::move(v)) {}
  const Variable variable;
  std::vector<Import*> imports;  ///< guarded by ProcessLock::regions; nothing is taken while that is held
};

/// A stretch of foreign memory that an array shows, in the list that an engine's imports are found in.
///
/// Two imports that overlap, and that arrays show at the same time, have a variable in common: the later import takes
/// over variables of the earlier ones (several, where those have none in common). An import whose last array is gone
/// stays in the list until the operations on it have completed. A later import of its memory comes after these, and has
/// nothing else to do with it.
class Import {
 public:
  /// Lists it. `fallback`: the variable to use if it overlaps nothing. Throws std::bad_alloc.
  Import(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner, const Variable& fallback);
  /// Takes it off the list, and hands the owner to the I/O lane to be released there.
  ~Import();
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;

  std::byte* begin() const { return begin_; }
  std::byte* end() const { return end_; }
  const Ref<ShareGroup>& group() const { return group_; }
  std::vector<Variable> variables() const;
  /// The variables of operations on earlier imports that no array shows any more. Called once, after the constructor.
  std::vector<Variable> take_earlier() { return std::move(earlier_); }

  /// Calls f(variable, covered) for each variable. Covered: all memory that it stands for lies in this import, so that
  /// overwriting the import overwrites all of it.
  template <class F>
  void each_variable(F&& f) const {
    for (const Ref<ImportRegion>& region : regions_) f(region->variable, covers(*region));
  }
  /// True if an array shows memory of this import through another one; `recorded`: one that recorded operators wrote.
  bool shared(bool recorded) const;
  /// Notes whether recorded operators wrote to its array.
  void set_recorded(bool recorded) { recorded_.store(recorded, std::memory_order_relaxed); }
  /// Called when no array shows it any more.
  void hide() noexcept;

 private:
  friend struct ImportList;
  bool overlaps(const Import& other) const { return begin_ < other.end_ && other.begin_ < end_; }
  bool covers(ImportRegion& region) const;
  void enter(std::span<Import* const> overlapping, std::span<const Ref<ShareGroup>> groups, const Variable& fallback);
  void leave() noexcept;
  void leave_regions() noexcept;

  std::byte *const begin_, *const end_;
  std::shared_ptr<void> owner_;
  detail::CoreBase* core_;
  std::vector<Ref<ImportRegion>> regions_;
  Ref<ShareGroup> group_;
  std::vector<Variable> earlier_;
  std::uint64_t number_ = 0;
  bool shown_ = true;  ///< guarded by the list
  std::atomic<bool> recorded_{false};
};

/// The array of from_memory().
Ref<Array> import_array(Engine& engine, void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype,
                        Device device, const std::source_location& where);

}  // namespace sluice
