// A reduction: soft_maximum(x) = log(sum(exp(x))), and -infinity over no elements.
#include "sluice/operators/define.h"

namespace mine {

SLUICE_DEFINE_REDUCTION(SoftMaximum, soft_maximum, floating, log(T(0)), maximum(a, b) + log(1 + exp(-abs(a - b))),
                        exp(x - y) * g)

[[maybe_unused]] const sluice::Operator& soft_maximum_row = SoftMaximum::row();

}  // namespace mine
