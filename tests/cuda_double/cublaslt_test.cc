// The double's cuBLASLt against loops over row-major matrices, and what it refuses.
#include "cublasLt.h"
#include "fixture.h"

namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class CublasLt : public OnDouble {
 protected:
  void SetUp() override {
    OnDouble::SetUp();
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    stream_ = make_stream();
  }
  void TearDown() override {
    cublasLtDestroy(handle_);
    OnDouble::TearDown();
  }
  struct Call {
    std::uint64_t m = 5, n = 7, k = 3;
    std::int64_t lead_a = 5;
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
    std::int32_t batch = 1;
    std::uint32_t alignment = 4;
    std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  };
  cublasStatus_t multiply(const Call& c, const float* a, const float* b, float* d, float beta = 0) {
    cublasLtMatmulDesc_t desc = nullptr;
    EXPECT_EQ(cublasLtMatmulDescCreate(&desc, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc, what, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, c.a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, c.b);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.bias);
    cublasLtMatrixLayout_t la = nullptr, lb = nullptr, ld = nullptr;
    cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, c.a ? c.k : c.m, c.a ? c.m : c.k, c.lead_a);
    cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, c.b ? c.n : c.k, c.b ? c.k : c.n,
                               static_cast<std::int64_t>(c.b ? c.n : c.k));
    cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, c.m, c.n, static_cast<std::int64_t>(c.m));
    const std::pair<cublasLtMatrixLayout_t, std::uint64_t> sizes[] = {
        {la, c.m * c.k}, {lb, c.k * c.n}, {ld, c.m * c.n}};
    for (const auto& [layout, size] : sizes) {
      const auto stride = static_cast<std::int64_t>(size);
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &c.batch, sizeof c.batch);
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    }
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    const std::uint64_t most = 4096;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &c.schemes,
                                         sizeof c.schemes);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    for (int i = 0; i < 4; ++i) {
      const auto attribute =
          static_cast<cublasLtMatmulPreferenceAttributes_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i);
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &c.alignment, sizeof c.alignment);
    }
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, desc, la, lb, ld, ld, preference, 1, &result, &found);
    if (status == CUBLAS_STATUS_SUCCESS) {
      EXPECT_EQ(found, 1);
      void* const workspace = allocate<char>(4096, stream_);
      const float alpha = 1;
      status = cublasLtMatmul(handle_, desc, &alpha, a, la, b, lb, &beta, d, ld, d, ld, &result.algo, workspace, 4096,
                              stream_);
      EXPECT_EQ(cudaFreeAsync(workspace, stream_), cudaSuccess);
    }
    cublasLtMatmulDescDestroy(desc);
    for (const auto& [layout, size] : sizes) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
  }
  static std::vector<float> numbers(std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<int>(i * 5 % 11) - 4);
    return x;
  }

  cublasLtHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

TEST_F(CublasLt, ProductsOfAllTranspositionsAndBatchesAreThoseOfLoops) {
  for (const auto ta : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    for (const auto tb : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      Call c{.lead_a = ta ? 3 : 5, .a = ta, .b = tb, .batch = 2};
      const auto a = numbers(30), b = numbers(42), before = numbers(70);
      float* const d = to_device(before, stream_);
      ASSERT_EQ(multiply(c, to_device(a, stream_), to_device(b, stream_), d, 2), CUBLAS_STATUS_SUCCESS);
      const auto got = to_host(d, 70, stream_);
      for (std::size_t batch = 0; batch < 2; ++batch) {
        for (std::size_t i = 0; i < 5; ++i) {
          for (std::size_t j = 0; j < 7; ++j) {
            float want = 2 * before[batch * 35 + j * 5 + i];
            for (std::size_t k = 0; k < 3; ++k) {
              want += a[batch * 15 + (ta ? i * 3 + k : k * 5 + i)] * b[batch * 21 + (tb ? k * 7 + j : j * 3 + k)];
            }
            ASSERT_EQ(got[batch * 35 + j * 5 + i], want);
          }
        }
      }
    }
  }
}

TEST_F(CublasLt, BiasRunsAlongRowsAndActivationsFollow) {
  const auto a = numbers(15), b = numbers(21), bias = numbers(5);
  float* const on_a = to_device(a, stream_);
  float* const on_b = to_device(b, stream_);
  float* const on_bias = to_device(bias, stream_);
  float* const d = allocate<float>(35, stream_);
  ASSERT_EQ(multiply({}, on_a, on_b, d), CUBLAS_STATUS_SUCCESS);
  const auto plain = to_host(d, 35, stream_);
  ASSERT_EQ(multiply({.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS, .bias = on_bias}, on_a, on_b, d), CUBLAS_STATUS_SUCCESS);
  const auto got = to_host(d, 35, stream_);
  for (std::size_t i = 0; i < 35; ++i) ASSERT_EQ(got[i], std::max(0.0f, plain[i] + bias[i % 5]));
  float* const sums = allocate<float>(5, stream_);
  ASSERT_EQ(multiply({.epilogue = CUBLASLT_EPILOGUE_BGRADA, .bias = sums}, on_a, on_b, d), CUBLAS_STATUS_SUCCESS);
  const auto grown = to_host(sums, 5, stream_);
  for (std::size_t i = 0; i < 5; ++i) ASSERT_EQ(grown[i], a[i] + a[5 + i] + a[10 + i]);
}

TEST_F(CublasLt, WrongCallsAreRefusedByName) {
  float* const a = to_device(numbers(15), stream_);
  float* const b = to_device(numbers(21), stream_);
  float* const d = allocate<float>(35, stream_);
  EXPECT_EQ(multiply({.lead_a = 4}, a, b, d), CUBLAS_STATUS_INVALID_VALUE);
  expect_report({"leading dimension that is too small", "5 x 3, leading 4"});
  EXPECT_EQ(multiply({.lead_a = 6}, a, b, d), CUBLAS_STATUS_INVALID_VALUE);
  expect_report({"cublasLtMatmul reads 68 bytes that are not inside of a block of 60 bytes"});
  EXPECT_EQ(multiply({.alignment = 256}, a, b, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply({.m = 4, .lead_a = 4, .alignment = 16}, a + 1, b, d), CUBLAS_STATUS_INVALID_VALUE);
  expect_report({"not aligned to 16 bytes"});
  EXPECT_EQ(multiply({.epilogue = CUBLASLT_EPILOGUE_BIAS}, a, b, d), CUBLAS_STATUS_INVALID_VALUE);
  expect_report({"without its bias"});
  float* const bias = to_device(numbers(6), stream_);
  EXPECT_EQ(multiply({.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = bias + 1}, a, b, d), CUBLAS_STATUS_INVALID_VALUE);
  expect_report({"a bias that is not aligned to 16 bytes"});
  EXPECT_EQ(multiply({.compute = CUBLAS_COMPUTE_64F}, a, b, d), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(multiply({.schemes = CUBLASLT_REDUCTION_SCHEME_MASK}, a, b, d), CUBLAS_STATUS_SUCCESS);
  expect_report({"partial sums in the type of the result"});
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  stream_ = make_stream();
  EXPECT_EQ(multiply({}, a, b, d), CUBLAS_STATUS_SUCCESS);
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_THAT(cuda_double::take_reports(), Contains(HasSubstr("a handle is shared by two streams")));
  cublasLtHandle_t late = nullptr;
  EXPECT_EQ(cublasLtCreate(&late), CUBLAS_STATUS_SUCCESS);
  expect_report({"cublasLtCreate waits for all work"});
  EXPECT_EQ(cublasLtDestroy(late), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, EpiloguesOfDoublesAreRefusedWhereTold) {
  for (const bool takes : {true, false}) {
    cublasLtDestroy(handle_);
    begin({.epilogues_f64 = takes});
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    for (const cudaDataType_t type : {CUDA_R_32F, CUDA_R_64F}) {
      for (const cublasLtEpilogue_t epilogue : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS}) {
        cublasLtMatmulDesc_t desc = nullptr;
        cublasLtMatmulDescCreate(&desc, type == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, type);
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        cublasLtMatrixLayout_t square = nullptr;
        cublasLtMatrixLayoutCreate(&square, type, 4, 4, 4);
        cublasLtMatmulPreference_t preference = nullptr;
        cublasLtMatmulPreferenceCreate(&preference);
        const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes);
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        const bool refused = !takes && type == CUDA_R_64F && epilogue == CUBLASLT_EPILOGUE_BIAS;
        EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, desc, square, square, square, square, preference, 1, &result,
                                                 &found),
                  refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(found, refused ? 0 : 1);
        cublasLtMatmulPreferenceDestroy(preference);
        cublasLtMatrixLayoutDestroy(square);
        cublasLtMatmulDescDestroy(desc);
      }
    }
  }
}

/// Batches are on an axis of the grid that has 65,535 blocks at most.
TEST_F(CublasLt, ABatchHasTheSizeOfAGrid) {
  constexpr std::int32_t kMost = 65535;
  const auto ones = to_device(std::vector<float>(kMost + 1, 1), stream_);
  float* const d = allocate<float>(kMost + 1, stream_);
  Call c{.m = 1, .n = 1, .k = 1, .lead_a = 1, .batch = kMost + 1};
  EXPECT_EQ(multiply(c, ones, ones, d), CUBLAS_STATUS_NOT_SUPPORTED);
  c.batch = kMost;
  EXPECT_EQ(multiply(c, ones, ones, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(to_host(d, kMost, stream_), std::vector<float>(kMost, 1));
}

TEST_F(CublasLt, RefusesAtRandomWhereToldAndFailsWherePlanted) {
  cublasLtDestroy(handle_);
  begin({.refused_of_100 = 50});
  ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  stream_ = make_stream();
  float* const a = to_device(numbers(15), stream_);
  float* const b = to_device(numbers(21), stream_);
  float* const d = allocate<float>(35, stream_);
  int refused = 0;
  for (int i = 0; i < 64; ++i) refused += multiply({}, a, b, d) == CUBLAS_STATUS_NOT_SUPPORTED;
  EXPECT_GT(refused, 8);
  EXPECT_LT(refused, 64);
  cuda_double::fail_every(cuda_double::Fault::library, 1, cudaErrorUnknown);
  EXPECT_EQ(multiply({}, a, b, d), CUBLAS_STATUS_EXECUTION_FAILED);
  cuda_double::fail_every(cuda_double::Fault::library, 0);
}

}  // namespace
