#include "sluice/operators/backends/cpu/libraries.h"

#include <cblas.h>
#include <dnnl.h>
#include <zlib.h>

namespace sluice::cpu_backend {

std::string libraries_text() {
  const dnnl_version_t& version = *dnnl_version();
  std::string blas = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH .."
  if (const std::size_t name = blas.find(' '); name != std::string::npos)
    blas = blas.substr(0, blas.find(' ', name + 1));
  return "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.patch) + "; " + blas + "; zlib " + zlibVersion();
}

}  // namespace sluice::cpu_backend
