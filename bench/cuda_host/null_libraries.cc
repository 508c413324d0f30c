// cuBLASLt and cuDNN are linked and never called, but for the handles that a device makes at its start.
#include <cstdlib>

// Without their headers, so that one line does for each.
#define NEVER_CALLED(name) \
  extern "C" int name() { std::abort(); }
#define NOTHING(name) \
  extern "C" int name() { return 0; }
NOTHING(cublasLtCreate)
NOTHING(cublasLtDestroy)
NOTHING(cudnnCreate)
NOTHING(cudnnDestroy)
NOTHING(cudnnSetStream)
NEVER_CALLED(cublasLtGetStatusString)
NEVER_CALLED(cublasLtMatmul)
NEVER_CALLED(cublasLtMatmulAlgoGetHeuristic)
NEVER_CALLED(cublasLtMatmulDescCreate)
NEVER_CALLED(cublasLtMatmulDescDestroy)
NEVER_CALLED(cublasLtMatmulDescSetAttribute)
NEVER_CALLED(cublasLtMatmulPreferenceCreate)
NEVER_CALLED(cublasLtMatmulPreferenceDestroy)
NEVER_CALLED(cublasLtMatmulPreferenceSetAttribute)
NEVER_CALLED(cublasLtMatrixLayoutCreate)
NEVER_CALLED(cublasLtMatrixLayoutDestroy)
NEVER_CALLED(cublasLtMatrixLayoutSetAttribute)
NEVER_CALLED(cudnnConvolutionBackwardData)
NEVER_CALLED(cudnnConvolutionBackwardFilter)
NEVER_CALLED(cudnnConvolutionForward)
NEVER_CALLED(cudnnCreateConvolutionDescriptor)
NEVER_CALLED(cudnnCreateFilterDescriptor)
NEVER_CALLED(cudnnCreateTensorDescriptor)
NEVER_CALLED(cudnnDestroyConvolutionDescriptor)
NEVER_CALLED(cudnnDestroyFilterDescriptor)
NEVER_CALLED(cudnnDestroyTensorDescriptor)
NEVER_CALLED(cudnnGetConvolutionBackwardDataAlgorithm_v7)
NEVER_CALLED(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
NEVER_CALLED(cudnnGetConvolutionForwardAlgorithm_v7)
NEVER_CALLED(cudnnGetErrorString)
NEVER_CALLED(cudnnSetConvolution2dDescriptor)
NEVER_CALLED(cudnnSetConvolutionMathType)
NEVER_CALLED(cudnnSetFilter4dDescriptor)
NEVER_CALLED(cudnnSetTensor4dDescriptor)
