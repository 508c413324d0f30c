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
    Scope(DrawNotes& notes, bool again);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scope* outer_;
    friend class RandomStream;
    DrawNotes& notes_;
    bool again_;
    std::size_t next_ = 0;
  };

 private:
  friend class RandomStream;
  std::vector<RandomKey> keys_;
};

}  // namespace sluice
