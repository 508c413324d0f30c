// cuBLASLt: descriptors, checks, and the product by plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "cublasLt.h"
#include "libraries.h"

struct cublasLtContext {
  cuda_double::LibraryHandle handle;
};

namespace cuda_double {
namespace {

struct Layout {
  std::uint64_t rows, columns, stride;
  std::int64_t leading;
  std::int32_t batch;
  std::uint32_t type, order;
};
struct Desc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t pointer_mode, transpose_a, transpose_b;
  std::uint32_t epilogue;
  void* bias;
  std::int64_t bias_stride;
  std::int32_t bias_type;  ///< -1: D's
};
struct Preference {
  std::uint64_t workspace;
  std::uint32_t alignment[4];
};
/// What a chosen algorithm relies on.
struct Algorithm {
  std::uint64_t mark, workspace;
  std::uint32_t alignment[4];
  std::uint64_t m, n, k;
};
constexpr std::uint64_t kMark = 0x53'4C'55'49'43'45'4C'54;

template <class T, class Opaque>
T read(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(opaque->data));
  T value;
  std::memcpy(&value, opaque->data, sizeof value);
  return value;
}
template <class T, class Opaque>
void write(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(opaque->data));
  std::memcpy(opaque->data, &value, sizeof value);
}
template <class T>
bool take(T& field, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof field) return false;
  std::memcpy(&field, value, bytes);
  return true;
}
template <class Opaque, class T>
cublasStatus_t make(Opaque** made, const T& value) {
  if (!made) return CUBLAS_STATUS_INVALID_VALUE;
  *made = new (std::nothrow) Opaque{};
  if (!*made) return CUBLAS_STATUS_ALLOC_FAILED;
  write(*made, value);
  return CUBLAS_STATUS_SUCCESS;
}

/// The shape of a call, and the types that it computes with.
struct Product {
  Desc desc;
  Layout a, b, c, d;
  std::uint64_t m, n, k;
};

bool has_bias(std::uint32_t epilogue) { return (epilogue & (4 | 256 | 512)) != 0; }

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

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/// The addresses are those of kernels.
struct Work {
  Product p;
  const void *a, *b, *c;
  void *d, *bias, *workspace;
  std::size_t workspace_bytes;
  double alpha, beta;
};

template <class T>
void multiply(const Work& w) {
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
  // A card leaves there what it likes.
  if (w.workspace_bytes > 0) std::memset(w.workspace, 0xAB, w.workspace_bytes);
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

cublasStatus_t status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return CUBLAS_STATUS_SUCCESS;
    case cudaErrorInvalidValue:
      return CUBLAS_STATUS_INVALID_VALUE;
    case cudaErrorMemoryAllocation:
      return CUBLAS_STATUS_ALLOC_FAILED;
    case cudaErrorNotSupported:
      return CUBLAS_STATUS_NOT_SUPPORTED;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return CUBLAS_STATUS_NOT_INITIALIZED;
    default:
      return CUBLAS_STATUS_EXECUTION_FAILED;
  }
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
  if (is_refused_at_random(world)) throw Refused{cudaErrorNotSupported};
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return status_of(call(Fault::library, [&](World& world, ThreadState& thread) {
    if (!handle) throw Refused{cudaErrorInvalidValue};
    auto made = std::make_unique<cublasLtContext>();
    make_library_handle(world, thread, made->handle, "cublasLtCreate");
    *handle = made.release();
  }));
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

std::size_t cublasLtGetVersion() { return 130000; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
#define STATUS(name) \
  case name:         \
    return #name
    STATUS(CUBLAS_STATUS_SUCCESS);
    STATUS(CUBLAS_STATUS_NOT_INITIALIZED);
    STATUS(CUBLAS_STATUS_ALLOC_FAILED);
    STATUS(CUBLAS_STATUS_INVALID_VALUE);
    STATUS(CUBLAS_STATUS_ARCH_MISMATCH);
    STATUS(CUBLAS_STATUS_MAPPING_ERROR);
    STATUS(CUBLAS_STATUS_EXECUTION_FAILED);
    STATUS(CUBLAS_STATUS_INTERNAL_ERROR);
    STATUS(CUBLAS_STATUS_NOT_SUPPORTED);
    STATUS(CUBLAS_STATUS_LICENSE_ERROR);
#undef STATUS
  }
  return "unknown status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  return make(desc, Desc{compute, scale, 0, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, nullptr, 0, -1});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
  Desc d = read<Desc>(desc);
  bool taken = false;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      taken = take(d.compute, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      taken = take(d.scale, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      taken = take(d.pointer_mode, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSA:
      taken = take(d.transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      taken = take(d.transpose_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      taken = take(d.epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      taken = take(d.bias, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      taken = take(d.bias_stride, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      taken = take(d.bias_type, value, bytes);
      break;
  }
  if (!taken) return CUBLAS_STATUS_INVALID_VALUE;
  write(desc, d);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  return make(layout, Layout{rows, columns, 0, leading, 1, static_cast<std::uint32_t>(type), CUBLASLT_ORDER_COL});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  Layout l = read<Layout>(layout);
  bool taken = false;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      taken = take(l.type, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      taken = take(l.order, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      taken = take(l.rows, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      taken = take(l.columns, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_LD:
      taken = take(l.leading, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      taken = take(l.batch, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      taken = take(l.stride, value, bytes);
      break;
  }
  if (!taken) return CUBLAS_STATUS_INVALID_VALUE;
  write(layout, l);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference, Preference{0, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
  Preference p = read<Preference>(preference);
  std::uint32_t not_used = 0;
  bool taken = false;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      taken = take(p.workspace, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      taken = take(p.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      taken = take(not_used, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      taken = value && bytes == 8;
      break;
  }
  if (!taken) return CUBLAS_STATUS_INVALID_VALUE;
  write(preference, p);
  return CUBLAS_STATUS_SUCCESS;
}

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
    issue_library_kernel(world, stream, kName, operands, [w] {
      if (w.p.desc.scale == CUDA_R_64F) {
        multiply<double>(w);
      } else {
        multiply<float>(w);
      }
    });
  }));
}
