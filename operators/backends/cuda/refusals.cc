// What headers of arrays call in the library that has arrays. The backend is loaded beside it and takes nothing from
// it, so it has this itself; weak, for the double, which is linked with that library.
#include <stdexcept>
#include <string>

#include "sluice/ndarray/dims.h"

namespace sluice {

__attribute__((weak)) void detail::refuse_axis() {
  throw std::invalid_argument("more than " + std::to_string(kMaxRank) + " axes");
}

}  // namespace sluice
