// Calls of cuBLAS and cuDNN whose results torch reads; `generate.py` makes all the others.
#include "stub.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#include <cstdio>
#include <cstring>

using namespace stub;

extern "C" {

// --- cuBLAS -------------------------------------------------------------------------------------

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
  *mode = CUBLAS_POINTER_MODE_HOST;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
    cublasLtMatmulHeuristicResult_t* results, int* count) {
  memset(results, 0, sizeof *results);
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

// Takes its stream as an argument, and not of its handle.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void*,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  auto error = enqueue(stream, nullptr, __func__);
  return error ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

// --- cuDNN --------------------------------------------------------------------------------------

size_t cudnnGetVersion() { return CUDNN_VERSION; }

size_t cudnnGetCudartVersion() { return VERSION; }

cudnnStatus_t cudnnGetProperty(libraryPropertyType part, int* value) {
  *value = part == MAJOR_VERSION   ? CUDNN_MAJOR
           : part == MINOR_VERSION ? CUDNN_MINOR
                                   : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = (cudaStream_t)get_stream(handle);
  return CUDNN_STATUS_SUCCESS;
}

void cudnnGetLastErrorString(char* words, size_t size) { snprintf(words, size, "stub"); }

// One engine, without knobs, notes or a workspace. The caller makes descriptors to be filled in.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t* count, void* values) {
  bool none = type == CUDNN_TYPE_NUMERICAL_NOTE || type == CUDNN_TYPE_BEHAVIOR_NOTE ||
              name == CUDNN_ATTR_ENGINE_KNOB_INFO || name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES;
  if (count) *count = none ? 0 : 1;
  if (none || !values || wanted < 1) return CUDNN_STATUS_SUCCESS;
  bool engines = name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT;
  switch (type) {
    case CUDNN_TYPE_INT64: *(int64_t*)values = engines; break;
    case CUDNN_TYPE_INT32: *(int32_t*)values = 0; break;
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN: *(char*)values = 0; break;
    default: break;
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
