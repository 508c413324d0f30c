// cuBLASLt: the product by plain loops.
#include <algorithm>
#include <cmath>

#include "cublaslt_double.h"

namespace cuda_double {
namespace {

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

template <class T>
void multiply_as(const Work& w) {
  const Product& p = w.p;
  const bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto type = [](const Layout& l) { return static_cast<cudaDataType_t>(l.type); };
  const auto element = [&](const void* base, const Layout& l, std::uint64_t batch, std::uint64_t row,
                           std::uint64_t column) {
    const double value = load(base, batch * l.stride + column * static_cast<std::uint64_t>(l.leading) + row, type(l));
    return static_cast<T>(tf32 ? to_tf32(static_cast<float>(value)) : value);
  };
  const auto a = [&](std::uint64_t batch, std::uint64_t i, std::uint64_t k) {
    return p.desc.transpose_a ? element(w.a, p.a, batch, k, i) : element(w.a, p.a, batch, i, k);
  };
  const auto b = [&](std::uint64_t batch, std::uint64_t k, std::uint64_t j) {
    return p.desc.transpose_b ? element(w.b, p.b, batch, j, k) : element(w.b, p.b, batch, k, j);
  };
  const auto bias_type = p.desc.bias_type < 0 ? type(p.d) : static_cast<cudaDataType_t>(p.desc.bias_type);
  // A card leaves there what it likes. Not all of it: many tests multiply, and the workspace is large.
  if (w.workspace_bytes > 0) std::memset(w.workspace, 0xAB, std::min<std::size_t>(w.workspace_bytes, 4096));
  for (std::uint64_t batch = 0; batch < static_cast<std::uint64_t>(p.d.batch); ++batch) {
    const auto bias_at = batch * static_cast<std::uint64_t>(p.desc.bias_stride);
    if (p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA || p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      const bool of_a = p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
      for (std::uint64_t i = 0; i < (of_a ? p.m : p.n); ++i) {
        T sum = 0;
        for (std::uint64_t k = 0; k < p.k; ++k) sum += of_a ? a(batch, i, k) : b(batch, k, i);
        store(w.bias, bias_at + i, bias_type, static_cast<double>(sum));
      }
    }
    for (std::uint64_t j = 0; j < p.n; ++j) {
      for (std::uint64_t i = 0; i < p.m; ++i) {
        T sum = 0;
        for (std::uint64_t k = 0; k < p.k; ++k) sum += a(batch, i, k) * b(batch, k, j);
        sum *= static_cast<T>(w.alpha);
        // With beta 0 what C holds does not count, not even where it is NaN.
        if (w.beta != 0) {
          const std::uint64_t at = batch * p.c.stride + j * static_cast<std::uint64_t>(p.c.leading) + i;
          sum += static_cast<T>(w.beta) * static_cast<T>(load(w.c, at, type(p.c)));
        }
        if (p.desc.epilogue & CUBLASLT_EPILOGUE_BIAS) sum += static_cast<T>(load(w.bias, bias_at + i, bias_type));
        if (p.desc.epilogue & CUBLASLT_EPILOGUE_RELU) sum = sum < 0 ? T{0} : sum;  // NaN stays
        if (p.desc.epilogue & CUBLASLT_EPILOGUE_GELU) sum = static_cast<T>(gelu(static_cast<double>(sum)));
        store(w.d, batch * p.d.stride + j * static_cast<std::uint64_t>(p.d.leading) + i, type(p.d),
              static_cast<double>(sum));
      }
    }
  }
}

}  // namespace

void multiply(const Work& work) {
  if (work.p.desc.scale == CUDA_R_64F) {
    multiply_as<double>(work);
  } else {
    multiply_as<float>(work);
  }
}

}  // namespace cuda_double
