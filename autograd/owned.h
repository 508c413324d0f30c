// Recording calls and views of arrays of owners (ndarray/owner.h). Internal to autograd/.
#pragma once

#include "sluice/autograd/node.h"

namespace sluice::autograd {

/// True for the node of a view of an owner's array. It keeps no value, and is used however often the tape is run.
bool is_view(const Node& node);

}  // namespace sluice::autograd
