// DrawNotes: the draws of a stretch of a program, which is run again later with the same numbers.
#pragma once

#include <cstddef>
#include <vector>

#include "sluice/resources/philox.h"

namespace sluice {

/// The keys that the calling thread's streams give while a Scope lives. Used by one thread at a time.
class DrawNotes {
 public:
  class Scope {
   public:
    /// With `again`, RandomStream::next gives the keys that were noted, in their order, and leaves the streams as they
    /// are; it throws std::logic_error beyond the last.
    Scope(DrawNotes& notes, bool again) : Scope(&notes, again) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   protected:
    Scope(DrawNotes* notes, bool again);

   private:
    Scope* outer_;
    friend class RandomStream;
    friend class DrawNotes;
    DrawNotes* notes_;  ///< null: of a Still
    bool again_, still_;
    std::size_t next_ = 0;
  };
  /// While it lives, the calling thread's draws leave the streams as they are: each gives the key that is the next.
  class Still : Scope {
   public:
    Still() : Scope(nullptr, false) {}
  };

  /// Whether the calling thread's streams repeat noted keys; whether they stay as they are.
  static bool again() noexcept;
  static bool still() noexcept;

 private:
  friend class RandomStream;
  std::vector<RandomKey> keys_;
};

}  // namespace sluice
