// Recording calls and views of arrays of owners (ndarray/owner.h). Internal to autograd/.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sluice/autograd/node.h"

namespace sluice::autograd {

/// True for the node of a view of an owner's array. It keeps no value, and is used however often the tape is run.
bool is_view(const Node& node);

/// Makes a call that has an operand of an owner, by `ask`, and in grad mode records it as one node, before anything of
/// it is pushed. Gives the results, which are arrays of their own; none of a call with targets. Throws what `ask`
/// throws, and ArrayError for a write that cannot be recorded; then nothing is recorded.
std::vector<NDArray> record_owned(const Operator& op, std::span<const NDArray* const> inputs,
                                  const Attributes& attributes, std::span<const NDArray> targets,
                                  const Updates& updates, const std::source_location& where,
                                  const std::function<std::vector<NDArray>()>& ask);

/// A node for a push that is recorded: that of a checkpoint's first call, in its second. True from computed_again(): it
/// is there already, and only wants what it has not kept.
Ref<Node> node_for_push();
bool computed_again();

}  // namespace sluice::autograd
