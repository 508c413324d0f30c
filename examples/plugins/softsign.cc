// A unary operator: softsign(x) = x / (1 + |x|).
#include "sluice/operators/define.h"

namespace mine {

SLUICE_DEFINE_UNARY(Softsign, softsign, floating, x / (1 + abs(x)), g / square(1 + abs(x)))

/// Adds the row when this library is loaded, for programs that find it by its name.
[[maybe_unused]] const sluice::Operator& softsign_row = Softsign::row();

}  // namespace mine
