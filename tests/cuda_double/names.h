// Names of functions, for reports.
#pragma once

#include <string>

namespace cuda_double {

/// A kernel's name from the symbols of the file that it is in, without its arguments. Slow: for reports.
std::string name_of_kernel(const void* kernel);

}  // namespace cuda_double
