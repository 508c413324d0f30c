// Whether a device that a program names is there.
#pragma once

#include <source_location>
#include <string_view>

#include "sluice/engine/device.h"

namespace sluice::detail {

/// Throws ArrayError where the default engine has no such device, with the reason if that is known: "[fill] main.cc:41:
/// no CUDA device: the driver says: ...".
void check_device(std::string_view operation, Device device, const std::source_location& where);

}  // namespace sluice::detail
