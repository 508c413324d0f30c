// cuBLASLt: handles and descriptors.
#include "cublaslt_double.h"

using namespace cuda_double;

cublasStatus_t cuda_double::status_of(cudaError_t error) {
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

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return status_of(call(Fault::library, [&](World& world, ThreadState& thread) {
    if (!handle) throw Refused{cudaErrorInvalidValue};
    auto made = std::make_unique<cublasLtContext>();
    make_library_handle(world, thread, made->handle, "cublasLtCreate");
    keep_handle(world, made.get());
    *handle = made.release();
  }));
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!handle || !end_handle(handle->handle, handle, "cublasLtDestroy")) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
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
  return make(preference, Preference{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK});
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
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      taken = take(p.schemes, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
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
