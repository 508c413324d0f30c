// A dry run: operations on arrays are resolved and recorded for gradients, and none runs. For autograd/shapes.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <unordered_set>
#include <vector>

#include "sluice/ndarray/push.h"
#include "sluice/ndarray/scope_flags.h"
#include "sluice/resources/draw_notes.h"

namespace sluice {

/// What the calling thread pushes on arrays while a Scope lives. The arrays that it makes have shapes, dtypes, devices
/// and histories, but no elements: later they are refused (Array::absent). Arrays that it found and wrote have, when
/// the scope ends, the values, histories and gradients that they had before. Random streams stay as they are. Used by
/// one thread.
class DryRun {
 public:
  class Scope : ScopeGuard {
   public:
    /// `tape` is the tape's next sequence number: what is older was recorded outside.
    Scope(DryRun& run, std::uint64_t tape);
    ~Scope();

   private:
    DryRun* outer_;
    DrawNotes::Still draws_;
  };

  /// The calling thread's innermost; null: its pushes run.
  static DryRun* current() noexcept;
  /// Throws ArrayError if the array has not the elements that the program means: this or another dry run made it or
  /// wrote it. `who` asks for them.
  static void check_elements(Array& array, const char* who, const std::source_location& where);

  /// The `tape` that the scope was given.
  std::uint64_t tape() const { return tape_; }
  /// To be called when the scope ends, the latest first. It must not throw.
  void at_end(std::function<void()> undo) { undo_.push_back(std::move(undo)); }
  /// A push that was checked. Throws what a real one throws for its arrays.
  void push(const ArrayPush& push, const char* name, const PushOptions& options, std::vector<OperationRecord>* records);

  /// The most bytes that arrays made in the run and scratch memory had at once, if each operation ran before the next
  /// was pushed.
  std::size_t peak_bytes() const { return peak_; }
  /// Bytes of the arrays that live now.
  std::size_t live_bytes() const { return live_->load(std::memory_order_relaxed); }
  /// The largest scratch memory of one operation, by layer.
  const std::map<const detail::Layer*, std::size_t>& scratch() const { return scratch_; }

 private:
  void note(const Ref<Array>& array);
  void make_absent(Array& array) const;

  std::vector<std::function<void()>> undo_;
  std::unordered_set<const Array*> written_;  ///< found arrays; `undo_` keeps them
  std::map<const detail::Layer*, std::size_t> scratch_;
  /// Shared with the arrays, which may live longer.
  std::shared_ptr<std::atomic<std::size_t>> live_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::size_t peak_ = 0;
  std::uint64_t tape_ = 0;
};

}  // namespace sluice
