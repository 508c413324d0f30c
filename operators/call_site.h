// For functions that are made of several operators.
#pragma once

#include <source_location>

#include "sluice/engine/scope.h"

namespace sluice {

/// While it lives, operators that the thread calls name this place in the source, unless an outer one is named already.
class CallSite {
 public:
  explicit CallSite(const std::source_location& where) : saved_(current_scope().where) {
    if (saved_.line() == 0) current_scope().where = where;
  }
  ~CallSite() { current_scope().where = saved_; }
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

 private:
  std::source_location saved_;
};

}  // namespace sluice
