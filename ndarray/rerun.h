// Rerun: a stretch of pushes that is noted, so that it can be run again on the values that it saw. For
// autograd/checkpoint.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "sluice/ndarray/push.h"
#include "sluice/ndarray/scope_flags.h"

namespace sluice {

/// The arrays that a stretch of pushes found, each with the value that it had at its first use there. Used by one
/// thread at a time.
class Rerun {
 public:
  class Scope : ScopeGuard {
   public:
    /// The thread's pushes are noted; with `again` they see what was noted: an array that the stretch found is
    /// replaced by another with its value of then, which also takes what is written to it.
    Scope(Rerun& rerun, bool again);
    ~Scope();

   private:
    friend class Rerun;
    Scope* outer_;
    Rerun& rerun_;
    bool again_;
    std::unordered_map<Array*, Ref<Array>> replaced_;
    std::unordered_set<Array*> made_;
  };

  /// What the calling thread is to use in place of x: x, where nothing is run again.
  static NDArray seen(const NDArray& x) {
    return (current_scope().flags & kRerunFlag) != 0 && x.defined() ? look_up(x) : x;
  }
  /// The calling thread has made the array: it was not found.
  static void made(const NDArray& x);
  /// A push under the flag: `push` is called with the operands that it is to use.
  static Ticket push(const ArrayPush& given, Ticket (*push)(const ArrayPush& push));

 private:
  static NDArray look_up(const NDArray& x);

  struct Found {
    Ref<Array> array;  ///< kept, so that no other has its address
    Ref<Array> value;
  };
  std::unordered_map<Array*, Found> found_;
};

}  // namespace sluice
