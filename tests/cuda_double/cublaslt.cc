// cuBLASLt: what a product must be, the choice of an algorithm, and the call.
#include <algorithm>

#include "cublaslt_double.h"

namespace cuda_double {
namespace {

/// No preference tells the library of a bias's alignment, and some of its kernels have failed with a lesser one.
constexpr std::uintptr_t kBiasAlignment = 16;

/// Says what is wrong with the shapes; empty: nothing.
std::string wrong_shape(const Product& p) {
  const auto in_words = [](const Layout& l) {
    return std::to_string(l.rows) + " x " + std::to_string(l.columns) + ", leading " + std::to_string(l.leading);
  };
  const auto a_columns = p.desc.transpose_a ? p.a.rows : p.a.columns;
  const auto b_rows = p.desc.transpose_b ? p.b.columns : p.b.rows;
  const auto b_columns = p.desc.transpose_b ? p.b.rows : p.b.columns;
  const auto a_rows = p.desc.transpose_a ? p.a.columns : p.a.rows;
  const std::string all =
      "A " + in_words(p.a) + "; B " + in_words(p.b) + "; C " + in_words(p.c) + "; D " + in_words(p.d);
  if (a_columns != b_rows || a_rows != p.m || b_columns != p.n || p.c.rows != p.m || p.c.columns != p.n) {
    return "sizes that do not fit: " + all;
  }
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.d}) {
    if (l->leading < static_cast<std::int64_t>(l->rows)) return "a leading dimension that is too small: " + all;
    if (l->batch != p.d.batch || l->batch < 1) return "batches of different numbers";
  }
  return {};
}

bool is_supported(const Product& p) {
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.d}) {
    if (l->order != CUBLASLT_ORDER_COL) return false;
    if (l->batch > 65535) return false;  // many kernels have the batch on an axis of the grid that ends there
  }
  switch (p.desc.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      break;
    default:
      return false;
  }
  if (p.a.type != p.b.type || p.c.type != p.d.type || p.desc.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return false;
  const auto type = static_cast<cudaDataType_t>(p.a.type), result = static_cast<cudaDataType_t>(p.d.type);
  const bool is_half = type == CUDA_R_16F || type == CUDA_R_16BF;
  switch (p.desc.compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return type == CUDA_R_64F && result == CUDA_R_64F && p.desc.scale == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return p.desc.scale == CUDA_R_32F && (type == CUDA_R_32F || is_half) &&
             (result == type || (is_half && result == CUDA_R_32F));
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return p.desc.scale == CUDA_R_32F && type == CUDA_R_32F && result == CUDA_R_32F;
    default:
      return false;
  }
}

/// The bytes from the first element to behind the last.
std::size_t extent(const Layout& l) {
  if (l.rows == 0 || l.columns == 0) return 0;
  const std::size_t last =
      static_cast<std::size_t>(l.batch - 1) * l.stride + (l.columns - 1) * static_cast<std::size_t>(l.leading) + l.rows;
  return last * element_bytes(static_cast<cudaDataType_t>(l.type));
}

Product product_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  if (!desc || !a || !b || !c || !d) throw Refused{cudaErrorInvalidValue};
  Product p{read<Desc>(desc), read<Layout>(a), read<Layout>(b), read<Layout>(c), read<Layout>(d), 0, 0, 0};
  p.m = p.d.rows;
  p.n = p.d.columns;
  p.k = p.desc.transpose_a ? p.a.rows : p.a.columns;
  return p;
}

void check(World& world, const Product& p, const char* call) {
  if (const std::string wrong = wrong_shape(p); !wrong.empty()) {
    world.refuse(cudaErrorInvalidValue, std::string(call) + " with " + wrong);
  }
  if (!is_supported(p)) throw Refused{cudaErrorNotSupported};
  const bool is_wide = static_cast<cudaDataType_t>(p.d.type) == CUDA_R_64F;
  if (is_wide && p.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !world.options.epilogues_f64) {
    throw Refused{cudaErrorNotSupported};
  }
  if (is_refused_at_random(world) != 0) throw Refused{cudaErrorNotSupported};
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (found) *found = 0;
  return status_of(call(Fault::library, [&](World& world, ThreadState&) {
    if (!handle || !preference || wanted < 1 || !results || !found) throw Refused{cudaErrorInvalidValue};
    const Product p = product_of(desc, a, b, c, d);
    check(world, p, "cublasLtMatmulAlgoGetHeuristic");
    const auto given = read<Preference>(preference);
    if (given.schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) {
      world.report(
          "cublasLtMatmulAlgoGetHeuristic may choose to keep partial sums in the type of the result: "
          "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK");
    }
    Algorithm algorithm{kMark, std::min<std::uint64_t>(given.workspace, 4096), {}, p.m, p.n, p.k};
    std::copy_n(given.alignment, 4, algorithm.alignment);
    results[0] = {};
    write(&results[0].algo, algorithm);
    results[0].workspaceSize = algorithm.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
    *found = 1;
  }));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream_handle) {
  constexpr const char* kName = "cublasLtMatmul";
  return status_of(call(Fault::library, [&](World& world, ThreadState& thread) {
    if (!handle || !alpha || !beta || !a || !b || !d) throw Refused{cudaErrorInvalidValue};
    const StreamHandle stream = library_stream(world, thread, handle->handle, stream_handle, kName);
    const Product p = product_of(desc, a_layout, b_layout, c_layout, d_layout);
    check(world, p, kName);
    if (world.owner(alpha) >= 0 || world.owner(beta) >= 0) {
      world.refuse(cudaErrorInvalidValue, std::string(kName) + " with alpha or beta on a device, in host mode");
    }
    Algorithm algorithm{kMark, 0, {}, p.m, p.n, p.k};
    const void* const addresses[] = {a, b, c ? c : d, d};
    const Layout* const layouts[] = {&p.a, &p.b, &p.c, &p.d};
    for (int i = 0; i < 4; ++i) {
      algorithm.alignment[i] = static_cast<std::uint32_t>(element_bytes(static_cast<cudaDataType_t>(layouts[i]->type)));
    }
    if (algo) {
      algorithm = read<Algorithm>(algo);
      if (algorithm.mark != kMark || algorithm.m != p.m || algorithm.n != p.n || algorithm.k != p.k) {
        world.refuse(cudaErrorInvalidValue, std::string(kName) + " with an algorithm that was chosen for other sizes");
      }
    }
    for (int i = 0; i < 4; ++i) {
      if (algorithm.alignment[i] == 0 || reinterpret_cast<std::uintptr_t>(addresses[i]) % algorithm.alignment[i] == 0) {
        continue;
      }
      world.refuse(cudaErrorInvalidValue, std::string(kName) + " with an operand that is not aligned to " +
                                              std::to_string(algorithm.alignment[i]) +
                                              " bytes, as its algorithm wants");
    }
    if (algorithm.workspace > workspace_bytes || (workspace_bytes > 0 && !workspace)) {
      world.refuse(cudaErrorInvalidValue, std::string(kName) + " with a workspace of " +
                                              std::to_string(workspace_bytes) + " bytes where its algorithm needs " +
                                              std::to_string(algorithm.workspace));
    }
    Work w{p, {}, {}, {}, {}, {}, {}, algorithm.workspace, 0, 0};
    w.alpha = load(alpha, 0, p.desc.scale);
    w.beta = load(beta, 0, p.desc.scale);
    if (w.beta != 0 && !c) throw Refused{cudaErrorInvalidValue};
    const bool bias = has_bias(p.desc.epilogue), grows = p.desc.epilogue >= CUBLASLT_EPILOGUE_BGRADA;
    if (bias && !p.desc.bias)
      world.refuse(cudaErrorInvalidValue, std::string(kName) + " with an epilogue without its bias");
    if (bias && !grows && reinterpret_cast<std::uintptr_t>(p.desc.bias) % kBiasAlignment != 0) {
      world.refuse(cudaErrorInvalidValue, std::string(kName) + " with a bias that is not aligned to " +
                                              std::to_string(kBiasAlignment) + " bytes");
    }
    const auto bias_type =
        static_cast<cudaDataType_t>(p.desc.bias_type < 0 ? static_cast<int>(p.d.type) : p.desc.bias_type);
    const std::size_t bias_count =
        static_cast<std::size_t>(p.d.batch - 1) * static_cast<std::size_t>(p.desc.bias_stride) +
        (p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m);
    const Operand operands[] = {
        {a, extent(p.a), false},
        {b, extent(p.b), false},
        {w.beta != 0 ? c : nullptr, extent(p.c), false},
        {d, extent(p.d), true},
        {bias ? p.desc.bias : nullptr, bias_count * element_bytes(bias_type), grows},
        {workspace, algorithm.workspace, true, false},
    };
    const auto resolved = [](const void* address) { return address ? detail::resolve(address) : nullptr; };
    w.a = resolved(a);
    w.b = resolved(b);
    w.c = resolved(c);
    w.d = resolved(d);
    w.bias = resolved(p.desc.bias);
    w.workspace = resolved(workspace);
    issue_library_kernel(world, stream, kName, operands, [w] { multiply(w); });
  }));
}
