// What this backend is made of, for SLUICE_REPORT=1.
#pragma once

#include <string>

namespace sluice::cpu_backend {

/// "oneDNN 2.6.3; OpenBLAS 0.3.21; zlib 1.2.13": the libraries that are loaded.
std::string libraries_text();

}  // namespace sluice::cpu_backend
