// comms: the collectives of a function, without running it (operators/communication.h).
#pragma once

#include <memory>
#include <source_location>
#include <utility>
#include <vector>

#include "sluice/autograd/shapes.h"
#include "sluice/operators/communication.h"

namespace sluice {

/// Every collective of f(), which is called once: forward, backward and steps, in the order of the calls. What goes to
/// one place alone is none and is not listed: gathered(x), and the sums of nn::clip_gradients, a number a shard. It
/// is a dry run (shapes.h): arrays that f() finds stay as they are, and what asks for elements throws. Throws what f()
/// throws. Does not block.
template <class F>
std::vector<Communication> comms(F&& f, std::source_location where = std::source_location::current()) {
  const auto seen = std::make_shared<Communications>();
  const InterpreterScope scope(seen);
  shapes_of(std::forward<F>(f), where);
  return seen->list();
}

}  // namespace sluice
