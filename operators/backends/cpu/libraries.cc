#include "sluice/operators/backends/cpu/libraries.h"

#include <cblas.h>
#include <dnnl.h>

#include <cstdio>  // for jpeglib.h

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#define SLUICE_TEXT_OF(x) #x
#define SLUICE_TEXT(x) SLUICE_TEXT_OF(x)

namespace sluice::cpu_backend {

std::string libraries_text() {
  const dnnl_version_t& version = *dnnl_version();
  std::string blas = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH .."
  if (const std::size_t name = blas.find(' '); name != std::string::npos)
    blas = blas.substr(0, blas.find(' ', name + 1));
  return "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.patch) + "; " + blas + "; zlib " + zlibVersion() + "; libpng " +
         png_get_libpng_ver(nullptr) + "; libjpeg-turbo " SLUICE_TEXT(LIBJPEG_TURBO_VERSION);
}

}  // namespace sluice::cpu_backend
