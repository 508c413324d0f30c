// Resolution: what a push on arrays means at its instant. It finds the versions, the accesses, and what changes beside
// elements.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "sluice/ndarray/array_call.h"
#include "sluice/ndarray/push.h"
#include "sluice/ndarray/short_list.h"

namespace sluice {

/// Made by push_arrays for one push. Everything is called with the locks of the push's arrays held, from check() to
/// the engine's commit. What it lets go of goes when it is destroyed, after the locks.
class Resolution {
 public:
  Resolution(const ArrayPush& push, const char* name) : push_(push), name_(name) {}
  Resolution(const Resolution&) = delete;
  Resolution& operator=(const Resolution&) = delete;

  /// Throws ArrayError where the push is not allowed to write. Called first.
  void check();
  /// True if the value of an output is held by a tape or a snapshot.
  bool outputs_held() const;
  /// May throw ArrayError (of imports), and bad_alloc. Nothing has changed then.
  void resolve();
  /// Calls f(array) for each array that apply() will give another version.
  template <class F>
  void each_moved(F&& f) const {
    if (!rare_) return;
    for (const Move& move : rare_->moves) f(*move.array);
    for (const Away& away : rare_->aways) f(*away.array);
  }
  /// Sets what the push changes beside elements: versions and histories.
  void apply() noexcept;

  std::span<const Access> accesses() const { return {accesses_.begin(), accesses_.size()}; }
  std::unique_ptr<ArrayCall> call;

 private:
  struct Move {  ///< an output's array goes to a new version
    Array* array;
    Ref<Version> from, version;
  };
  struct Away {  ///< a held value of memory that others lie in, copied out
    Ref<Array> array;
    Ref<Version> from, version;
  };
  struct Written {  ///< where an output lies; no two overlap
    Stretch where;
    std::size_t output;
  };

  void resolve_output(std::size_t index);
  /// True if an earlier output moved the array. Whoever held its value may be gone since then, because a snapshot goes
  /// without a lock, but all outputs of one array go to one version.
  bool moves(const Array& array) const { return rare_ && rare_->moved.count(&array) != 0; }
  void move_output(Array& array, bool overwrites, Resolved& operand);
  void copy_away();
  void pack_inputs();
  void use(const Version& version, AccessMode mode) {
    version.each_variable([&](const Variable& v) { accesses_.emplace_back(v.get(), mode); });
  }
  bool use_foreign(const Import& memory, AccessMode mode);
  void check_opaque();
  bool check_recorded() const;
  void record();
  void keep(const Needs& needs, std::size_t input);
  void keep_input(std::size_t index);
  bool keeps_output(std::size_t index) const { return !kept_outputs_.empty() && kept_outputs_[index]; }
  void keep_outputs();
  bool recorded() const { return push_.tape && push_.tape->history; }

  const ArrayPush& push_;
  const char* const name_;
  ShortList<Access, 8> accesses_;
  ShortList<Written, 2> written_;
  bool records_ = false;             ///< the push is recorded for gradients
  bool stay_ = false;                ///< there is an output whose array stays
  ShortList<bool, 8> kept_outputs_;  ///< true: the tape keeps this output; empty: it keeps none
  /// What most pushes have none of.
  struct Rare {
    std::vector<Move> moves;
    std::map<const Array*, std::size_t> moved;  ///< where in `moves`
    std::vector<Away> aways;
    std::vector<Ref<History>> dropped;  ///< room for those that outputs lose: they go when the locks are open
  };
  Rare& rare() { return *(rare_ ? rare_ : rare_ = std::make_unique<Rare>()); }
  std::unique_ptr<Rare> rare_;
};

}  // namespace sluice
